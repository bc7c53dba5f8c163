"""Accuracy with each part of private training alone, at equal (epsilon, delta): (3, 1e-5) for one record.

    python benchmarks/accuracy/parts.py --data-root FOLDER --output FILE.json

Small networks on MNIST (20,000 records), Adult and AG News (hashed words), batches of about 500 by Poisson sampling.
The learning rate of each row is chosen on 5,000 training records that are not trained on; the accuracy is that of the
test records, which choose nothing. Every fit is written to the file at once, and a second call goes on with the rest.
"""

import argparse
import csv
import json
import logging
import statistics
import tempfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.datasets import MNIST
from tqdm import tqdm

from lightning_pac import SRPPSGD, DPAdamBC, Persons, Poisson, TwoWorldScenario

EPSILON, DELTA, BATCH, TUNING, WORDS, GROUP = 3.0, 1e-5, 500, 5_000, 1024, 4
SGD_RATES, ADAM_RATES = (0.05, 0.2, 0.8, 3.2), (0.001, 0.003, 0.01, 0.03)
Split = tuple[torch.Tensor, torch.Tensor]


class Rows(Dataset[Any]):
    """Records with the person that each belongs to, images of them moved by up to two pixels."""

    def __init__(self, data: Split, moves: bool) -> None:
        self.inputs, self.labels = data
        self.moves = moves

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        inputs = self.inputs[index]
        if self.moves:
            inputs = inputs.view(28, 28).roll(torch.randint(-2, 3, (2,)).tolist(), (0, 1)).flatten()
        return inputs, self.labels[index], index // GROUP


class Network(pl.LightningModule):
    """A linear model, or one with a hidden layer for images."""

    def __init__(self, data: Split, make_optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
        super().__init__()
        width, classes = data[0].shape[1], int(data[1].max()) + 1
        images = width == 784
        self.network = (
            nn.Sequential(nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10)) if images else nn.Linear(width, classes)
        )
        self.make_optimizer = make_optimizer

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Mean loss of a batch."""
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of the row."""
        return self.make_optimizer(self.parameters())

    def accuracy(self, data: Split) -> float:
        """Share of the records that it classifies rightly."""
        with torch.no_grad():
            return float((self.network(data[0]).argmax(dim=1) == data[1]).float().mean())


def sgd(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, rate, momentum=0.9)


def adam(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, rate)


def adam_bc(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: DPAdamBC(parameters, rate)


# Optimizer, its rates, arguments of SRPPSGD, whether images move, decay of the average, data sets.
ALL = ("mnist", "adult", "ag_news")
ROWS: dict[str, tuple[Any, tuple[float, ...], dict[str, Any], bool, float | None, tuple[str, ...]]] = {
    "plain": (sgd, SGD_RATES, {}, False, None, ALL),
    "auto": (sgd, SGD_RATES, {"max_grad_norm": "auto"}, False, None, ALL),
    "averaged weights": (sgd, SGD_RATES, {}, False, 0.95, ALL),
    "Adam": (adam, ADAM_RATES, {}, False, None, ALL),
    "Adam, corrected": (adam_bc, ADAM_RATES, {}, False, None, ALL),
    "one view": (sgd, SGD_RATES, {}, True, None, ("mnist",)),
    "four views": (sgd, SGD_RATES, {"views": 4}, True, None, ("mnist",)),
    "persons of 4": (sgd, SGD_RATES, {"unit": Persons(2, GROUP)}, False, None, ("mnist", "adult")),
    "num_differing=4": (sgd, SGD_RATES, {"num_differing": GROUP}, False, None, ("mnist", "adult")),
}


def load_mnist(root: Path) -> tuple[Split, Split]:
    sets = [MNIST(root, train=train) for train in (True, False)]
    train, test = ((s.data.reshape(-1, 784).float() / 255 - 0.13, s.targets) for s in sets)
    return (train[0][: 20_000 + TUNING], train[1][: 20_000 + TUNING]), test


def load_adult(root: Path) -> tuple[Split, Split]:
    numeric = {0: 100.0, 4: 16.0, 10: 1e5, 11: 5e3, 12: 100.0}  # public ranges
    rows = []
    for name in ("adult.data", "adult.test"):
        with (root / "adult" / name).open() as file:
            rows.append([row for row in csv.reader(file, skipinitialspace=True) if len(row) == 15])
    names = {}
    for place in (1, 5, 6, 7, 8, 9, 13):
        names |= {(place, value): None for value in sorted({row[place] for part in rows for row in part})}
    column = {key: number for number, key in enumerate(names, len(numeric))}

    def encode(part: list[list[str]]) -> Split:
        found = np.zeros((len(part), len(numeric) + len(column)), dtype=np.float32)
        for i, row in enumerate(part):
            found[i, : len(numeric)] = [float(row[place]) / scale for place, scale in numeric.items()]
            found[i, [column[key] for key in enumerate(row) if key in column]] = 1.0
        return torch.from_numpy(found), torch.tensor([int(row[14].startswith(">50K")) for row in part])

    return encode(rows[0]), encode(rows[1])


def load_ag_news(root: Path) -> tuple[Split, Split]:
    def encode(name: str, most: int) -> Split:
        with (root / "ag_news" / name).open(newline="") as file:
            rows = [row for row in csv.reader(file) if row[0].isdigit()][:most]
        found = np.zeros((len(rows), WORDS), dtype=np.float32)
        for i, row in enumerate(rows):
            for word in " ".join(row[1:]).lower().split():
                found[i, zlib.crc32(word.encode()) % WORDS] += 1.0
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return torch.from_numpy(found), torch.tensor([int(row[0]) - 1 for row in rows])

    return encode("ag_news_train_subset.csv", 10**9), encode("test.csv", 10**9)


def fit(data: Split, row: str, rate: float, seed: int, epochs: int) -> Network:
    make_optimizer, _, given, moves, decay, _ = ROWS[row]
    pl.seed_everything(seed, verbose=False)
    model, arguments = Network(data, make_optimizer(rate)), dict(given)
    scenario = TwoWorldScenario(arguments.pop("num_differing", 1), adjacency="zero_out")
    share = BATCH / len(data[1])  # of persons, too: as many records in a batch
    private = SRPPSGD(scenario, epsilon=EPSILON, delta=DELTA, sampling=Poisson(share), **arguments)
    callbacks = [private, *([] if decay is None else [EMAWeightAveraging(decay=decay)])]
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=epochs, callbacks=callbacks, default_root_dir=folder, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, DataLoader(Rows(data, moves) if moves or "unit" in given else TensorDataset(*data)))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with MNIST, adult and ag_news")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("--sets", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = json.loads(options.output.read_text()) if options.output.exists() else []
    known = {(r["data"], r["row"], r["rate"], r["seed"], r["epochs"]): r for r in found}
    loaders = {"mnist": load_mnist, "adult": load_adult, "ag_news": load_ag_news}
    work = [(name, row) for row in options.rows for name in ROWS[row][5] if name in options.sets]
    loaded = {name: loaders[name](options.data_root) for name in options.sets}
    for name, row in tqdm(work, unit="row"):
        (inputs, labels), test = loaded[name]
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        tuning, private = ((inputs[part], labels[part]) for part in (order[:TUNING], order[TUNING:]))

        def run(rate: float, seed: int) -> dict[str, Any]:
            key = (name, row, rate, seed, options.epochs)  # noqa: B023
            if key not in known:
                model = fit(private, row, rate, seed, options.epochs)  # noqa: B023
                known[key] = dict(zip(("data", "row", "rate", "seed", "epochs"), key, strict=True))
                known[key] |= {"tuning": model.accuracy(tuning), "test": model.accuracy(test)}  # noqa: B023
                options.output.write_text(json.dumps([*known.values()], indent=1) + "\n")
            return known[key]

        best = max(ROWS[row][1], key=lambda rate: run(rate, 0)["tuning"])
        scores = [run(best, seed)["test"] for seed in range(1, options.seeds + 1)]
        error = statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else float("nan")
        print(
            f"{name:<8} {row:<18} rate {best:<6g} {100 * statistics.mean(scores):.2f} +- {100 * error:.2f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
