"""The curve of several records from that of one: against pairs of which the truth for several is known."""

import math

import numpy as np
import pytest

from lightning_pac.accountants import GaussianCurve, PrivacyCurve
from lightning_pac.accountants.privacy_loss.group_curve import group_curve


class RandomizedResponse(PrivacyCurve):
    """A coin that is right with probability `e^eps / (1 + e^eps)`."""

    def __init__(self, loss: float) -> None:
        self.loss = loss

    def delta(self, epsilon: float) -> float:
        return max(0.0, (math.exp(self.loss) - math.exp(epsilon)) / (1 + math.exp(self.loss)))

    def epsilon(self, delta: float) -> float:
        raise NotImplementedError

    def error_bounds(self, false_positive_rate: float) -> tuple[float, float]:
        raise NotImplementedError


@pytest.mark.parametrize(("mu", "number"), [(0.1, 10), (1.0, 2), (0.01, 200), (0.8, 4), (0.4, 1)])
def test_gaussians_add_their_distances(mu: float, number: int) -> None:
    # Worlds at distance mu, d times in a row, are at distance d mu: the chain is attained.
    bound, truth = group_curve(GaussianCurve(mu), number), GaussianCurve(mu * number)
    for delta in (1e-2, 1e-5, 1e-9):
        assert truth.epsilon(delta) <= bound.epsilon(delta) <= 1.001 * truth.epsilon(delta)
    assert truth.success_bound() <= bound.success_bound() <= truth.success_bound() + 2e-4
    for rate in (1e-6, 0.01, 0.3):
        assert truth.trade_off(rate) * (1 - 2e-3) - 1e-3 <= bound.trade_off(rate) <= truth.trade_off(rate)


@pytest.mark.parametrize("number", [2, 3, 7])
def test_coins_are_put_into_each_other(number: int) -> None:
    # The largest power at false alarms a is the least of e^eps a and 1 - e^-eps (1 - a), put into itself.
    loss = 0.3
    alarms = power = np.concatenate([np.logspace(-12, -2, 4001), np.linspace(0.01, 1.0, 400_001)])
    for _ in range(number):
        power = np.minimum(math.exp(loss) * power, 1 - math.exp(-loss) * (1 - power))
    bound = group_curve(RandomizedResponse(loss), number)
    for epsilon in (0.0, 0.2, 0.55, 1.4):
        truth = float((power - math.exp(epsilon) * alarms).max())
        assert truth - 1e-12 <= bound.delta(epsilon) <= truth + 2e-4
