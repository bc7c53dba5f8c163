"""Promises of single figures: what a card, a limit, an error or a name says is what holds."""

import copy
import math
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy import stats
from slow_cases import slow

from lightning_pac.accountants import SRPPAccountant, responses_until
from lightning_pac.callbacks import PositiveDelay
from lightning_pac.exceptions import BudgetExceededError, PrivacyViolationError
from lightning_pac.mechanisms import (
    AdaptiveComposition,
    BoundedOutputs,
    FiniteOutputs,
    KnownMoments,
    MixtureNoise,
    ReleasedMechanism,
    StreamingCoordinateNoise,
    calibrate_gaussian,
    calibrate_lattice,
    certify_mechanism,
    confidence_auto_pac,
    individual_noise,
    privatize,
)
from lightning_pac.mechanisms.one_sided import PositiveNoise, TruncatedLaplace, biased_laplace
from lightning_pac.randomness import release_grid
from lightning_pac.scenarios import ComplementaryHalves, EpochShuffle, TwoWorldScenario

OUTPUTS = np.random.default_rng(0).normal(size=(8, 3))
UNIT = MixtureNoise.gaussian(np.eye(3))


def test_a_card_of_many_releases_bounds_what_all_of_them_tell():
    law = FiniteOutputs(np.array([[-1.0], [1.0]]))
    released = certify_mechanism(MixtureNoise.gaussian([[1.0]]), law, 0.02, secret="One bit.")
    for count in (1, 10, 30):
        (_, guess) = released.card(num_releases=count).guarantees
        # The best guess from so many releases, by the exact likelihood ratio: the bound of one was 0.6.
        assert guess.value >= stats.norm.cdf(math.sqrt(count / released.power))
        assert ("all 30 releases" in guess.meaning) == (count == 30)
    with pytest.raises(ValueError, match="num_releases must be at least 1, got 0"):
        released.card(num_releases=0)


def in_threads(action, calls, workers=8):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(workers) as pool:
            return [future.exception() for future in [pool.submit(action) for _ in range(calls)]]
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("outputs", [[0, 1, 2, 3, 4, 5, 0, 1], OUTPUTS], ids=["votes", "scores"])
def test_threads_together_do_not_pass_the_limit_of_a_composition(outputs):
    for _ in range(5):
        composition = AdaptiveComposition(np.full(8, 1 / 8), 3, total_budget=0.5)
        errors = in_threads(lambda composition=composition: composition.release(outputs, 0.01), 64)
        # 64 answers were given where 50 are within the limit.
        assert errors.count(None) == composition.num_releases == 50
        assert {type(error) for error in errors if error is not None} == {BudgetExceededError}
        assert composition.spent == pytest.approx(0.5)
    assert copy.deepcopy(composition).num_releases == 50


def test_threads_lose_no_output_and_no_step():
    stream = StreamingCoordinateNoise()
    in_threads(lambda: [stream.update([value, -value]) for value in (0.0, 1.0)], 300)
    assert stream.count == 600
    assert stream.variances == pytest.approx([0.25, 0.25])
    scenario = TwoWorldScenario(num_differing=10, num_records=50_000)
    account = SRPPAccountant(scenario, EpochShuffle(512)).track(noise_multiplier=64.0)
    in_threads(account.start_step, 400)
    assert account.num_steps == account.open_steps == 400


def test_a_narrowed_belief_is_no_reason_to_release_without_noise(tmp_path):
    """The box was refused with the advice that no noise is needed, once less than the budget was left to tell."""
    records = np.random.default_rng(1).normal(size=(40, 2))
    halves = ComplementaryHalves(num_records=40, num_subsets=8)
    secret = halves.draw_secret(tmp_path / "secret.key")
    for _ in range(7):
        released = privatize(
            lambda rows: rows.mean(axis=0), secret, budget=0.9, data=records, workers=1, progress=False,
            ledger=tmp_path / "ledger.db",
        )  # fmt: skip
        assert released.power > 0
    assert released.total_mutual_information == pytest.approx(math.log(8))


class _Words:
    """A generator whose next uniform comes from a given 64-bit word, on the left side."""

    def __init__(self, word):
        self.word = word

    def uniform(self, size=()):
        return np.float64(min((self.word + 0.5) * 2.0**-64, 1 - 2.0**-53))

    def integers(self, high, size=()):
        return 1


@pytest.mark.parametrize("delta", [1e-4, 1e-8, 1e-12])
def test_truncated_laplace_noise_keeps_its_delta_as_it_is_drawn(delta):
    """What lies within one unit of an end cannot come from the neighbour: the words that lead there are counted."""
    noise = TruncatedLaplace.for_dp(1.0, delta)
    step = release_grid(noise.scale)

    def shown(word):
        drawn = TruncatedLaplace(noise.scale, noise.max_value, _Words(word)).sample()
        return math.ceil(float(drawn) / step) * step

    low, high = 0, 2**64 - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if shown(middle) < 1.0 else (low, middle)
    realised = low * 2.0**-65
    assert 0.5 * delta < realised <= delta


def test_what_draws_cannot_keep_is_refused():
    with pytest.raises(ValueError, match=r"delta=1e-20 is too small for draws of 64 bits: .* at least 7\.\d*e-14"):
        TruncatedLaplace.for_dp(1.0, 1e-20)
    with pytest.raises(ValueError, match="epsilon must be at least 1e-06"):
        TruncatedLaplace.for_dp(1e-8, 0.5)
    noise = TruncatedLaplace.for_dp(1.0, 1e-6)
    # Beside 10^17 there was no room for noise, and the value was shown as it is.
    for pad in (noise.pad, PositiveNoise.for_pac(1.0, 8.0, 20.0).pad):
        with pytest.raises(ValueError, match="too large for noise on a grid"):
            pad(1e17)
    assert all(1e6 <= noise.pad(1e6) <= 1e6 + noise.max_value + 1 for _ in range(200))


def test_what_is_padded_is_a_number():
    """A text, a truth value or infinity is refused by name, in steps and in numbers."""
    steps = [
        PositiveNoise.for_dp(1.0, 1e-3, max_value=40),
        PositiveNoise.for_maximal_leakage([0, 1], [0.5, 0.5], [[0.0, 1.0], [0.0, 1.0]], 0.5),
    ]
    for noise in (*steps, PositiveNoise.for_pac(1.0, 8.0, 20.0), TruncatedLaplace.for_dp(1.0, 1e-6)):
        for value in ("1", True, None, np.inf, np.nan, 10**400, *([0.5] if noise in steps else [])):
            with pytest.raises((TypeError, ValueError), match=r"^value must be "):
                noise.pad(value)


def test_a_channel_draws_what_its_leakage_was_computed_from():
    channel = PositiveNoise.for_maximal_leakage(
        np.arange(3), np.full(3, 1 / 3), np.tile(np.arange(3.0), (3, 1)), leakage=1e-13
    )
    assert np.array_equal(channel.transition * 2.0**62, np.rint(channel.transition * 2.0**62))
    assert channel.leakage <= 1e-13 + 1e-15
    assert {channel.sample(0) for _ in range(100)} == {2}


def test_noise_for_one_record_does_not_pass_for_noise_for_the_secret():
    halves = ComplementaryHalves(num_records=12, num_subsets=8)
    table = halves.membership_table()
    noise = individual_noise(np.arange(8.0)[:, None], table, budget=0.3)
    assert noise.certificate.about == "the membership of any single record"
    assert calibrate_gaussian(OUTPUTS, 0.3).certificate.about == "the secret"
    law = FiniteOutputs(np.arange(8.0)[:, None])
    with pytest.raises(PrivacyViolationError, match="about the membership of any single record"):
        ReleasedMechanism(MixtureNoise.gaussian(noise.covariance()), noise.certificate, law, "The subset.")


def _privatize(budget):
    halves = ComplementaryHalves(num_records=8, num_subsets=8)
    return privatize(np.mean, halves, budget, data=OUTPUTS, workers=1, progress=False)


def _stream(budget):
    stream = StreamingCoordinateNoise()
    stream.update([0.0])
    return stream.noise(budget)


def _answer(outputs, rule):
    return lambda budget: AdaptiveComposition(np.full(8, 1 / 8), 3, rule).release(outputs, budget)


CALLS = {
    **{f"gaussian {rule}": (lambda budget, rule=rule: calibrate_gaussian(OUTPUTS, budget, rule=rule))
       for rule in ("linear", "logdet", "coordinate", "isotropic", "exact")},
    **{f"{rule} of {classes}": _answer(np.arange(8) % classes, rule)
       for rule in ("logdet", "linear") for classes in (2, 3, 4, 5)},
    **{f"{rule} of scores": _answer(OUTPUTS, rule) for rule in ("logdet", "linear")},
    "individual": lambda budget: individual_noise([[0.0], [1.0]], [[True, False]], budget),
    "lattice": lambda budget: calibrate_lattice([0, 1, 5], budget),
    "finite": lambda budget: certify_mechanism(UNIT, FiniteOutputs(OUTPUTS), budget, secret="A test."),
    "moments": lambda budget: certify_mechanism(UNIT, KnownMoments(np.zeros(3), np.eye(3)), budget, secret="A test."),
    "bounded": lambda budget: certify_mechanism(UNIT, BoundedOutputs(np.zeros(3), 1.0), budget, secret="A test."),
    "privatize": _privatize,
    "stream": _stream,
}  # fmt: skip


@pytest.mark.parametrize("budget", [1e-320, 1e-40, 300.0, 1e6, 1e300])
@pytest.mark.parametrize("name", CALLS)
def test_extreme_budgets_are_refused_in_a_sentence(name, budget):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"budget of a release must be from 7\.9e-31 to 256 nats"):
            CALLS[name](budget)


@pytest.mark.parametrize("budget", [1e-30, 1e-9])
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("lattice", "gaussian exact", "finite")])
def test_small_budgets_are_met(name, budget):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "The noise drowns this release")
        assert CALLS[name](budget) is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PositiveNoise.for_dp(1e6, 1e-4), "epsilon must be at most 256"),
        (lambda: TruncatedLaplace.for_dp(1e6, 1e-4), "epsilon must be from 1e-09 to 256"),
        (lambda: biased_laplace(1e-320, 1e-4), "epsilon must be from 1e-09 to 256"),
        (lambda: PositiveNoise.for_pac(1.0, 8.0, 1e-320), "second_moment must be from"),
        (lambda: PositiveNoise.for_pac(1.0, 1e300, 8.0), "max_value must be from"),
        (lambda: confidence_auto_pac(OUTPUTS, 1e-320, 1e-321, radius=10.0, security=1e-3), "budget"),
        (lambda: responses_until(1.0, 1e-320), "too little for its responses to be counted"),
    ],
)
def test_extreme_designs_are_refused_in_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_generous_leakage_shows_everything():
    channel = PositiveNoise.for_maximal_leakage(np.arange(3), np.full(3, 1 / 3), np.tile(np.arange(3.0), (3, 1)), 1e6)
    assert channel.transition == pytest.approx(np.eye(3))


@pytest.mark.parametrize("private", [777.25, "777", [777, None], math.nan, *slow(7e300, 10**30 + 777, -math.inf)])
def test_a_refusal_does_not_say_a_private_value(private: Any) -> None:
    """What is to be noised may be of the wrong kind or out of range; an error is often shown to others."""
    padding = PositiveNoise.for_dp(1.0, 1e-6)
    delay = PositiveDelay(PositiveNoise.for_dp(1.0, 1e-6, compositions=500))
    takers: list[Callable[[Any], Any]] = [
        padding.pad,
        PositiveNoise.for_pac(1.0, 30.0, 100.0).pad,
        PositiveNoise.for_maximal_leakage([0, 1], [0.5, 0.5], [[0.0, 1.0], [0.0, 1.0]], 0.5).pad,
        calibrate_lattice([0, 1, 5], 0.03).release,
        calibrate_gaussian([[0.0], [1.0]], 0.1).release,
        delay.padded_duration,
    ]
    said = []
    for take in takers:
        try:
            take(private)
        except (TypeError, ValueError) as error:
            said.append(str(error))
    assert len(said) >= 4
    assert not any(word in text for word in ("77", "7e+", "7e3", " nan", "inf,", "inf ") for text in said)
    for high in (777, 2**60):
        with pytest.raises(ValueError, match="value is above the highest designed state, 1"):
            takers[2](high)
