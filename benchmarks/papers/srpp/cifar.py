"""Figures 3(i-l) of the SRPP paper: private training on CIFAR-10 where the secret is how frequent cats are.

    python benchmarks/papers/srpp/cifar.py --data-root DATA --output runs/srpp-cifar            # for a GPU
    python benchmarks/papers/srpp/cifar.py --data-root DATA --output runs/srpp-cifar --reduced  # minutes on a CPU

Writes `cifar.json`, `noise.png`, `accuracy.png` and `overfitted.png`. An interrupted command goes on: models that have
ended are read from `runs/`, and the one in training continues from its last checkpoint and its own journal. The curves
of noise against epsilon are those of the paper's full setting in both. The reduced setting trains a linear layer on
fixed random features of 10,000 images.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from images import ResNet22, load_split, random_features
from lightning.pytorch.callbacks import ModelCheckpoint
from rich.progress import track
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from lightning_pac import SRPPSGD, EpochShuffle, FixedSize, Poisson, SRPPAccountant, TwoWorldScenario
from lightning_pac.accountants import GroupDPAccountant
from lightning_pac.audits import loss_threshold_attack
from lightning_pac.scenarios import LabelWorlds, Sampling

CAT = 3
RENYI_ORDER = 16.0
DELTA = 1e-5
CHECKPOINT_STEPS = 50
BUDGETS = [0.5, 1, 2, 4, 8, 10, 12, 14, 18, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 80]
METHODS = ["amplified RPP", "shuffled RPP", "ms-SRPP", "SRPP", "group-DP", "group-DP of all edits"]


@dataclass(frozen=True)
class Setting:
    """One training experiment.

    Attributes:
        num_records: images that are trained on.
        batch_size: expected number of them in a step.
        epochs: passes over them.
        prevalences: frequency of cats in the two worlds.
        learning_rate: at its peak; it warms up over 5 % of the steps and then follows a cosine.
        max_grad_norm: the clipping norm.
        weight_decay: of the optimizer, SGD with momentum 0.9.
        make_network: builds the classifier.
        features: what is computed from the images once, before training; None for nothing.
    """

    num_records: int
    batch_size: int
    epochs: int
    prevalences: tuple[float, float]
    learning_rate: float
    weight_decay: float
    make_network: Callable[[], nn.Module]
    features: Callable[[Tensor], Tensor] | None = None
    max_grad_norm: float = 1.0

    @property
    def changeable(self) -> tuple[float, ...]:
        """What the command line changes: models that differ in it have folders of their own."""
        return (self.epochs, self.learning_rate, self.max_grad_norm)

    @property
    def num_steps(self) -> int:
        """Optimizer steps."""
        return self.epochs * self.num_records // self.batch_size


def linear() -> nn.Module:
    layer = nn.Linear(1024, 10)
    nn.init.zeros_(layer.weight)
    return layer


FULL = Setting(50_000, 512, 40, (0.1, 0.1002), 0.5, 5e-4, ResNet22)
FULL_OVERFITTED = Setting(1_000, 250, 200, (0.1, 0.101), 0.5, 0.0, ResNet22)
REDUCED = Setting(10_000, 500, 20, (0.1, 0.101), 0.1, 5e-4, linear, random_features)
REDUCED_OVERFITTED = Setting(1_000, 250, 200, (0.1, 0.101), 0.5, 0.0, linear, random_features)


def plan(method: str, setting: Setting, scenario: TwoWorldScenario, epsilon: float) -> tuple[float, Sampling]:
    """The noise multiplier of a method at a budget, and how it draws its batches."""
    rate, steps = setting.batch_size / setting.num_records, setting.num_steps
    poisson, fixed = Poisson(rate), FixedSize(setting.batch_size)
    accounts = {
        "amplified RPP": ("rpp", poisson),
        "shuffled RPP": ("rpp", EpochShuffle(setting.batch_size)),
        "ms-SRPP": ("ms-joint", fixed),
        "SRPP": ("joint", fixed),
    }
    if method in accounts:
        notion, sampling = accounts[method]
        return SRPPAccountant(scenario, sampling, RENYI_ORDER, notion).noise_multiplier(epsilon, steps), sampling
    if method == "group-DP":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it does not protect the secret, and so does the page
            return GroupDPAccountant(scenario, fixed, DELTA).noise_multiplier(epsilon, steps), poisson
    return _group_noise(scenario, poisson, epsilon, steps), poisson


def _group_noise(scenario: TwoWorldScenario, sampling: Poisson, epsilon: float, steps: int) -> float:
    """DP-SGD's noise where a group holds every edit between the worlds, by the conversion of Rényi DP.

    A mechanism with cost `e` at order `2^c a` has cost `3^c e` at order a for groups of `2^c` records (Mironov 2017,
    Proposition 2); a relabelled record is one removed and one added.
    """
    doublings = math.ceil(math.log2(2 * scenario.total_differing))
    record = SRPPAccountant(TwoWorldScenario.differential_privacy(), sampling, RENYI_ORDER * 2**doublings)
    return record.noise_multiplier(epsilon / 3**doublings, steps)


class Classifier(pl.LightningModule):
    """A network under cross entropy, with the paper's optimizer; it knows nothing of privacy."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.network = setting.make_network()
        self.setting = setting

    @override
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    @override
    def configure_optimizers(self) -> Any:
        setting = self.setting
        optimizer = torch.optim.SGD(
            self.parameters(), setting.learning_rate, momentum=0.9, weight_decay=setting.weight_decay
        )
        warm = max(1, setting.num_steps // 20)

        def factor(step: int) -> float:
            if step < warm:
                return (step + 1) / warm
            return (1 + math.cos(math.pi * (step - warm) / max(1, setting.num_steps - warm))) / 2

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Experiment:
    """The realized world of one setting, and the models trained on it.

    Args:
        setting: what is trained, and how.
        root: folder of the data.
        seed: of the records that are kept and of the relabelling; neither is a secret.
    """

    def __init__(self, setting: Setting, root: Path, seed: int = 0) -> None:
        self.setting = setting
        images, labels = load_split(root, "train")
        test_images, self.test_labels = load_split(root, "test")
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
        members, others = order[: setting.num_records], order[setting.num_records : 2 * setting.num_records]
        prepare = setting.features or (lambda part: part)
        self.inputs, self.test_inputs = prepare(images[members]), prepare(test_images)
        self.other_inputs, self.other_labels = prepare(images[others]) if len(others) else None, labels[others]
        self.worlds: LabelWorlds = TwoWorldScenario.from_prevalence(
            labels[members].numpy(), CAT, *setting.prevalences, rng=seed, world=0
        )
        self.labels = torch.from_numpy(self.worlds.labels)
        self.scenario = self.worlds.scenario.resolve(setting.num_records)

    def train(self, method: str | None, epsilon: float | None, folder: Path) -> dict[str, Any]:
        """One model and what it achieved; no method, no privacy. What has ended in the folder is read from there."""
        ended = folder / "result.json"
        if ended.exists():
            found: dict[str, Any] = json.loads(ended.read_text())
            return found
        # Each from one initialization, whichever models have ended before.
        torch.manual_seed(0)
        setting, model = self.setting, Classifier(self.setting)
        result: dict[str, Any] = {"method": method or "not private", "epsilon": epsilon}
        callbacks = []
        if method is not None and epsilon is not None:
            noise, sampling = plan(method, setting, self.scenario, epsilon)
            clip = setting.max_grad_norm
            private = SRPPSGD(self.scenario, None, noise, RENYI_ORDER, sampling=sampling, max_grad_norm=clip)
            callbacks.append(private)
        saved = ModelCheckpoint(folder, "last", every_n_train_steps=CHECKPOINT_STEPS, enable_version_counter=False)
        trainer = pl.Trainer(
            max_steps=setting.num_steps,
            max_epochs=-1,
            callbacks=[*callbacks, saved],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            devices=1,
            default_root_dir=folder,
        )
        records = TensorDataset(self.inputs, self.labels)
        last = folder / "last.ckpt"
        loader = DataLoader(records, setting.batch_size, shuffle=True)
        trainer.fit(model, loader, ckpt_path=last if last.exists() else None, weights_only=False)
        if method is not None:
            # What the run costs unsliced and in the worst case, whatever the method says of itself.
            result |= {"noise_multiplier": noise, "rpp_epsilon": private.account.epsilon}
        result |= self._evaluate(model)
        ended.write_text(json.dumps(result, indent=1))
        return result

    def _evaluate(self, model: Classifier) -> dict[str, Any]:
        losses, hits = _losses(model, self.inputs, self.labels)
        found: dict[str, Any] = {"train_accuracy": hits}
        found["test_accuracy"] = _losses(model, self.test_inputs, self.test_labels)[1]
        if self.other_inputs is not None:
            others, _ = _losses(model, self.other_inputs, self.other_labels)
            attack = loss_threshold_attack(losses, others, rng=0)
            members = np.concatenate([np.ones(len(losses)), np.zeros(len(others))])
            found["attack_auc"] = float(roc_auc_score(members, -np.concatenate([losses, others])))
            found["attack_success"], found["attack_interval"] = attack.success, attack.interval
        return found


@torch.no_grad()
def _losses(model: Classifier, inputs: Tensor, labels: Tensor) -> tuple[np.ndarray, float]:
    model.eval()
    scores = torch.cat([model.network(part.to(model.device)).cpu() for part in inputs.split(1000)])
    losses = nn.functional.cross_entropy(scores, labels, reduction="none")
    return losses.double().nan_to_num(1e6).numpy(), float((scores.argmax(1) == labels).float().mean())


def noise_curves() -> dict[str, Any]:
    """Noise multiplier against epsilon, exact, in the paper's full setting and for its relabelled records."""
    low, high = FULL.prevalences
    differing = round(high * FULL.num_records) - round(low * FULL.num_records)
    scenario = TwoWorldScenario(differing, FULL.num_records)
    curves = {method: [plan(method, FULL, scenario, float(e))[0] for e in BUDGETS] for method in METHODS}
    return {"num_differing": differing, "num_steps": FULL.num_steps, "epsilon": BUDGETS, "noise_multiplier": curves}


def draw(result: dict[str, Any], output: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {
        "noise": [("epsilon", "noise multiplier", result["noise"]["noise_multiplier"], BUDGETS)],
    }
    if "accuracy" in result:
        panels["accuracy"] = [("epsilon", "test accuracy", _series(result["accuracy"], "test_accuracy"), None)]
    if "overfitted" in result:
        panels["overfitted"] = [
            ("epsilon", "training accuracy", _series(result["overfitted"], "train_accuracy"), None),
            ("epsilon", "test accuracy", _series(result["overfitted"], "test_accuracy"), None),
            ("epsilon", "attack AUC", _series(result["overfitted"], "attack_auc"), None),
        ]
    for name, parts in panels.items():
        figure, axes = plt.subplots(1, len(parts), figsize=(5 * len(parts), 3.6), squeeze=False)
        for axis, (x_label, y_label, series, shared) in zip(axes[0], parts, strict=True):
            for method, values in series.items():
                points = zip(shared, values, strict=True) if shared else values
                budgets, heights = zip(*points, strict=True)
                axis.plot(budgets, heights, marker=".", label=method) if budgets[0] else axis.axhline(
                    heights[0], color="grey", linestyle=":", label=method
                )
            axis.set(xlabel=x_label, ylabel=y_label, xscale="log", yscale="log" if name == "noise" else "linear")
        axes[0, 0].legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(output / f"{name}.png", dpi=110)
        plt.close(figure)


def _series(runs: list[dict[str, Any]], key: str) -> dict[str, list[tuple[float | None, float]]]:
    series: dict[str, list[tuple[float | None, float]]] = {}
    for run in runs:
        series.setdefault(run["method"], []).append((run["epsilon"], run[key]))
    return series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data-root", type=Path, required=True, help="folder with cifar10_{train,test}.npz, or to fill"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/srpp-cifar"))
    parser.add_argument("--reduced", action="store_true", help="a linear layer on 10,000 images, for a CPU")
    parser.add_argument("--epochs", type=int, help="passes over the data, where the setting's are too many")
    parser.add_argument("--learning-rate", type=float, help="at its peak; the setting's if not given")
    parser.add_argument("--max-grad-norm", type=float, default=1.0, help="clipping norm")
    regimes = ["accuracy", "overfitted"]
    parser.add_argument("--regimes", nargs="+", choices=regimes, default=regimes, help="Figures 3(i, j), and 3(k, l)")
    parser.add_argument("--budgets", type=float, nargs="+", help="epsilons at which models are trained")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    budgets = arguments.budgets or ([0.5, 2, 8, 30, 80] if arguments.reduced else [0.5, 2, 8, 20, 40, 80])
    result: dict[str, Any] = {"renyi_order": RENYI_ORDER, "reduced": arguments.reduced, "noise": noise_curves()}
    usual, overfitted = (REDUCED, REDUCED_OVERFITTED) if arguments.reduced else (FULL, FULL_OVERFITTED)
    changes = {
        "learning_rate": arguments.learning_rate or usual.learning_rate,
        "epochs": arguments.epochs or usual.epochs,
    }
    kinds = {
        "accuracy": (arguments.methods, replace(usual, max_grad_norm=arguments.max_grad_norm, **changes)),
        "overfitted": (["ms-SRPP", "amplified RPP"], overfitted),
    }
    for name in arguments.regimes:
        methods, setting = kinds[name]
        result[f"{name}_epochs"] = setting.epochs
        experiment = Experiment(setting, arguments.data_root)
        work: list[tuple[str | None, float | None]] = [(method, e) for method in methods for e in budgets]
        result[f"{name}_num_differing"] = experiment.scenario.total_differing
        result[name] = []
        for terms in track([*work, (None, None)], name):
            label = "-".join(str(part) for part in (name, *setting.changeable, *terms)).replace(" ", "_")
            result[name].append(experiment.train(*terms, arguments.output / "runs" / label))
            (arguments.output / "cifar.json").write_text(json.dumps(result, indent=1))
    draw(result, arguments.output)


if __name__ == "__main__":
    main()
