"""Handwritten digits, and the network of one member."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

NUM_POOL = 1200


def make_network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digits() -> tuple[TensorDataset, TensorDataset]:
    """The pool to protect, and images that clients ask about."""
    data = load_digits()
    images = torch.tensor(data.data / 16, dtype=torch.float32)
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    pool, asked = order[:NUM_POOL], order[NUM_POOL:]
    return TensorDataset(images[pool], labels[pool]), TensorDataset(images[asked], labels[asked])
