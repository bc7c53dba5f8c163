import pytest
import torch
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
    assert fixed.num_groups == 24
    assert torch.equal(fixed.weight, norm.weight)
    assert fix_batch_norm(nn.BatchNorm2d(7, affine=False)).num_groups == 7
    assert fix_batch_norm(nn.BatchNorm2d(37)).num_groups == 1


def test_a_layer_without_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="run the model once on a batch of zeros"):
        fix_batch_norm(nn.Sequential(nn.LazyBatchNorm1d()))
