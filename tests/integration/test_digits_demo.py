"""`make demo` does what it says: private runs learn, attacks stay below the bounds, and the report shows it."""

import pathlib

import pytest
from scripts import run_script

import lightning_pac
from lightning_pac.report import find_runs, summarize

DEMO = pathlib.Path(lightning_pac.__file__).parent.parent / "examples" / "digits" / "demo.py"

# Budgets are held by test_srpp_training, attacks by test_likelihood_ratio and the page by test_report, on smaller runs.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DEMO.exists(), reason="the examples are in a checkout")]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    output = tmp_path_factory.mktemp("demo") / "runs"
    printed = run_script(DEMO, "--output", str(output), folder=output.parent)
    assert (output / "report.html").stat().st_size > 50_000
    assert "not-private" in printed
    return {row["run"]: row for row in map(summarize, find_runs(output))}


@pytest.mark.parametrize("run", ["rpp-poisson", "ms-joint-poisson", "joint-shuffled"])
def test_private_runs_learn_within_their_budget(rows, run):
    row = rows[run]
    assert row["renyi_order"] == 4
    assert 7.5 < row["epsilon"] <= 8
    assert row["steps"] == 50
    # Over the noise, accuracy is 0.907 with a deviation of 0.012 for the noisiest of the three; 0.84 is five below.
    assert row["accuracy"] > 0.84


@pytest.mark.parametrize("run", ["rpp-poisson", "ms-joint-poisson", "joint-shuffled"])
def test_no_attack_passes_the_bound(rows, run):
    attacks = {attack["name"]: attack for attack in rows[run]["attacks"]}
    assert set(attacks) == {"loss_threshold_attack_success", "likelihood_ratio_attack_success"}
    # The best attack reaches the bound: its 95 % interval is widened to five standard errors (false alarms 3e-7).
    for attack in attacks.values():
        low, high = attack["interval"]
        assert attack["value"] - 5 / 1.96 * (high - low) / 2 <= rows[run]["success_bound"]
    assert attacks["likelihood_ratio_attack_success"]["value"] > 0.7


def test_without_noise_the_worlds_are_told_apart(rows):
    row = rows["not-private"]
    assert row["epsilon"] is None
    assert {attack["name"]: attack["value"] for attack in row["attacks"]}["likelihood_ratio_attack_success"] == 1.0


def test_amplification_needs_the_least_noise(rows):
    noise = {run: row["noise_multiplier"] for run, row in rows.items()}
    assert noise["rpp-poisson"] < noise["ms-joint-poisson"] < noise["joint-shuffled"]
