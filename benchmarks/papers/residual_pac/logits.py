"""Figure 1 and Tables 1 to 4: outputs of classifiers, noised for the record they were computed from.

    python benchmarks/papers/residual_pac/logits.py mnist ag_news cifar10 --data-root data --output runs/residual_pac

The secret is which of `--num-records` test records an output was computed from. For each budget:

- linear, log-det: the papers' Efficient-PAC (in the eigenbasis) and ideal Auto-PAC; exact: log-det's shape, certified.
- SR-PAC certified: the shape that the game finds, scaled until its certificate meets the budget.
- decoder-calibrated: Algorithm 2 as printed, a mixture density network over the outputs and no certificate; with what
  that noise then really tells, by the posterior of the finite secret.
"""

import argparse
import json
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from classifiers import DATA, Array, logits

from lightning_pac.mechanisms import calibrate_gaussian, certify_noise
from lightning_pac.modules import FullGaussian, MixtureDecoder, PosteriorDecoder, SecretTable, StackelbergGame

BUDGETS = [4.0, 2.0, 1.0, 0.5, 0.25]
PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", choices=DATA)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS)
    parser.add_argument("--num-records", type=int, default=1000)
    parser.add_argument("--num-train", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--game-epochs", type=int, default=3, help="of 100 steps each")
    parser.add_argument("--num-draws", type=int, default=2**15)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.datasets:
        outputs, labels = logits(
            name, arguments.data_root, arguments.epochs, arguments.num_train, arguments.num_records
        )
        accuracy = float((outputs.argmax(axis=1) == labels).mean())
        print(f"{name}: {outputs.shape}, accuracy without noise {accuracy:.4f}", flush=True)
        rows = []
        for budget in arguments.budgets:
            row = one_budget(outputs, labels, budget, arguments.game_epochs, arguments.num_draws)
            rows.append(row)
            print(json.dumps(row), flush=True)
        eigenvalues = np.linalg.eigvalsh(np.cov(outputs.T, ddof=0))
        result = {
            "dataset": name,
            "num_records": len(outputs),
            "accuracy": accuracy,
            "total_variance": float(eigenvalues.sum()),
            "root_trace": float(np.sqrt(np.maximum(eigenvalues, 0)).sum()),
            "rows": rows,
        }
        (arguments.output / f"logits_{name}.json").write_text(json.dumps(result, indent=1))
    plot(arguments.output)


def one_budget(outputs: Array, labels: Array, budget: float, epochs: int, num_draws: int) -> dict[str, Any]:
    """Power, accuracy and certificate of every rule."""
    row: dict[str, Any] = {"budget": budget}
    for rule in ("linear", "logdet", "exact"):
        noise = calibrate_gaussian(outputs, budget, rule=rule, num_draws=num_draws)
        row[rule] = {
            "power": noise.power,
            "certified": noise.mutual_information,
            "accuracy": accuracy_of(outputs, labels, lambda size, noise=noise: noise.sample(size)),
        }
    start = time.perf_counter()
    perturbation = FullGaussian(outputs.shape[1])
    table = torch.from_numpy(outputs)
    game = StackelbergGame(
        SecretTable(table), PosteriorDecoder(table, perturbation), perturbation, budget, batch_size=128, noise_lr=0.03
    )
    fit(game, epochs)
    released = game.certify(num_draws=num_draws)
    row["sr_pac"] = {
        "power": released.power,
        "certified": released.mutual_information,
        "shape": released.shape,
        "leakage_estimate": game.leakage().estimate,
        "accuracy": accuracy_of(outputs, labels, released.sample),
        "seconds": time.perf_counter() - start,
    }
    row["decoder_calibrated"] = decoder_calibrated(outputs, labels, budget, epochs, num_draws)
    return row


def decoder_calibrated(outputs: Array, labels: Array, budget: float, epochs: int, num_draws: int) -> dict[str, Any]:
    """Algorithm 2 with a mixture density network over the outputs, and what its noise tells."""
    table = torch.from_numpy(outputs)
    perturbation = FullGaussian(outputs.shape[1])
    game = StackelbergGame(
        SecretTable(table, features=table.float()),
        MixtureDecoder(outputs.shape[1], outputs.shape[1], num_components=4),
        perturbation,
        budget,
        penalty="two_sided",
        warmup_steps=300,
        noise_lr=0.03,
    )
    fit(game, 4 * epochs)
    noise = perturbation.noise()
    truth = certify_noise(outputs, noise, num_draws=num_draws)
    return {
        "power": noise.power,
        "believed": budget,
        "decoder_finds": game.leakage(1024).estimate,
        "information": truth.estimate,
        "accuracy": accuracy_of(outputs, labels, noise.sample),
    }


def fit(game: StackelbergGame, epochs: int) -> None:
    torch.manual_seed(0)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    pl.Trainer(max_epochs=epochs, accelerator="cpu", enable_progress_bar=False, **quiet).fit(game)


def accuracy_of(outputs: Array, labels: Array, sample: Any, repeats: int = 20) -> float:
    """Accuracy of the largest noised output, averaged over draws."""
    return float(np.mean([((outputs + sample(len(outputs))).argmax(axis=1) == labels).mean() for _ in range(repeats)]))


def plot(folder: Path) -> None:
    import matplotlib.pyplot as plt

    files = sorted(folder.glob("logits_*.json"))
    figure, axes = plt.subplots(2, len(files), figsize=(4.2 * len(files), 7), squeeze=False)
    names = {
        "linear": "Efficient-PAC (linear)",
        "logdet": "Auto-PAC (log-det)",
        "sr_pac": "SR-PAC, certified",
        "decoder_calibrated": "Algorithm 2, no certificate",
    }
    for column, file in enumerate(files):
        result = json.loads(file.read_text())
        budgets = [row["budget"] for row in result["rows"]]
        for rule, label in names.items():
            style = "--" if rule == "decoder_calibrated" else "-"
            for place, key in enumerate(("accuracy", "power")):
                values = [row[rule][key] for row in result["rows"]]
                axes[place, column].plot(budgets, values, style, marker="o", markersize=4, label=label)
        axes[0, column].axhline(result["accuracy"], color="grey", linewidth=1)
        axes[0, column].set_title(result["dataset"])
        axes[0, column].set_ylabel("accuracy")
        axes[1, column].set_ylabel("noise power")
        axes[1, column].set_yscale("log")
        for axis in axes[:, column]:
            axis.set_xscale("log", base=2)
            axis.invert_xaxis()
            axis.set_xlabel("mutual information (nats)")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "figure1.png", dpi=120)


if __name__ == "__main__":
    main()
