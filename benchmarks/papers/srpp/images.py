"""CIFAR-10 for the training experiments of the SRPP paper: the records, the paper's ResNet-22, and a small stand-in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

# Statistics of ImageNet: those of the private images would be a release.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load_split(root: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images, shape (n, 3, 32, 32), and labels of `train` or `test`.

    Reads `cifar10_{train,test}.npz` (arrays x and y) where `root` has them; otherwise torchvision's copy, downloaded
    to `root`.
    """
    path = root / f"cifar10_{split}.npz"
    if path.exists():
        with np.load(path) as arrays:
            pixels, labels = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    else:
        from torchvision.datasets import CIFAR10

        data = CIFAR10(str(root), train=split == "train", download=True)
        pixels, labels = torch.from_numpy(data.data).permute(0, 3, 1, 2), torch.tensor(data.targets)
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
    return (pixels / 255 - mean) / deviation, labels


class ResNet22(nn.Module):
    """The paper's network: three stages of three residual blocks with 16, 32 and 64 channels, 268,346 parameters.

    ELU, GroupNorm with four groups and no affine part, option-A shortcuts (subsampling and zero channels), and each
    record's features standardized before the linear layer.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        channels = (16, 32, 64)
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), _normalize(16), nn.ELU()]
        inputs = 16
        for stage, outputs in enumerate(channels):
            for block in range(3):
                layers.append(Residual(inputs, outputs, stride=2 if stage and not block else 1))
                inputs = outputs
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.head.bias)

    @override
    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(standardize(self.features(images)))
        return logits


class Residual(nn.Module):
    """Two convolutions around a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, outputs - inputs
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.normalize_first, self.normalize_second = _normalize(outputs), _normalize(outputs)

    @override
    def forward(self, images: Tensor) -> Tensor:
        hidden = nn.functional.elu(self.normalize_first(self.first(images)))
        shortcut = images[:, :, :: self.stride, :: self.stride]
        if self.extra:
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return nn.functional.elu(self.normalize_second(self.second(hidden)) + shortcut)


@torch.no_grad()
def random_features(images: Tensor, num_filters: int = 128) -> Tensor:
    """Pooled responses to fixed random filters, shape (n, 8 * num_filters): what the reduced setting classifies.

    The filters come from a public seed, so the features of a record depend on that record only.
    """
    generator = torch.Generator().manual_seed(0)
    filters = torch.randn(num_filters, 3, 6, 6, generator=generator)
    filters -= filters.mean(dim=(1, 2, 3), keepdim=True)
    filters /= filters.flatten(1).norm(dim=1)[:, None, None, None]
    parts = []
    for part in images.split(500):
        responses = nn.functional.conv2d(part, filters)
        both = torch.cat([(responses - 1).relu(), (-responses - 1).relu()], dim=1)
        parts.append(standardize(nn.functional.adaptive_avg_pool2d(both, 2).flatten(1)))
    return torch.cat(parts)


def standardize(features: Tensor) -> Tensor:
    """Each record's features with mean 0 and variance 1."""
    centred = features - features.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()


def _normalize(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(4, channels, affine=False)
