"""Runs over a wide range of noise, and whether they beat the majority class: the data behind the learning warning.

    python benchmarks/learning_warning.py --data-root FOLDER --output runs.jsonl [--seed 1] [--data digits]

FOLDER holds `adult/adult.data.gz` and MNIST as `mnist/train-images-idx3-ubyte.gz` and so on; the other data come with
scikit-learn or are drawn. For each of five data sets and two models, six runs draw steps, batch size and noise.
"""

import argparse
import csv
import gzip
import json
import logging
import math
import random
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, Poisson, TwoWorldScenario
from lightning_pac.exceptions import PrivacyViolationError

REPEATS = 6
DATA = ("digits", "adult", "breast cancer", "mnist", "synthetic")


class Model(pl.LightningModule):
    """A network under cross entropy."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Mean loss of a batch."""
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        """Plain SGD, whose length of step is that of the noise."""
        return torch.optim.SGD(self.parameters(), lr=0.5)


def load(name: str, root: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features, standardized, and labels."""
    if name == "digits":
        features, labels = load_digits(return_X_y=True)
    elif name == "breast cancer":
        features, labels = load_breast_cancer(return_X_y=True)
    elif name == "synthetic":
        features, labels = make_classification(6000, 20, n_informative=8, n_classes=3, class_sep=1.5, random_state=0)
    elif name == "mnist":
        pixels, labels = (
            np.frombuffer(gzip.decompress((root / "mnist" / f"train-{part}-ubyte.gz").read_bytes()), np.uint8)[skip:]
            for part, skip in (("images-idx3", 16), ("labels-idx1", 8))
        )
        features = pixels.reshape(-1, 784)[:12_000] / 255.0
        return (features - 0.13) / 0.31, labels[:12_000].astype(int)
    else:
        with gzip.open(root / "adult" / "adult.data.gz", "rt") as lines:
            rows = [row for row in csv.reader(lines, skipinitialspace=True) if len(row) == 15]
        labels = np.array([row[-1].startswith(">50K") for row in rows], dtype=int)
        columns = []
        for column in zip(*(row[:-1] for row in rows), strict=True):
            try:
                columns.append(np.array(column, dtype=float)[:, None])
            except ValueError:
                columns.append((np.array(column)[:, None] == np.unique(column)).astype(float))
        features = np.hstack(columns)
    deviation = features.std(axis=0)
    return (features - features.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0), labels


def run(name: str, hidden: bool, features: np.ndarray, labels: np.ndarray, choice: random.Random) -> dict[str, Any]:
    """One private fit and its accuracy on a fifth of the records."""
    classes, width = int(labels.max()) + 1, features.shape[1]
    order = np.random.default_rng(choice.getrandbits(32)).permutation(len(labels))
    test, train = np.split(order, [len(order) // 5])
    network = (
        nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, classes)) if hidden else nn.Linear(width, classes)
    )
    parameters = sum(parameter.numel() for parameter in network.parameters())
    steps = choice.choice([25, 50, 100, 200])
    batch = choice.choice([size for size in (32, 64, 128, 256, 512) if size <= len(train) / 2])
    strength = math.exp(choice.uniform(math.log(0.1), math.log(50)))  # of all steps together
    noise = batch * math.sqrt(steps) / (strength * math.sqrt(parameters))
    dataset = TensorDataset(torch.tensor(features[train]).float(), torch.tensor(labels[train]))
    private = SRPPSGD(TwoWorldScenario(1), noise_multiplier=noise, sampling=Poisson(batch / len(train)), renyi_order=16)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_steps=steps,
            max_epochs=-1,
            accelerator="cpu",
            callbacks=[private],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        model = Model(network)
        trainer.fit(model, DataLoader(dataset, batch_size=batch))
    with torch.no_grad():
        guessed = model.network(torch.tensor(features[test]).float()).argmax(dim=1).numpy()
    return {
        "data": name,
        "model": "hidden" if hidden else "linear",
        "records": len(train),
        "width": width,
        "classes": classes,
        "parameters": parameters,
        "steps": steps,
        "batch": batch,
        "noise": noise,
        "ratio": batch / (noise * math.sqrt(parameters)),
        "strength": strength,
        "accuracy": float((guessed == labels[test]).mean()),
        "majority": float(np.bincount(labels[test]).max() / len(test)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="another seed draws fresh runs")
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with args.output.open("w") as output:
        for name in args.data:
            choice = random.Random(f"{args.seed} {name}")
            features, labels = load(name, args.data_root)
            for hidden in (False, True):
                done = 0
                while done < REPEATS:
                    pl.seed_everything(choice.getrandbits(32), verbose=False)
                    try:
                        result = run(name, hidden, features, labels, choice)
                    except (RuntimeError, PrivacyViolationError) as error:  # diverged: another draw
                        print(f"{name} ended with {error}", file=sys.stderr)
                        continue
                    done += 1
                    print(json.dumps(result), file=output, flush=True)
                    print(
                        f"{name} {result['strength']:.3g} {result['accuracy'] - result['majority']:+.3f}",
                        file=sys.stderr,
                    )


if __name__ == "__main__":
    main()
