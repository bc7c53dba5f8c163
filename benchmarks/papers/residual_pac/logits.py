"""Figure 1 and Tables 1 to 4: outputs of classifiers, noised for the record they were computed from.

    python benchmarks/papers/residual_pac/logits.py mnist ag_news cifar10 --data-root data --output runs/residual_pac

The secret is which of `--num-records` test records an output was computed from. For each budget:

- linear, log-det: the papers' Efficient-PAC (in the eigenbasis) and ideal Auto-PAC; exact: log-det's shape, certified.
- SR-PAC certified: the shape that the game finds, scaled until its certificate meets the budget.
- decoder-calibrated: Algorithm 2 as printed, a mixture density network over the outputs and no certificate; with what
  that noise then really tells, by the posterior of the finite secret.

Both games are played `--games` times from other starts; figures are means with their standard errors. Outputs of the
trained networks and rows that have ended are kept, from which an interrupted command goes on.
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
DRAWS = 35  # of the noise for all records, as in the paper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", choices=DATA)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS)
    parser.add_argument("--num-records", type=int, default=2000)
    parser.add_argument("--num-train", type=int, help="training records; all if not given")
    parser.add_argument("--epochs", type=int, help="of the classifier; the data set's own if not given")
    parser.add_argument("--games", type=int, default=3)
    parser.add_argument("--game-epochs", type=int, default=2, help="of 100 steps each")
    parser.add_argument("--num-draws", type=int, default=2**14)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.datasets:
        outputs, labels = outputs_of(name, arguments)
        accuracy = float((outputs.argmax(axis=1) == labels).mean())
        print(f"{name}: {outputs.shape}, accuracy without noise {accuracy:.4f}", flush=True)
        rows = []
        for budget in arguments.budgets:
            kept = arguments.output / "rows" / f"{name}_{budget:g}.json"
            if not kept.exists():
                kept.parent.mkdir(exist_ok=True)
                kept.write_text(json.dumps(one_budget(outputs, labels, budget, arguments)))
            row = json.loads(kept.read_text())
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


def outputs_of(name: str, arguments: argparse.Namespace) -> tuple[Array, Array]:
    """Outputs and labels of the test records, trained for once."""
    kept = arguments.output / "rows" / f"{name}.npz"
    if not kept.exists():
        found = logits(name, arguments.data_root, arguments.epochs, arguments.num_train, arguments.num_records)
        kept.parent.mkdir(exist_ok=True)
        np.savez(kept, outputs=found[0], labels=found[1])
    with np.load(kept) as arrays:
        return arrays["outputs"], arrays["labels"]


def one_budget(outputs: Array, labels: Array, budget: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Power, accuracy and certificate of every rule."""
    row: dict[str, Any] = {"budget": budget}
    for rule in ("linear", "logdet", "exact"):
        noise = calibrate_gaussian(outputs, budget, rule=rule, num_draws=arguments.num_draws)
        row[rule] = {
            "power": noise.power,
            "certified": noise.mutual_information,
            **accuracy_of(outputs, labels, lambda size, noise=noise: noise.sample(size)),
        }
    for name, play in (("sr_pac", sr_pac), ("decoder_calibrated", decoder_calibrated)):
        games = range(arguments.games)
        row[name] = summary(
            [play(outputs, labels, budget, arguments.game_epochs, arguments.num_draws, game) for game in games]
        )
    return row


def summary(games: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean of each figure over the games, with its standard error."""
    result = {}
    for key in games[0]:
        values = [game[key] for game in games]
        result[key] = float(np.mean(values))
        if len(games) > 1:
            result[f"{key}_standard_error"] = float(np.std(values, ddof=1) / np.sqrt(len(games)))
    return result


def sr_pac(outputs: Array, labels: Array, budget: float, epochs: int, num_draws: int, seed: int) -> dict[str, Any]:
    """Noise of the shape that the game finds, with its certificate."""
    start = time.perf_counter()
    perturbation = FullGaussian(outputs.shape[1])
    table = torch.from_numpy(outputs)
    game = StackelbergGame(
        SecretTable(table), PosteriorDecoder(table, perturbation), perturbation, budget, batch_size=128, noise_lr=0.03
    )
    fit(game, epochs, seed)
    released = game.certify(num_draws=num_draws)
    return {
        "power": released.power,
        "certified": released.mutual_information,
        "leakage_estimate": game.leakage().estimate,
        "accuracy": accuracy_of(outputs, labels, released.sample)["accuracy"],
        "seconds": time.perf_counter() - start,
    }


def decoder_calibrated(
    outputs: Array, labels: Array, budget: float, epochs: int, num_draws: int, seed: int
) -> dict[str, Any]:
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
    fit(game, 4 * epochs, seed)
    noise = perturbation.noise()
    truth = certify_noise(outputs, noise, num_draws=num_draws)
    return {
        "power": noise.power,
        "decoder_finds": game.leakage(1024).estimate,
        "information": truth.estimate,
        "accuracy": accuracy_of(outputs, labels, noise.sample)["accuracy"],
    }


def fit(game: StackelbergGame, epochs: int, seed: int) -> None:
    torch.manual_seed(seed)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    pl.Trainer(max_epochs=epochs, accelerator="cpu", enable_progress_bar=False, **quiet).fit(game)


def accuracy_of(outputs: Array, labels: Array, sample: Any) -> dict[str, float]:
    """Accuracy of the largest noised output, averaged over draws."""
    found = [((outputs + sample(len(outputs))).argmax(axis=1) == labels).mean() for _ in range(DRAWS)]
    return {
        "accuracy": float(np.mean(found)),
        "accuracy_standard_error": float(np.std(found, ddof=1) / np.sqrt(DRAWS)),
    }


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
