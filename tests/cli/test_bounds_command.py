"""`lightning-pac bounds` against the paper's Table 1."""

import json
import math
from pathlib import Path

import pytest

from lightning_pac.cli import main
from lightning_pac.cli.bounds import parse_budget

# PAC-private responses, Table 1: success bounds in percent after 1, 10, ..., 10^6 responses.
TABLE_1 = {
    "2^-4": ["67.5", "98.7", "100", "100", "100", "100", "100"],
    "2^-8": ["54.4", "63.9", "91.0", "100", "100", "100", "100"],
    "2^-16": ["50.3", "50.9", "52.8", "58.7", "76.9", "100", "100"],
    "2^-24": ["50.02", "50.05", "50.17", "50.55", "51.73", "55.45", "67.09"],
    "2^-32": ["50.00", "50.00", "50.01", "50.03", "50.11", "50.34", "51.08"],
}


def test_the_numbers_are_those_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bounds", "--budget", *TABLE_1, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    for row in rows:
        for shown, bound in zip(TABLE_1[row["budget"]], row["membership_success_bound"].values(), strict=True):
            digits = len(shown.partition(".")[2])
            assert f"{100 * bound:.{digits}f}" == shown
    assert rows[1]["responses_until"] == {"1": 28, "8": 176}
    assert f"{rows[-1]['dp_epsilon']['1000000']:.4f}" == "0.0431"  # math of 51.079 % at delta 1e-5


def test_the_table_and_the_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = tmp_path / "bounds.png"
    numbers = ["--budget", "2^-32", "1e-4", "--responses", "1e6", "210000", "--epsilon", "1"]
    command = ["bounds", *numbers, "--plot", str(image)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "51.08 %" in shown
    assert "50.5 %" in shown  # of 50.494 %, rounded up
    assert image.read_bytes().startswith(b"\x89PNG")


def test_another_prior_has_no_comparison_with_dp(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bounds", "--budget", "0.0078125", "--responses", "1", "--prior", "0.01", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert f"{100 * row['membership_success_bound']['1']:.3f}" == "2.477"  # of the formula sheet
    assert "dp_epsilon" not in row


@pytest.mark.parametrize("text", ["0", "-1e-3", "nan", "inf", "2^x", "two", "10^999", "0^-1"])
def test_a_budget_that_is_no_positive_number_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="is not a positive number of nats: write it as 1e-9 or 2"):
        parse_budget(text)
    assert main(["bounds", f"--budget={text}"]) == 1
    assert "is not a positive number of nats" in capsys.readouterr().err


def test_half_a_response_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["bounds", "--responses", "0.5"])


def test_as_many_responses_as_keep_a_bound_on_guessing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bounds", "--budget", "2^-20", "--success-bound", "0.6", "--json"]) == 0
    within = json.loads(capsys.readouterr().out)["rows"][0]["responses_within"]["0.6"]
    # Fano: T b nats allow a success p with ln 2 - h(p) = T b.
    allowed = (math.log(2) + 0.6 * math.log(0.6) + 0.4 * math.log(0.4)) * 2**20
    assert within == pytest.approx(allowed, abs=1)
    assert main(["bounds", "--success-bound", "0.5"]) == 1
    assert "must lie above the prior 0.5" in capsys.readouterr().err


def test_what_a_figure_is_stated_for_is_not_rounded_to_the_side_that_promises_more(capsys):
    words = ["--budget", "1e-6", "--epsilon", "1.0000004", "--delta", "1.0000004e-5", "--success-bound", "0.75000004"]
    assert main(["bounds", *words]) == 0
    told = capsys.readouterr().out
    for label in ("until epsilon 1.00001", "within 75.0001 %", "(epsilon, 1.00001e-05)"):
        assert label in told
    words = ["--num-records", "100", "--num-differing", "1", "--batch-size", "10", "--steps", "10"]
    assert main(["calibrate", *words, "--noise-multiplier", "5", "--delta", "1.0000004e-5"]) == 0
    assert "delta 1.00001e-05" in capsys.readouterr().out.replace("\n", " ")
