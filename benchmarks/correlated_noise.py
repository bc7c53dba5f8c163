"""Accuracy under independent and correlated noise at equal (epsilon, delta), for a linear model on random features.

    python benchmarks/correlated_noise.py --data-root FOLDER --output runs/correlated_noise

The settings follow the banded matrix mechanism's own setting: 20,000 of MNIST's records, 600 random cosine features,
batches of 500, ten epochs, momentum 0.9. The learning rate of each row is chosen on 5,000 further training records, the
accuracy is that of the 10,000 test records, which choose nothing.
"""

import argparse
import json
import logging
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import MNIST
from tqdm import tqdm

from lightning_pac import SRPPSGD, Banded, BlockedPoisson, CyclicShuffle, Poisson, TwoWorldScenario

RECORDS, FEATURES, BATCH, EPOCHS, DELTA = 20_000, 600, 500, 10, 1e-5
RATES = (0.03, 0.06, 0.125, 0.25, 0.5, 1.0)
ROWS = {
    "independent noise, one order": {"sampling": CyclicShuffle(BATCH)},
    "4 bands": {"sampling": CyclicShuffle(BATCH), "noise": Banded(4)},
    "16 bands": {"sampling": CyclicShuffle(BATCH), "noise": Banded(16)},
    "40 bands (a pass)": {"sampling": CyclicShuffle(BATCH), "noise": Banded(40)},
    "Poisson, secret": {"sampling": Poisson(BATCH / RECORDS, BATCH)},
    "4 bands, Poisson in 4 blocks": {"sampling": BlockedPoisson(BATCH / RECORDS, 4, BATCH), "noise": Banded(4)},
    "16 bands, Poisson in 16 blocks": {"sampling": BlockedPoisson(BATCH / RECORDS, 16, BATCH), "noise": Banded(16)},
}


class Linear(pl.LightningModule):
    """Softmax regression on the random features."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.layer = nn.Linear(FEATURES, 10, bias=False)
        nn.init.zeros_(self.layer.weight)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Mean loss of a batch."""
        return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), self.rate, momentum=0.9)

    def accuracy(self, data: TensorDataset) -> float:
        """Share of the records that it classifies rightly."""
        with torch.no_grad():
            return float((self.layer(data.tensors[0]).argmax(dim=1) == data.tensors[1]).float().mean())


def make_data(root: Path) -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(784, FEATURES, generator=generator) / 8
    phases = torch.rand(FEATURES, generator=generator) * 2 * torch.pi
    sets = []
    for train in (True, False):
        images = MNIST(root, train=train)
        pixels = images.data.reshape(-1, 784).float() / 255 - 0.13
        sets.append(TensorDataset(torch.cos(pixels @ weights + phases) * (2 / FEATURES) ** 0.5, images.targets))
    order = torch.randperm(len(sets[0]), generator=generator)
    private, tuning = (TensorDataset(*sets[0][part]) for part in (order[:RECORDS], order[RECORDS : RECORDS + 5000]))
    return private, tuning, sets[1]


def train(data: TensorDataset, rate: float, epsilon: float, arguments: dict[str, Any], epochs: int) -> Linear:
    model, scenario = Linear(rate), TwoWorldScenario(num_differing=1, adjacency="zero_out")
    private = SRPPSGD(scenario, epsilon=epsilon, delta=DELTA, **arguments)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=epochs, callbacks=[private], default_root_dir=folder, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, DataLoader(data, batch_size=BATCH))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with torchvision's MNIST")
    parser.add_argument("--output", type=Path, required=True, help="folder for results.json")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 3.0, 8.0])
    parser.add_argument("--seeds", type=int, default=5, help="runs of each row at its chosen rate")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    private, tuning, test = make_data(options.data_root)
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "results.json"
    results = json.loads(file.read_text()) if file.exists() else []
    known = {(result["epsilon"], result["row"]) for result in results}
    work = [(epsilon, row) for epsilon in options.epsilons for row in ROWS if (epsilon, row) not in known]
    for epsilon, row in tqdm(work, unit="row"):
        fit = lambda rate: train(private, rate, epsilon, ROWS[row], options.epochs)  # noqa: B023, E731
        chosen = max(RATES, key=lambda rate: fit(rate).accuracy(tuning))
        found = [fit(chosen).accuracy(test) for _ in range(options.seeds)]
        error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else None
        results.append({
            "epsilon": epsilon, "row": row, "rate": chosen, "accuracy": statistics.mean(found), "standard_error": error,
            "seeds": options.seeds, "epochs": options.epochs,
        })  # fmt: skip
        file.write_text(json.dumps(results, indent=2) + "\n")
    for result in results:
        print(f"{result['epsilon']:>5g}  {result['row']:<30} {100 * result['accuracy']:.1f} %")


if __name__ == "__main__":
    main()
