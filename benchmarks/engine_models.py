"""The models of the engine benchmark, each with one synthetic batch and its loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    """A model and the batch it is measured with."""

    make: Callable[[], nn.Module]
    make_batch: Callable[[int], tuple[Tensor, Tensor]]
    batch_size: int


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with group normalization and a projection where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int, activation: type[nn.Module], affine: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(min(16, out // 4), out, affine=affine) for _ in range(2))
        self.activation = activation()
        changes = channels != out or stride != 1
        self.shortcut = nn.Conv2d(channels, out, 1, stride, bias=False) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, height, width) to maps."""
        inner = self.activation(self.norms[0](self.first(x)))
        return self.activation(self.norms[1](self.second(inner)) + self.shortcut(x))


def residual_network(widths: list[int], blocks: int, activation: type[nn.Module], affine: bool) -> nn.Module:
    stem = widths[0]
    layers: list[nn.Module] = [nn.Conv2d(3, stem, 3, padding=1, bias=False), nn.GroupNorm(4, stem, affine=affine)]
    layers.append(activation())
    channels = stem
    for stage, width in enumerate(widths[1:]):
        for index in range(blocks):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(ResidualBlock(channels, width, stride, activation, affine))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def resnet22() -> nn.Module:
    """Three stages of three blocks at 16, 32 and 64 channels, group normalization without parameters, ELU."""
    return residual_network([16, 16, 32, 64], 3, nn.ELU, affine=False)


def wide_resnet_16_4() -> nn.Module:
    """Three stages of two blocks at 64, 128 and 256 channels, group normalization with parameters."""
    return residual_network([16, 64, 128, 256], 2, nn.ReLU, affine=True)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


class Transformer(nn.Module):
    """Two encoder layers of width 128 with four heads over an embedding of 5,000."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (n, length) to scores (n, 10)."""
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def frozen_backbone() -> nn.Module:
    """A ResNet-22 of which only a new head is trained."""
    model = resnet22()
    model.requires_grad_(False)
    model[-1] = nn.Linear(64, 10)
    return model


def images(batch_size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch_size, 3, 32, 32), torch.randint(10, (batch_size,))


def vectors(batch_size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch_size, 784), torch.randint(10, (batch_size,))


def sentences(batch_size: int) -> tuple[Tensor, Tensor]:
    return torch.randint(5000, (batch_size, 64)), torch.randint(10, (batch_size,))


WORKLOADS = {
    "resnet22-64": Workload(resnet22, images, 64),
    "resnet22-256": Workload(resnet22, images, 256),
    "perceptron-256": Workload(perceptron, vectors, 256),
    "transformer-32": Workload(Transformer, sentences, 32),
    "wide-resnet-32": Workload(wide_resnet_16_4, images, 32),
    "frozen-backbone-64": Workload(frozen_backbone, images, 64),
}
