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
    assert "ordinary" in printed
    return {row["run"]: row for row in map(summarize, find_runs(output))}


@pytest.mark.parametrize(("run", "bound"), [("promise-65", 0.65), ("promise-60", 0.6), ("promise-55", 0.55)])
def test_private_runs_keep_a_promise_worth_keeping_and_learn(rows, run, bound):
    row = rows[run]
    assert bound - 0.01 < row["success_bound"] <= bound
    assert row["accuracy"] > rows["ordinary"]["accuracy"] - 0.1


@pytest.mark.parametrize("run", ["promise-65", "promise-60", "promise-55"])
def test_no_attack_passes_the_bound(rows, run):
    attacks = {attack["name"]: attack for attack in rows[run]["attacks"]}
    assert set(attacks) == {"loss_threshold_attack_success", "likelihood_ratio_attack_success"}
    # The best attack reaches the bound: its 95 % interval is widened to five standard errors (false alarms 3e-7).
    for attack in attacks.values():
        low, high = attack["interval"]
        assert attack["value"] - 5 / 1.96 * (high - low) / 2 <= rows[run]["success_bound"]


def test_without_noise_the_worlds_are_told_apart(rows):
    row = rows["ordinary"]
    assert row["success_bound"] is None
    assert {attack["name"]: attack["value"] for attack in row["attacks"]}["likelihood_ratio_attack_success"] == 1.0
