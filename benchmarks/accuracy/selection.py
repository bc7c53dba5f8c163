"""A search within one promise: the best of a secret number of runs, one run with defaults, and the sum of twenty runs.

    python benchmarks/accuracy/selection.py --data-root FOLDER

Adult, 512 records a batch, (3, 1e-5) for one record in all: training, noised scores and the choice. A search draws
learning rate, clipping norm and width; a default run has a middle value of each. Accuracy is that of the test records,
which choose nothing.
"""

import argparse
import logging
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics
from scipy import optimize
from sets import Split, load_adult
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, Poisson, PrivateMetrics, SRPPAccountant, TwoWorldScenario
from lightning_pac.accountants import GaussianRelease, NumberOfRuns, PrivacyEvent, SelectionPrice, privacy_curve
from lightning_pac.tuning import Choice, LogUniform, PrivateSelection, SearchSpace

EPSILON, DELTA, BATCH, STEPS, SCORED, RUNS = 3.0, 1e-5, 512, 100, 5_000, 20
SCORE = 0.05  # nats of one score at order 16
SPACE = SearchSpace(
    {"learning_rate": LogUniform(0.01, 10.0), "max_grad_norm": LogUniform(0.1, 10.0), "width": Choice([0, 16, 64])}
)
DEFAULTS = {"learning_rate": 0.3, "max_grad_norm": 1.0, "width": 16}
DRAWS = 2.0**24
SCENARIO = TwoWorldScenario(1, adjacency="zero_out")


class Model(pl.LightningModule):
    """A linear model, or one with a hidden layer."""

    def __init__(self, inputs: int, learning_rate: float, max_grad_norm: float, width: int) -> None:
        super().__init__()
        hidden = [nn.Linear(inputs, width), nn.ReLU()] if width else []
        self.network = nn.Sequential(*hidden, nn.Linear(width or inputs, 2))
        self.learning_rate = learning_rate / max_grad_norm  # of a gradient of norm 1
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Mean loss of a batch."""
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Accuracy, for the score."""
        self.accuracy.update(self.network(batch[0]), batch[1])
        self.log("val/accuracy", self.accuracy)

    def configure_optimizers(self) -> Any:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), self.learning_rate)


class Data(pl.LightningDataModule):
    """Records to fit, and others to score."""

    def __init__(self, train: Split) -> None:
        super().__init__()
        self.fitted = TensorDataset(*(part[SCORED:] for part in train))
        self.scored = TensorDataset(*(part[:SCORED] for part in train))

    def train_dataloader(self) -> Any:
        """Records to fit; the callback draws them."""
        return DataLoader(self.fitted, BATCH)

    def val_dataloader(self) -> Any:
        """Records to score."""
        return DataLoader(self.scored, SCORED)


class Search:
    """The data, and what one run releases at some noise."""

    def __init__(self, root: Path) -> None:
        self.train, self.test = load_adult(root)
        self.sampling = Poisson(BATCH / (len(self.train[1]) - SCORED))
        scenario = SCENARIO.resolve(len(self.train[1]) - SCORED)
        self.accountant = SRPPAccountant(scenario, self.sampling)

    def events(self, noise: float, runs: int = 1) -> list[PrivacyEvent]:
        """What so many runs release."""
        return [*self.accountant.events(noise, [STEPS] * runs), GaussianRelease(2 * SCORE / 16 * runs)]

    def noise_of_selection(self, runs: NumberOfRuns) -> float:
        """The noise of each run of a selection."""
        return least_noise(lambda noise: SelectionPrice(self.events(noise), runs, DRAWS).curve.epsilon(DELTA))

    def trainer(self, settings: Any, noise: float, folder: Path, fit: Any, score: Any) -> pl.Trainer:
        """A private Trainer with a noised score."""
        terms = {"noise_multiplier": noise, "sampling": self.sampling, "max_grad_norm": settings["max_grad_norm"]}
        private = SRPPSGD(SCENARIO, ledger=fit, **terms)
        scored = PrivateMetrics(["val/accuracy"], SCENARIO, epsilon=SCORE, renyi_order=16, ledger=score)
        options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        return pl.Trainer(max_steps=STEPS, callbacks=[private, scored], default_root_dir=folder, **options)

    def model(self, settings: Any) -> Model:
        """A model with drawn settings."""
        return Model(self.train[0].shape[1], **settings)

    def tested(self, model: pl.LightningModule) -> float:
        """Accuracy on the test records."""
        with torch.no_grad():
            return float((model.network(self.test[0]).argmax(1) == self.test[1]).float().mean())

    def run(self, settings: Any, noise: float) -> tuple[float, Model]:
        """A run outside a selection: its noised score, and the model."""
        with tempfile.TemporaryDirectory() as folder:
            path, model = Path(folder) / "ledger.db", self.model(settings)
            trainer = self.trainer(settings, noise, Path(folder), path, path)
            trainer.limit_val_batches = 0
            trainer.fit(model, datamodule=Data(self.train))
            trainer.limit_val_batches = 1.0
            trainer.validate(model, datamodule=Data(self.train), verbose=False)
            return float(trainer.callback_metrics["val/accuracy"]), model

    def select(self, runs: NumberOfRuns, noise: float) -> tuple[dict[str, Any], Model]:
        """The settings and the model of a selection."""
        fit, score = self.events(noise)
        with tempfile.TemporaryDirectory() as folder:
            selection = PrivateSelection(
                SPACE, "val/accuracy", {"fit": fit, "score": score}, SCENARIO, Path(folder) / "study.db",
                Path(folder) / "selection", runs, num_draws=DRAWS,
            )  # fmt: skip

            def make(run: Any) -> Any:
                trainer = self.trainer(run.settings, noise, run.folder, run.ledger("fit"), run.ledger("score"))
                return trainer, self.model(run.settings), Data(self.train)

            best = selection.run(make)
        return best.settings, best.module


def least_noise(epsilon: Callable[[float], float]) -> float:
    """The least noise at which a promise of (3, 1e-5) is kept, rounded up."""
    noise = optimize.brentq(lambda value: epsilon(value) - EPSILON * (1 - 1e-4), 0.5, 50.0, xtol=1e-4)
    return float(noise + 2e-4)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with adult")
    parser.add_argument("--repeats", type=int, default=3, help="of each way (3)")
    args = parser.parse_args(arguments)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    search = Search(args.data_root)

    alone = least_noise(lambda noise: privacy_curve(search.events(noise)).epsilon(DELTA))
    summed = least_noise(lambda noise: privacy_curve(search.events(noise, RUNS)).epsilon(DELTA))
    print(f"one run: noise {alone:.3f}; {RUNS} runs that add up to the promise: noise {summed:.3f}")
    tested = [search.tested(search.run(DEFAULTS, alone)[1]) for _ in range(args.repeats)]
    report("one run with defaults", tested)
    for name, eta in (("logarithmic", 0.0), ("geometric", 1.0)):
        runs = NumberOfRuns.expecting(RUNS, eta)
        noise = search.noise_of_selection(runs)
        each, added = (privacy_curve(search.events(noise, number)).epsilon(DELTA) for number in (1, RUNS))
        print(f"{name}: noise {noise:.3f}; one such run costs {each:.2f}, and {RUNS} add up to {added:.2f}")
        found = [search.select(runs, noise) for _ in range(args.repeats)]
        report(f"selection, {name}", [search.tested(model) for _, model in found])
        print("   ", [{key: round(value, 3) for key, value in settings.items()} for settings, _ in found])
    runs_of_sum = [search.run(SPACE.draw(), summed) for _ in range(RUNS)]
    report(f"best of {RUNS} runs that add up", [search.tested(max(runs_of_sum, key=lambda run: run[0])[1])])


def report(name: str, accuracies: Sequence[float]) -> None:
    spread = f" +- {statistics.stdev(accuracies):.4f}" if len(accuracies) > 1 else ""
    print(f"{name}: {statistics.mean(accuracies):.4f}{spread} {[round(value, 4) for value in accuracies]}", flush=True)


if __name__ == "__main__":
    main()
