import pytest
import torch
from torch import nn

from lightning_pac.callbacks.srpp_sgd.step.released_gradient import ReleasedGradient
from lightning_pac.exceptions import PrivacyViolationError

OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, 0.1),
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1),
    lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, 0.1, centered=True),
    lambda p: torch.optim.Adagrad(p, 0.1, maximize=True),
    lambda p: torch.optim.NAdam(p, 0.1),
    lambda p: torch.optim.RAdam(p, 0.1, foreach=True),
]


def written() -> tuple[nn.Linear, ReleasedGradient, torch.Tensor]:
    layer = nn.Linear(3, 2)
    gradient = ReleasedGradient(dict(layer.named_parameters()))
    values = torch.arange(8, dtype=torch.float64)
    gradient.write(values)
    return layer, gradient, values


def test_the_flat_release_is_written_in_order() -> None:
    layer, gradient, values = written()
    assert torch.equal(layer.weight.grad, values[:6].view(2, 3).float())
    assert torch.equal(layer.bias.grad, values[6:].float())
    gradient.verify()


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_ordinary_optimizers_leave_the_gradient_intact(make) -> None:
    layer, gradient, values = written()
    optimizer = make(layer.parameters())
    for _ in range(3):
        optimizer.step()
        gradient.verify()
        gradient.write(values)


def test_nesterov_with_foreach_uses_gradients_up() -> None:
    """Then the gradient is checked before the update, which is made in it, and only its identity after it."""
    layer, gradient, values = written()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9, nesterov=True, foreach=True)
    for _ in range(3):
        gradient.check()
        optimizer.step()
        with pytest.raises(PrivacyViolationError, match="changed in place"):
            gradient.check()
        gradient.write(values)
        gradient.check()
        optimizer.step()
        gradient.verify(used_up=True)
        gradient.write(values)


def scale(layer: nn.Linear) -> None:
    layer.weight.grad.mul_(0.5)


def replace(layer: nn.Linear) -> None:
    layer.weight.grad = layer.weight.grad.clone()


def drop(layer: nn.Linear) -> None:
    layer.weight.grad = None


def bypass(layer: nn.Linear) -> None:
    layer.weight.grad.numpy()[0, 0] = 7.0


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (scale, "'weight' was changed in place before the optimizer used it"),
        (replace, "'weight' was replaced"),
        (drop, "'weight' was replaced"),
        (bypass, "'weight' was changed behind torch's back"),
    ],
)
def test_tampering_is_noticed(tamper, message: str) -> None:
    layer, gradient, _ = written()
    tamper(layer)
    with pytest.raises(PrivacyViolationError, match=message):
        gradient.verify()


def test_gradients_of_another_precision_are_written_in_it() -> None:
    layer = nn.Linear(3, 2).bfloat16()
    gradient = ReleasedGradient(dict(layer.named_parameters()))
    gradient.write(torch.ones(8, dtype=torch.float64))
    assert layer.weight.grad.dtype == torch.bfloat16
    gradient.verify()
