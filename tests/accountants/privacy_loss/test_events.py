import json
import math

import pytest

from lightning_pac.accountants.privacy_loss import GaussianRelease, PoissonSteps, SpreadSteps, event_from_dict
from lightning_pac.scenarios import TwoWorldScenario


@pytest.mark.parametrize(
    "event",
    [
        GaussianRelease(0.5),
        PoissonSteps(1.5, 0.1, 7, 3, "replace"),
        PoissonSteps(1.5, 0.1, 7, (2, 1), "zero_out"),
        SpreadSteps(1.5, 0.1, 7, (2, 1), "zero_out"),
        PoissonSteps(1.5, 0.1, 7, 3, "add_remove", nested=False),
        PoissonSteps(1.5, 0.1, 7, 3, "add_remove", holder="second"),
    ],
)
def test_events_survive_a_ledger(event) -> None:
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event


def test_an_event_of_a_later_version_is_refused() -> None:
    with pytest.raises(ValueError, match="'laplace' is not known to this version"):
        event_from_dict({"kind": "laplace", "scale": 1.0})


@pytest.mark.parametrize("mu_squared", [-1.0, math.inf, math.nan])
def test_a_gaussian_release_is_finite(mu_squared: float) -> None:
    with pytest.raises(ValueError, match="mu_squared is"):
        GaussianRelease(mu_squared)


@pytest.mark.parametrize(
    ("scenario", "pairs", "shift"),
    [
        (TwoWorldScenario(3), ((3, 3),), 6),
        (TwoWorldScenario(3, adjacency="zero_out"), ((3, 0),), 3),
        (TwoWorldScenario((2, 1), adjacency="zero_out"), ((2, 1),), 3),
        (TwoWorldScenario(2, adjacency="add_remove", nested=False), ((2, 0), (1, 1), (0, 2)), 2),
    ],
)
def test_what_differing_records_can_do(scenario: TwoWorldScenario, pairs, shift: int) -> None:
    event = PoissonSteps.of(scenario, rate=0.1, noise_multiplier=2.0, num_steps=5)
    assert event.pairs == pairs
    assert event.mu_squared == 5 * (shift / 2.0) ** 2
