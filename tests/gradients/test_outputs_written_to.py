"""Layers whose output is written to in place, as by `nn.ReLU(inplace=True)` or a mask token, keep their gradient."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_pac.gradients import flat_sum, make_engine

WRITES: dict[str, Callable[[Tensor], object]] = {
    "relu": lambda hidden: F.relu(hidden, inplace=True),
    "scale": lambda hidden: hidden.mul_(2.0),
    "mask": lambda hidden: hidden.masked_fill_(hidden > 0.5, 0.0),
    "entry": lambda hidden: hidden.__setitem__((slice(None), 0), 0.0),
    "part": lambda hidden: hidden[:, 0].mul_(3.0),
    "parameter": lambda hidden: hidden[:, 1].add_(TOKEN),
}
TOKEN = nn.Parameter(torch.full((4,), 0.3))

# Torch returns a view for more than two dimensions of all but the last.
LAYERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda hidden, weight: F.linear(hidden, weight, weight[:, 0]),
    "einsum": lambda hidden, weight: torch.einsum("bti,oi->bto", hidden, weight),
    "permuted": lambda hidden, weight: torch.einsum("bti,oi->bot", hidden, weight).transpose(1, 2),
    "tensordot": lambda hidden, weight: torch.tensordot(hidden, weight.t(), 1),
    "instance norm": lambda hidden, weight: F.instance_norm(
        hidden.repeat(1, 1, 2)[..., :4].transpose(1, 2), None, None, weight[:, 0], weight[:, 1]
    ).transpose(1, 2),
    "product": lambda hidden, weight: hidden @ weight.t(),
}


class Written(nn.Module):
    def __init__(self, layer: str, write: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.after = nn.Linear(3, 3), nn.Linear(4, 2)
        self.weight, self.token = nn.Parameter(torch.randn(4, 3)), TOKEN
        self.layer, self.write = LAYERS[layer], WRITES[write]

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layer(self.before(inputs).tanh(), self.weight)
        self.write(hidden)
        return self.after(hidden.sin())


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("layer", LAYERS)
def test_an_output_that_is_written_to_keeps_its_layers_gradient(layer: str, write: str) -> None:
    model, inputs = Written(layer, write), torch.randn(4, 5, 3)

    def losses() -> Tensor:
        return model(inputs).square().mean((1, 2))

    parameters = list(model.parameters())
    alone = [
        torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        for loss in losses()
    ]
    rows = torch.stack([torch.cat([gradient.reshape(-1) for gradient in gradients]) for gradients in alone])
    norm = float(rows.norm(dim=1).median())
    expected = (rows * (norm / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(0)
    engine = make_engine()
    engine.attach(model)
    try:
        losses().mean().backward()
        sums, _ = engine.clipped_sum(norm)
    finally:
        engine.detach()
    # Norms are raised a little for what rounding may take from them.
    assert float((flat_sum(sums) - expected).norm()) < 2e-3 * float(expected.norm())
