"""What the noise of a run lets a model learn."""

import math

import pytest
import torch

from lightning_pac.accountants import LARGE_RATE, fitting_rate


def _accuracy(ratio: float, multiple: float, momentum: float, norm: float) -> float:
    """Logistic regression on drawn records by clipped gradients with noise, written out."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3000, 20, generator=generator, dtype=torch.float64) / math.sqrt(20)
    direction = torch.randn(20, generator=generator, dtype=torch.float64)
    labels = (features @ direction > 0).double()
    x, y, test_x, test_y = features[:2000], labels[:2000], features[2000:], labels[2000:]
    rate, batch, found = multiple * fitting_rate(ratio, momentum, norm), 400, []
    for _ in range(8):
        weights, velocity = torch.zeros(20, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
        for _ in range(60):
            drawn = torch.randint(2000, (batch,), generator=generator)
            gradients = (torch.sigmoid(x[drawn] @ weights) - y[drawn])[:, None] * x[drawn]
            clipped = gradients * (norm / gradients.norm(dim=1)).clamp(max=1)[:, None]
            deviation = batch * norm / (ratio * math.sqrt(20))
            noise = deviation * torch.randn(20, generator=generator, dtype=torch.float64)
            velocity = momentum * velocity + (clipped.sum(dim=0) + noise) / batch
            weights -= rate * velocity
        found.append(float(((test_x @ weights > 0) == (test_y > 0)).double().mean()))
    return sum(found) / len(found)


@pytest.mark.parametrize(("momentum", "norm"), [(0.0, 0.2), (0.9, 0.05)])
@pytest.mark.parametrize("ratio", [0.5, 1.5])
def test_the_fitting_rate_beats_the_one_that_is_warned_of(ratio: float, momentum: float, norm: float) -> None:
    assert _accuracy(ratio, 1.0, momentum, norm) > _accuracy(ratio, LARGE_RATE, momentum, norm) + 0.03
