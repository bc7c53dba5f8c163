import copy
from typing import Any

import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

from lightning_pac.gradients.refusals import refuse_mixing_layers
from lightning_pac.modules import fix_batch_norm


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(12)
        self.again = self.norm
        self.layers = nn.ModuleList(
            [nn.Conv2d(3, 12, 3), nn.SyncBatchNorm(12), nn.InstanceNorm2d(12, track_running_stats=True)]
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.again(self.norm(self.layers[2](self.layers[1](self.layers[0](inputs)))))


def test_no_layer_mixes_records_afterwards() -> None:
    model = Block()
    with pytest.raises(ValueError, match="normalizes over the batch"):
        refuse_mixing_layers(model)
    assert fix_batch_norm(model) is model
    refuse_mixing_layers(model)
    assert model.norm is model.again
    inputs = torch.randn(6, 3, 8, 8)
    assert torch.allclose(model(inputs)[:2], model(inputs[:2]), atol=1e-5)


def test_groups_divide_the_channels_and_the_scale_is_kept() -> None:
    norm = nn.BatchNorm1d(48)
    nn.init.uniform_(norm.weight)
    fixed = fix_batch_norm(norm)
    assert isinstance(fixed, nn.GroupNorm)
    assert torch.equal(fixed.weight, norm.weight)


@pytest.mark.parametrize("channels", range(1, 300))
def test_a_group_has_eight_channels_or_is_the_only_one(channels: int) -> None:
    groups = fix_batch_norm(nn.BatchNorm2d(channels, affine=False)).num_groups
    assert channels % groups == 0
    assert groups == 1 or channels // groups >= 8
    assert groups <= 32


def test_one_channel_needs_several_positions() -> None:
    fixed = fix_batch_norm(nn.Sequential(nn.BatchNorm2d(1)))
    fixed(torch.randn(5, 1, 2, 1))
    with pytest.raises(ValueError, match="given a single value of each record"):
        copy.deepcopy(fixed)(torch.randn(5, 1, 1, 1))


def table() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def image() -> nn.Module:
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(32), nn.Flatten(), nn.Linear(32, 10))
    first = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(first, nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), pooled)


def small_table() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))


@pytest.mark.parametrize(
    ("make", "load"),
    [(table, load_digits), pytest.param(image, load_digits, marks=pytest.mark.slow), (small_table, load_breast_cancer)],
)
def test_the_replaced_network_learns_as_well(make: Any, load: Any) -> None:
    inputs, labels = map(torch.as_tensor, load(return_X_y=True))
    inputs = ((inputs - inputs.mean(0)) / (inputs.std(0) + 1e-3)).float()
    torch.manual_seed(0)
    order, network = torch.randperm(len(inputs)), make()
    held_out, rest = order[: len(order) // 3], order[len(order) // 3 :]
    accuracy = []
    for model in (copy.deepcopy(network), fix_batch_norm(network)):
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        for _ in range(15):
            for batch in rest[torch.randperm(len(rest))].split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
                optimizer.step()
        predicted = model.eval()(inputs[held_out]).argmax(1)
        accuracy.append(float((predicted == labels[held_out]).float().mean()))
    assert accuracy[1] >= accuracy[0] - 0.02


def test_a_layer_without_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="run the model once on a batch of zeros"):
        fix_batch_norm(nn.Sequential(nn.LazyBatchNorm1d()))


def test_an_activation_that_a_layer_holds_is_kept() -> None:
    """As of timm's layers: without it, a network would be linear, and nothing would say so."""
    from timm.layers import BatchNormAct2d

    layer = BatchNormAct2d(16)
    inputs = torch.randn(4, 16, 3, 3)
    fixed = fix_batch_norm(nn.Sequential(layer))[0]
    assert torch.allclose(fixed(inputs), torch.relu(nn.functional.group_norm(inputs, 2)), atol=1e-6)
    assert fixed.state_dict().keys() == {"weight", "bias"}


def test_a_layer_that_computes_more_is_refused() -> None:
    class Squared(nn.BatchNorm1d):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) ** 2

    with pytest.raises(ValueError, match="Squared computes more than batch normalization"):
        fix_batch_norm(nn.Sequential(Squared(8)))
