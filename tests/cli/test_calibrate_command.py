import json
import math

import pytest

from lightning_pac import cli

RUN = ["--num-records", "50000", "--num-differing", "10", "--batch-size", "512", "--epochs", "40"]


def table(capsys, *arguments):
    assert cli.main(["calibrate", *arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    return {(row["sampling"], row["notion"]): row for row in rows}


def test_all_samplings_and_notions_stand_side_by_side(capsys):
    rows = table(capsys, *RUN)
    assert len(rows) == 25
    steps, order, epsilon = 98 * 40, 16, 8.0
    squares = {
        ("EpochShuffle", "joint"): 40 * 10**2,
        ("FixedSize", "joint"): steps * 10**2,
        ("WithReplacement", "ave"): steps * 512**2,
        ("Poisson", "ms-joint"): steps * (10 * 0.01024 * (1 - 0.01024) + 0.1024**2),
    }
    for key, square in squares.items():
        assert rows[key]["noise_multiplier"] == pytest.approx(2 * math.sqrt(order * square / (2 * epsilon)), rel=1e-6)
        assert rows[key]["epsilon"] <= epsilon
        assert rows[key]["steps"] == steps
    # The formula sheet's 12.8 is for 3906 steps.
    assert rows["Poisson", "rpp"]["noise_multiplier"] == pytest.approx(12.8, abs=0.06)
    assert 0.5 < rows["Poisson", "rpp"]["world_success_bound"] < 1


def test_what_is_refused_says_why(capsys):
    rows = table(capsys, *RUN)
    refused = {key for key, row in rows.items() if row["refused"]}
    assert refused == {("Sequential", "ms-joint"), ("Sequential", "ms-ave")}
    assert rows["Sequential", "ms-ave"]["noise_multiplier"] is None
    assert cli.main(["calibrate", *RUN]) == 0
    text = capsys.readouterr().out
    assert "Noise multiplier for epsilon 8 at order 16, 3920 steps" in text
    assert "Empty: The order of the records is public" in text


def test_epsilon_of_a_given_noise(capsys):
    rows = table(capsys, *RUN, "--noise-multiplier", "126.5")
    assert rows["EpochShuffle", "rpp"]["epsilon"] == pytest.approx(16 * 4 * 4000 / (2 * 126.5**2))
    assert rows["EpochShuffle", "rpp"]["noise_multiplier"] == 126.5


def test_where_the_number_of_records_is_the_secret_only_poisson_remains(capsys):
    arguments = [
        "--adjacency",
        "add_remove",
        "--num-differing",
        "1",
        "--rate",
        "0.01024",
        "--batch-size",
        "512",
        "--steps",
        "3906",
    ]
    rows = table(capsys, *arguments)
    assert {key[0] for key, row in rows.items() if not row["refused"]} == {"Poisson"}
    # The formula sheet's figure for DP-SGD.
    assert rows["Poisson", "rpp"]["noise_multiplier"] == pytest.approx(1.32, abs=0.005)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--num-differing", "3", "--batch-size", "8", "--steps", "5"], "The sampling rate is unknown"),
        ([*RUN, "--epsilon", "-1"], "epsilon is -1.0, but must be positive"),
        ([*RUN, "--renyi-order", "1"], "renyi_order is 1.0"),
        ([*RUN, "--num-differing", "60000"], "only 50000 records to differ in"),
    ],
)
def test_bad_arguments_are_one_sentence(capsys, arguments, sentence):
    assert cli.main(["calibrate", *arguments]) == 1
    assert sentence in capsys.readouterr().err
