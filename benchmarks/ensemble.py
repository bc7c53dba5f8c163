"""128 digit classifiers: one fit of `SubsetEnsemble` against 128 Trainer fits, in one process.

Both train the same perceptron with the same optimizer, epochs and batches: those of an ordinary fit are the shared ones
restricted to its subset, half as large on average. So each pair must agree, but for the order of floating-point sums.

    python benchmarks/ensemble.py --output runs/ensemble.json
"""

import argparse
import functools
import json
import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac.data import WithIndex
from lightning_pac.modules import SubsetEnsemble
from lightning_pac.scenarios import BalancedSubsets

TRAINER = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}


class Classifier(pl.LightningModule):
    """What a user without this package would train 128 times."""

    def __init__(self, make_optimizer: Any) -> None:
        super().__init__()
        self.network = make_network()
        self.make_optimizer = make_optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch."""
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        """The same optimizer as the ensemble's."""
        return self.make_optimizer(self.parameters())


class Batches:
    """The shared batches of every epoch, restricted to some records; a batch sampler."""

    def __init__(self, num_records: int, batch_size: int, kept: Tensor | None = None) -> None:
        self.num_records, self.batch_size = num_records, batch_size
        self.kept = torch.ones(num_records, dtype=torch.bool) if kept is None else kept
        self.epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.num_records, generator=torch.Generator().manual_seed(self.epoch))
        self.epoch += 1
        for batch in order.split(self.batch_size):
            yield batch[self.kept[batch]].tolist()

    def __len__(self) -> int:
        return -(-self.num_records // self.batch_size)


def make_network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def digits() -> tuple[TensorDataset, Tensor, Tensor]:
    """A fixed split of scikit-learn's digits: 1,437 for the pool, 360 for the test."""
    data = load_digits()
    inputs, labels = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    pool, test = order[:1437], order[1437:]
    return TensorDataset(inputs[pool], labels[pool]), inputs[test], labels[test]


def compare(num_members: int, epochs: int, batch_size: int) -> dict[str, Any]:
    train, inputs, labels = digits()
    pool = BalancedSubsets(len(train), num_members, seed=0)
    optimizer = functools.partial(torch.optim.Adam, lr=3e-3)

    # The first fit of a process pays for imports and thread pools.
    pl.Trainer(max_epochs=1, **TRAINER).fit(Classifier(optimizer), DataLoader(train, batch_size))

    torch.manual_seed(0)
    start = time.perf_counter()
    ensemble = SubsetEnsemble(make_network, pool, optimizer=optimizer)
    loader = DataLoader(WithIndex(train), batch_sampler=Batches(len(train), batch_size))
    pl.Trainer(max_epochs=epochs, **TRAINER).fit(ensemble, loader)
    together = time.perf_counter() - start
    accuracy = (ensemble.eval().votes(inputs) == labels[:, None]).double().mean(0)

    alone, accuracy_alone = 0.0, []
    for index in range(num_members):
        torch.manual_seed(0)
        start = time.perf_counter()
        classifier = Classifier(optimizer)
        own = Batches(len(train), batch_size, torch.from_numpy(pool.membership(index)))
        pl.Trainer(max_epochs=epochs, **TRAINER).fit(classifier, DataLoader(train, batch_sampler=own))
        alone += time.perf_counter() - start
        predicted = classifier.network(inputs).argmax(1)
        accuracy_alone.append((predicted == labels).double().mean().item())
    others = torch.tensor(accuracy_alone, dtype=torch.float64)
    return {
        "members": num_members,
        "epochs": epochs,
        "batch_size": batch_size,
        "seconds_one_fit": together,
        "seconds_all_fits": alone,
        "times_faster": alone / together,
        "accuracy_one_fit": accuracy.mean().item(),
        "accuracy_all_fits": others.mean().item(),
        "largest_difference_of_a_pair": (accuracy - others).abs().max().item(),
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning.*")
    result = compare(args.members, args.epochs, args.batch_size)
    print(json.dumps(result, indent=2))
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
