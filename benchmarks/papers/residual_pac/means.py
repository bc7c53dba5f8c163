"""Figures 2 to 4 and Tables 5 and 6: the mean of half of the records, privatized for the half.

    python benchmarks/papers/residual_pac/means.py iris rice --data-root data --output runs/residual_pac

Half of the N records are drawn without replacement, so the covariance of their mean is known exactly: S / N, S the
sample covariance. For each budget the noise power of the linear rule, of log-det, of SR-PAC (trained on sampled halves,
certified on those moments and fresh draws) and of the Gaussian mechanism at the same bound on membership inference; the
success of a likelihood attack on SR-PAC's releases; the least that noise of the power printed in the paper tells; and
what the decoder finds, here and by the printed cross-entropies (Figure 4).
"""

import argparse
import csv
import json
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from lightning_pac.accountants import membership_success_bound
from lightning_pac.audits import empirical_likelihood_attack
from lightning_pac.mechanisms import KnownMoments, linear_variances, logdet_bound, logdet_variances
from lightning_pac.modules import FullGaussian, PosteriorDecoder, SecretTable, StackelbergGame

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
Array = npt.NDArray[np.float64]
# Of 30 membership bits: the printed targets are this less the budget.
PRINTED_ENTROPY = 30 * math.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", choices=["iris", "rice"])
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--game-epochs", type=int, default=2, help="of 100 steps each")
    parser.add_argument("--num-halves", type=int, default=500, help="sampled for training the shape")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.datasets:
        records = load(name, arguments.data_root)
        rows = []
        for place, budget in enumerate(PUBLISHED[name]["budgets"]):
            printed = PUBLISHED[name]["sr_pac"][place]
            row = one_budget(records, budget, printed, arguments.game_epochs, arguments.num_halves)
            row["printed_decoder_finds"] = PRINTED_ENTROPY - PUBLISHED[name]["achieved"][place]
            rows.append(row)
            print(name, json.dumps(rows[-1]), flush=True)
        (arguments.output / f"means_{name}.json").write_text(json.dumps({"dataset": name, "rows": rows}, indent=1))
    plot(arguments.output)


def load(name: str, data_root: Path) -> Array:
    """Features scaled to [0, 1], which the authors do not state; powers are comparable within a table only."""
    if name == "iris":
        from sklearn.datasets import load_iris

        features = load_iris().data
    else:
        with open(data_root / "rice" / "Rice_Cammeo_Osmancik.arff", newline="") as file:
            lines = [row for row in csv.reader(file) if len(row) == 8]
        features = np.array([[float(value) for value in row[:-1]] for row in lines])
    low, high = features.min(axis=0), features.max(axis=0)
    return np.asarray((features - low) / (high - low))


def halves(records: Array, size: int, rng: np.random.Generator) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Means of random halves and who is in them."""
    members = np.zeros((size, len(records)), dtype=bool)
    members[:, : len(records) // 2] = True
    members = rng.permuted(members, axis=1)
    return members @ records / (len(records) // 2), members


def one_budget(records: Array, budget: float, printed: float, epochs: int, num_halves: int) -> dict[str, Any]:
    """Noise power of each method, and what the printed one would tell."""
    rng = np.random.default_rng(0)
    covariance = np.cov(records.T) / len(records)
    eigenvalues = np.linalg.eigvalsh(covariance)
    law = KnownMoments(records.mean(axis=0), covariance, lambda size: halves(records, size, rng)[0])
    outputs = torch.from_numpy(halves(records, num_halves, rng)[0])
    perturbation = FullGaussian(records.shape[1])
    game = StackelbergGame(
        SecretTable(outputs, secret="Which half of the records the mean is of."),
        PosteriorDecoder(outputs, perturbation),
        perturbation,
        budget,
        batch_size=128,
    )
    torch.manual_seed(0)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    pl.Trainer(max_epochs=epochs, accelerator="cpu", enable_progress_bar=False, **quiet).fit(game)
    found = game.leakage(2**14)
    released = game.certify(law=law, num_draws=2_000)
    success = membership_success_bound(budget, 0.5)
    values, members = halves(records, 4_000, rng)
    noised = values + released.sample(len(values))
    return {
        "budget": budget,
        "linear": float(linear_variances(eigenvalues, budget).sum()),
        "logdet": float(logdet_variances(eigenvalues, budget).sum()),
        "sr_pac": released.power,
        "sr_pac_certified": released.mutual_information,
        "sr_pac_method": released.certificate.method,
        "decoder_finds": found.estimate,
        "dp": gaussian_mechanism_power(records, success),
        "success_bound": success,
        "attack": attack(records, noised, members, released.noise.second_moment(), released.basis),
        "printed_sr_pac": printed,
        "least_information_of_the_printed_power": least_information(eigenvalues, printed),
    }


def gaussian_mechanism_power(records: Array, success: float) -> float:
    """Power of the Gaussian mechanism whose best attack on one record's presence succeeds that often."""
    radius = float(np.linalg.norm(records - records.mean(axis=0), axis=1).max())
    deviation = radius / (len(records) // 2) / (2 * float(stats.norm.ppf(success)))
    return records.shape[1] * deviation**2


def attack(
    records: Array, releases: Array, members: npt.NDArray[np.bool_], second_moment: Array, basis: Array | None
) -> float:
    """Success of the likelihood attack, scored by how well a release lines up with each record."""
    directions = np.eye(records.shape[1]) if basis is None else basis
    total = np.linalg.pinv(directions @ second_moment @ directions.T + np.cov(records.T) / len(records))
    kept = np.random.default_rng(1).permutation(len(records))[:100]
    scores = (releases - records.mean(axis=0)) @ total @ (records[kept] - records.mean(axis=0)).T
    return empirical_likelihood_attack(scores, members[:, kept]).success


def least_information(eigenvalues: Array, power: float) -> float:
    """Log-det of the best Gaussian noise of a given power: what a nearly Gaussian output tells at least."""
    low, high = 1e-6, 60.0
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if logdet_variances(eigenvalues, middle).sum() > power else (low, middle)
    return float(logdet_bound(eigenvalues, logdet_variances(eigenvalues, high)))


def plot(folder: Path) -> None:
    import matplotlib.pyplot as plt

    files = sorted(folder.glob("means_*.json"))
    figure, axes = plt.subplots(1, len(files), figsize=(5 * len(files), 4), squeeze=False)
    for axis, file in zip(axes[0], files, strict=True):
        result = json.loads(file.read_text())
        budgets = [row["budget"] for row in result["rows"]]
        for key, label in {
            "linear": "Efficient-PAC (linear)",
            "logdet": "Auto-PAC (log-det)",
            "sr_pac": "SR-PAC, certified",
            "dp": "Gaussian mechanism",
            "printed_sr_pac": "SR-PAC as printed",
        }.items():
            style = "--" if key == "printed_sr_pac" else "-"
            axis.plot(budgets, [row[key] for row in result["rows"]], style, marker="o", markersize=4, label=label)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.invert_xaxis()
        axis.set_title(result["dataset"])
        axis.set_xlabel("mutual information (nats)")
        axis.set_ylabel("noise power")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "figure2.png", dpi=120)
    plot_sr_pac(files, folder)


def plot_sr_pac(files: list[Path], folder: Path) -> None:
    """Figure 3, SR-PAC's power alone, above Figure 4, what its decoder finds beside the budget."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(files), figsize=(5 * len(files), 7), squeeze=False)
    for column, file in enumerate(files):
        rows = json.loads(file.read_text())["rows"]
        budgets = [row["budget"] for row in rows]
        power, information = axes[:, column]
        for key, label in {"sr_pac": "certified", "printed_sr_pac": "as printed"}.items():
            power.plot(budgets, [row[key] for row in rows], marker="o", markersize=4, label=label)
        information.plot(budgets, budgets, color="black", linewidth=1, label="budget")
        for key, label in {"decoder_finds": "our decoder", "printed_decoder_finds": "the paper's decoder"}.items():
            information.plot(budgets, [row[key] for row in rows], marker="o", markersize=4, label=label)
        power.set(yscale="log", title=file.stem.removeprefix("means_"), ylabel="noise power of SR-PAC")
        information.set(ylabel="information found (nats)", xlabel="budget (nats)")
        for axis in (power, information):
            axis.set_xscale("log", base=2)
            axis.invert_xaxis()
            axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "figures3-4.png", dpi=120)


if __name__ == "__main__":
    main()
