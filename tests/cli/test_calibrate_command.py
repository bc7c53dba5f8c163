import json
import math
import re

import pytest

from lightning_pac import cli
from lightning_pac.scenarios.sampling.scheme import REGISTERED

RUN = ["--num-records", "50000", "--num-differing", "10", "--batch-size", "512", "--epochs", "40"]


def table(capsys, *arguments):
    assert cli.main(["calibrate", *arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    return {(row["sampling"], row["notion"]): row for row in rows}


def test_all_samplings_and_notions_stand_side_by_side(capsys):
    rows = table(capsys, *RUN)
    ours = {name for name, scheme in REGISTERED.items() if scheme.__module__.startswith("lightning_pac.")}
    assert sum(sampling in ours for sampling, _ in rows) == 25  # other tests may have registered their own
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
        ([*RUN, "--epsilon", "-1", "--renyi-order", "16"], "epsilon is -1.0, but must lie between"),
        ([*RUN, "--epsilon", "3"], "epsilon=3 says nothing by itself"),
        ([*RUN, "--epsilon", "3", "--world-success-bound", "0.6"], "one promise and epsilon with delta another"),
        ([*RUN, "--epsilon", "3", "--delta", "1e-400"], "delta is 0.0, but must lie strictly between"),
        ([*RUN, "--world-success-bound", "0.5"], "must lie above 0.5, which a blind guess reaches"),
        ([*RUN, "--world-success-bound", "0.6", "--noise-multiplier", "3"], "each decide the noise: pass exactly one"),
        ([*RUN, "--renyi-order", "1"], "renyi_order is 1.0"),
        (
            ["--dp", "3", "1e-5", "--epsilon", "2", "--batch-size", "8", "--rate", "0.1", "--steps", "5"],
            "--dp is the whole",
        ),
        ([*RUN, "--num-differing", "60000"], "only 50000 records to differ in"),
    ],
)
def test_bad_arguments_are_one_sentence(capsys, arguments, sentence):
    assert cli.main(["calibrate", *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_the_preset_of_differential_privacy_is_its_promise_written_out(capsys):
    length = ["--rate", "0.01", "--batch-size", "500", "--steps", "100"]
    written = ["--adjacency", "add_remove", "--num-differing", "1", "--epsilon", "3", "--delta", "1e-5"]
    rows = table(capsys, *written, *length)
    assert table(capsys, "--dp", "3", "1e-5", *length) == {key: row for key, row in rows.items() if key[1] == "rpp"}


def test_each_promise_has_its_noise(capsys):
    """Without amplification a run is one Gaussian, so the noise is kappa sqrt(sum K^2) / mu."""
    from scipy import optimize, stats

    def delta(mu, epsilon):
        return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)

    guess = 2 * stats.norm.ppf(0.6)
    loss = optimize.brentq(lambda mu: delta(mu, 3.0) - 1e-5, 0.01, 3)
    for words, mu in ((["--world-success-bound", "0.6"], guess), (["--epsilon", "3", "--delta", "1e-5"], loss)):
        rows = table(capsys, *RUN, *words)
        assert rows["EpochShuffle", "rpp"]["noise_multiplier"] == pytest.approx(2 * math.sqrt(40 * 100) / mu, rel=1e-5)
        assert rows["Poisson", "rpp"]["noise_multiplier"] < 15 / mu
        assert "promises no (epsilon, delta)" in rows["FixedSize", "ms-ave"]["refused"]
        assert rows["EpochShuffle", "rpp"]["world_success_bound"] == pytest.approx(stats.norm.cdf(mu / 2), abs=1e-6)
        epsilon = rows["EpochShuffle", "rpp"]["epsilon_at_delta"]
        assert delta(mu, epsilon) == pytest.approx(1e-5, rel=1e-3)


def test_a_share_of_the_records_is_rounded_up(capsys):
    share = ["--share-differing", "0.0015", *RUN[:2], *RUN[4:]]
    assert table(capsys, *share)["EpochShuffle", "rpp"]["noise_multiplier"] == pytest.approx(
        2 * 75 * math.sqrt(40), rel=1e-6
    )
    words = ["--share-differing", "0.1", "--adjacency", "add_remove", "--rate", "0.1", "--batch-size", "5"]
    assert cli.main(["calibrate", *words, "--steps", "3"]) == 1
    assert "the number of records that it is a share of is the secret" in capsys.readouterr().err


def test_a_registered_scheme_has_a_row_where_it_can_be_made(capsys, tmp_path, monkeypatch):
    (tmp_path / "my_schemes.py").write_text(SCHEMES)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        rows = table(capsys, *RUN, "--import", "my_schemes")
        assert {"Slow", "EpochShuffle"} <= {sampling for sampling, _ in rows}
        assert "Odd" not in {sampling for sampling, _ in rows}, "it has a number that nobody stated"
        assert rows["Slow", "rpp"]["noise_multiplier"] == pytest.approx(2 * 126.5, rel=1e-3)
    finally:
        for name in ("Slow", "Odd"):
            REGISTERED.pop(name, None)


def test_the_plot_shows_noise_and_signal(capsys, tmp_path):
    picture = tmp_path / "noise.png"
    words = ["--num-records", "500", "--num-differing", "1", "--batch-size", "50", "--epochs", "2"]
    words += ["--world-success-bound", "0.52", "--parameters", "1000000"]
    assert cli.main(["calibrate", *words, "--plot", str(picture)]) == 0
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    said = capsys.readouterr().out
    assert "signal of the run" in said
    assert "Below 3 most runs end where they began (Poisson, secret draws; shuffled epochs" in said
    one_step = said[said.index("Learning rates to start at") :]
    rates = re.search(r"Poisson, secret draws +│ +(\S+) │ +(\S+) │ +(\S+) │", one_step)
    noise = table(capsys, *words)["Poisson", "rpp"]["noise_multiplier"]
    assert rates is not None
    ratio = 50 / (noise * 1000)
    assert [float(rate) for rate in rates.groups()] == pytest.approx([ratio, ratio, ratio / 4], rel=0.05)
    assert cli.main(["calibrate", *words[:8], "--noise-multiplier", "3", "--plot", str(picture)]) == 1
    assert "--plot draws the noise that promises need" in capsys.readouterr().err


SCHEMES = """
from dataclasses import dataclass
from lightning_pac.scenarios import EpochShuffle, Sampling, register_sampling

@register_sampling
@dataclass(frozen=True)
class Slow(Sampling):
    batch_size: int
    condition = "Declared at four times what it costs."
    def once(self): return EpochShuffle(self.batch_size)
    def worst_case_square_sum(self, *numbers): return 4 * self.once().worst_case_square_sum(*numbers)
    def expected_square_sum(self, *numbers): return 4 * self.once().expected_square_sum(*numbers)
    def expected_batch_size(self, num_records=None): return float(self.batch_size)
    def steps_per_epoch(self, num_records=None): return self.once().steps_per_epoch(num_records)
    def draw_pass(self, num_records, generator): return self.once().draw_pass(num_records, generator)
    @classmethod
    def small_cases(cls): return (cls(2), cls(3))

@register_sampling
@dataclass(frozen=True)
class Odd(Slow.__mro__[1]):
    repeats: int
    condition = "Declared at four times what it costs."
    def once(self): return EpochShuffle(self.repeats)
    worst_case_square_sum = Slow.worst_case_square_sum
    expected_square_sum = Slow.expected_square_sum
    def expected_batch_size(self, num_records=None): return float(self.repeats)
    steps_per_epoch = Slow.steps_per_epoch
    draw_pass = Slow.draw_pass
    @classmethod
    def small_cases(cls): return (cls(2), cls(3))
"""
