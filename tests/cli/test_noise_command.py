"""`lightning-pac noise` in process."""

import json

import pytest

from lightning_pac.cli import main


def test_the_three_notions_print_what_the_library_designs(capsys, tmp_path):
    assert main(["noise", "dp", "--epsilon", "1", "--delta", "1e-4", "--json", "--plot", str(tmp_path / "a.png")]) == 0
    design = json.loads(capsys.readouterr().out)
    assert design["second_moment"] == pytest.approx(75.377, abs=1e-3)
    assert sum(design["probabilities"]) == pytest.approx(1.0)
    assert (tmp_path / "a.png").stat().st_size > 5000
    assert main(["noise", "leakage", "--states", "7", "--leakage", "1.0986122886681098", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["leakage"] == pytest.approx(1.0986122886681098)
    pac = ["noise", "pac", "--output-variance", "20.6", "--max-value", "10", "--second-moment", "25"]
    assert main(pac) == 0
    assert "mutual_information" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dp", "--epsilon", "1", "--delta", "0"], "delta = 0 is impossible"),
        (["dp", "--epsilon", "1", "--delta", "1e-6", "--max-value", "3"], "the least that works is 27"),
        (["pac", "--max-value", "3"], "noise pac needs --output-variance"),
        (["leakage"], "noise leakage needs --states and --leakage"),
    ],
)
def test_a_bad_option_is_one_line(arguments, message, capsys):
    assert main(["noise", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
