"""Predict from a table, privately for each of its people.

    python examples/tabular/demo.py
    python examples/tabular/demo.py --data-root data

With --data-root the table is Adult (`adult/adult.data`, `.test` and `.names` of the UCI repository), and the question
is who earns more than 50,000 dollars. Without it, the table is scikit-learn's breast cancer data.
"""

import argparse
import re
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, Poisson, TwoWorldScenario

# What a continuous column of Adult may hold. Taken from the private rows, the largest value would tell whose it is.
RANGES = {
    "age": (0, 100),
    "education-num": (0, 16),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 5_000),
    "hours-per-week": (0, 100),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="folder that holds the folder adult")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=8.0, help="Rényi epsilon of order 16 for one person")
    parser.add_argument("--output", type=Path, default=Path("runs/tabular"))
    args = parser.parse_args()
    train_set, test_set = adult(args.data_root / "adult") if args.data_root else breast_cancer()

    # Constants: computed from the number of rows they would tell it, and under differential privacy it is secret.
    sampling = Poisson(rate=0.05, batch_size=1600) if args.data_root else Poisson(rate=0.25, batch_size=100)
    private = SRPPSGD(TwoWorldScenario.differential_privacy(), epsilon=args.epsilon, renyi_order=16, sampling=sampling)
    ordinary_accuracy = train(train_set, test_set, args, sampling.batch_size, [])
    private_accuracy = train(train_set, test_set, args, sampling.batch_size, [private])
    run = private.account
    epsilon, _ = run.accountant.epsilon_at_delta(run.noise_multiplier, run.num_steps, delta=1e-5)
    majority = float(test_set.tensors[1].float().mean().sub(0.5).abs()) + 0.5
    print(f"always the same answer   {majority:.3f}")
    print(f"ordinary training        {ordinary_accuracy:.3f}")
    print(f"private training         {private_accuracy:.3f}")
    print(f"differential privacy     epsilon {epsilon:.2f} at delta 1e-5")


class Logistic(pl.LightningModule):
    """Logistic regression, written as for any other Lightning project."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.network = nn.Linear(num_features, 2)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        features, labels = batch
        return nn.functional.cross_entropy(self.network(features), labels)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        features, labels = batch
        self.log("test_accuracy", (self.network(features).argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


def train(
    train_set: TensorDataset,
    test_set: TensorDataset,
    args: argparse.Namespace,
    batch_size: int,
    callbacks: list[pl.Callback],
) -> float:
    """Fit with the callbacks and return the test accuracy."""
    pl.seed_everything(0, verbose=False)  # public; noise and draws of private batches come from elsewhere
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        callbacks=callbacks,
        default_root_dir=args.output,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Logistic(train_set.tensors[0].shape[1])
    trainer.fit(model, DataLoader(train_set, batch_size=batch_size, shuffle=True))
    tested = trainer.test(model, DataLoader(test_set, batch_size=len(test_set)), verbose=False)
    return tested[0]["test_accuracy"]


def breast_cancer() -> tuple[TensorDataset, TensorDataset]:
    """569 tumours with 30 measurements, scaled by the ranges that the description of the table publishes."""
    table = load_breast_cancer()
    ranges = np.array(re.findall(r"^[a-z() ]+: +([0-9.]+) +([0-9.]+)$", table.DESCR, re.MULTILINE), dtype=float)
    features = 2 * (table.data - ranges[:, 0]) / (ranges[:, 1] - ranges[:, 0]) - 1
    order = np.random.default_rng(0).permutation(len(features))
    records = torch.tensor(features[order], dtype=torch.float32), torch.tensor(table.target[order])
    return TensorDataset(*(part[:440] for part in records)), TensorDataset(*(part[440:] for part in records))


def adult(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """The census table: its categories, which `adult.names` publishes, and its numbers, scaled by public ranges."""
    columns = dict(re.findall(r"^([a-z-]+): (.+)\.$", (folder / "adult.names").read_text(), re.MULTILINE))
    sets = []
    for file in ("adult.data", "adult.test"):
        rows = [line.rstrip(".").split(", ") for line in (folder / file).read_text().splitlines() if ", " in line]
        parts = []
        for (name, kind), cells in zip(columns.items(), list(zip(*rows, strict=True))[:-1], strict=True):
            if name in RANGES:
                low, high = RANGES[name]
                parts.append((np.clip(np.array(cells, dtype=float), low, high)[:, None] - low) / (high - low))
            elif kind != "continuous":
                parts.append(np.array(cells)[:, None] == np.array(kind.split(", ")))
        labels = [row[-1] == ">50K" for row in rows]
        features = torch.tensor(np.concatenate(parts, axis=1), dtype=torch.float32)
        sets.append(TensorDataset(features, torch.tensor(labels, dtype=torch.int64)))
    return sets[0], sets[1]


if __name__ == "__main__":
    main()
