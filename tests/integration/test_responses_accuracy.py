"""Accuracy of private responses against the budget, on real digits: the shape of the paper's Tables 3 and 6."""

import functools
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac.data import WithIndex
from lightning_pac.mechanisms import AdaptiveComposition
from lightning_pac.modules import SubsetEnsemble
from lightning_pac.scenarios import BalancedSubsets

NUM_MEMBERS, NUM_POOL, TRIALS = 32, 1437, 16


@pytest.mark.slow
def test_votes_stay_accurate_where_scores_do_not(tmp_path: Path) -> None:
    data = load_digits()
    images, labels = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    optimizer = functools.partial(torch.optim.Adam, lr=5e-3)
    ensemble = SubsetEnsemble(
        lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
        BalancedSubsets(NUM_POOL, NUM_MEMBERS, seed=0),
        optimizer=optimizer,
    )
    torch.manual_seed(0)
    loader = DataLoader(WithIndex(TensorDataset(images[:NUM_POOL], labels[:NUM_POOL])), batch_size=64, shuffle=True)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    pl.Trainer(max_epochs=12, accelerator="cpu", default_root_dir=tmp_path, **quiet).fit(ensemble, loader)
    with torch.no_grad():
        scores = ensemble.eval()(images[NUM_POOL:]).softmax(-1).double().numpy()
    votes, truth = scores.argmax(-1), labels[NUM_POOL:].numpy()

    def accuracy(outputs: np.ndarray, exponent: int, num_queries: int) -> float:
        right = []
        for trial in range(TRIALS):
            composition = AdaptiveComposition(np.full(NUM_MEMBERS, 1 / NUM_MEMBERS), secret=2 * trial)
            asked = np.random.default_rng(trial).permutation(len(truth))[:num_queries]
            answers = composition.release_batch(outputs[asked], 2.0**-exponent).labels
            right.append((answers == truth[asked]).mean())
        return float(np.mean(right))

    without_noise = float((votes == truth[:, None]).mean())
    small, tiny = (accuracy(votes, exponent, 360) for exponent in (16, 32))
    # One answer in six is a draw, so 16 trials of 360 have a standard error below 0.005: the margins are 8 of them.
    assert without_noise > 0.9
    assert abs(small - tiny) < 0.04
    assert tiny > without_noise - 0.15
    # Scores, 16 trials of 60: a standard error of at most 0.016, and the gap is about 0.5.
    assert accuracy(scores, 32, 60) < tiny - 0.25
    assert accuracy(scores, 4, 60) > without_noise - 0.12
