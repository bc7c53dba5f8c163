import math
import time
import warnings

import pytest

from lightning_pac.accountants.privacy_loss import (
    EpsilonDelta,
    GaussianRelease,
    PoissonSteps,
    StepFigures,
    SuccessBound,
    least_noise,
    most_steps,
    privacy_curve,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from opacus.accountants import PRVAccountant


def run(rate: float, num_steps: int, differing: int, adjacency: str = "zero_out"):
    return lambda noise: [PoissonSteps(noise, rate, num_steps, differing, adjacency)]


@pytest.mark.parametrize(
    ("promise", "events", "noise"),
    [
        (SuccessBound(0.7356), run(0.01, 3906, 10), 5.006),
        (SuccessBound(0.6360), run(0.01, 3906, 1), 1.105),
        (SuccessBound(0.7391), run(0.1, 50, 10, "replace"), 11.0),
        (EpsilonDelta(1e-2, 1e-8), run(0.3, 20, 2), None),
        (EpsilonDelta(50.0, 1e-5), run(0.3, 40, 2), None),
        (SuccessBound(0.95, prior=0.1), run(0.3, 40, 2), None),
    ],
)
def test_the_least_noise_keeps_the_promise_and_less_does_not(promise, events, noise: float | None) -> None:
    found = least_noise(promise, events)
    assert promise.is_kept_by(privacy_curve(events(found)))
    assert not promise.is_kept_by(privacy_curve(events(found * (1 - 1e-4))))
    if noise is not None:
        assert found == pytest.approx(noise, rel=1e-3)


@pytest.mark.parametrize("num_steps", [145, 290, 580])
def test_no_more_noise_than_a_peer(num_steps: int) -> None:
    """At our noise less 1 % the peer's account is over the promise: its noise is more than ours less 1 %."""
    rate = 1024 / 29_561
    found = least_noise(EpsilonDelta(3.0, 1e-5), run(rate, num_steps, 1, "add_remove"))
    peer = PRVAccountant()
    peer.history = [(found / 1.01, rate, num_steps)]
    assert peer.get_epsilon(1e-5, eps_error=0.005) > 3.0


def test_noise_beside_what_was_released_before() -> None:
    before = GaussianRelease(0.2)
    promise = SuccessBound(0.65)
    found = least_noise(promise, lambda noise: [before, *run(0.05, 100, 2)(noise)])
    assert promise.is_kept_by(privacy_curve([before, *run(0.05, 100, 2)(found)]))
    assert SuccessBound(0.63).is_kept_by(privacy_curve(run(0.05, 100, 2)(found)))
    with pytest.raises(ValueError, match="No noise keeps"):
        least_noise(SuccessBound(0.55), lambda noise: [before, *run(0.05, 100, 2)(noise)])
    with pytest.raises(ValueError, match="Any noise keeps"):
        least_noise(promise, lambda noise: [before])


def test_the_most_steps_keep_the_promise_and_one_more_does_not() -> None:
    promise = EpsilonDelta(2.0, 1e-5)

    def events(steps: int):
        return [PoissonSteps(1.1, 0.02, steps, 1, "add_remove")]

    found = most_steps(promise, events)
    assert promise.is_kept_by(privacy_curve(events(found)))
    assert not promise.is_kept_by(privacy_curve(events(found + 1)))
    with pytest.raises(ValueError, match="broken before the first step"):
        most_steps(promise, lambda steps: [GaussianRelease(9.0), *events(steps)])
    with pytest.raises(ValueError, match="Any number of steps"):
        most_steps(promise, lambda steps: [GaussianRelease(0.1)])
    assert most_steps(promise, lambda steps: [GaussianRelease(9.0 * steps)]) == 0


def test_figures_of_a_run_are_bounds_at_every_step_and_exact_at_the_end() -> None:
    def events(steps: int):
        return [PoissonSteps(2.0, 0.05, steps, 2, "replace")]

    figures = StepFigures.of(events, num_steps=200, delta=1e-5, points=8)
    for steps in (0, 1, 37, 199, 200):
        curve = privacy_curve(events(steps))
        assert figures.epsilon(steps) >= curve.epsilon(1e-5)
        assert figures.success_bound(steps) >= curve.success_bound()
    assert figures.epsilon(200) == privacy_curve(events(200)).epsilon(1e-5)
    assert (figures.epsilon(0), figures.success_bound(0)) == (0.0, 0.5)
    assert len(figures.steps) <= 9
    with pytest.raises(ValueError, match="up to 200 steps, not for 201"):
        figures.epsilon(201)


def test_figures_of_a_step_take_less_than_fifty_microseconds() -> None:
    figures = StepFigures(tuple(range(0, 4000, 40)), lambda steps: (0.0, 0.5))
    start = time.process_time()
    for step in range(3900):
        figures.epsilon(step)
        figures.success_bound(step)
    assert (time.process_time() - start) / 3900 < 50e-6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: EpsilonDelta(1.0, 0.0), "delta is 0.0, but must lie strictly between 0 and 1"),
        (lambda: EpsilonDelta(1.0, 1.0), "delta is 1.0, but"),
        (lambda: EpsilonDelta(1.0, float("1e-400")), "delta is 0.0, but"),
        (lambda: EpsilonDelta(0.0, 1e-5), "epsilon is 0.0, but"),
        (lambda: EpsilonDelta(math.inf, 1e-5), "epsilon is inf, but"),
        (lambda: SuccessBound(0.5), "bound is 0.5, but must lie above 0.5"),
        (lambda: SuccessBound(0.4), "bound is 0.4, but"),
        (lambda: SuccessBound(1.0), "bound is 1.0, but"),
        (lambda: SuccessBound(0.8, prior=0.1), "above 0.9, which a blind guess reaches"),
        (lambda: SuccessBound(0.8, prior=0.0), "prior is 0.0, but"),
    ],
)
def test_promises_that_are_none(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
