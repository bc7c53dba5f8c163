"""Figures 2 to 5 and Tables 5 and 6: the mean of some of the records, privatized for who they are.

    python benchmarks/papers/residual_pac/means.py iris rice --data-root data --output runs/residual_pac

Each of the N records is a member with chance 1/2, as in the paper. Given the number s of members they are a simple
sample, so the covariance of their mean is known exactly: S times the mean of 1/s - 1/N, S the sample covariance. For
each budget the noise power of the linear rule, of log-det, of SR-PAC (trained on sampled members, certified on those
moments and fresh draws) and of the Gaussian mechanism at the same bound on membership inference; the success of a
likelihood attack on the releases of each (Figure 5); the least that noise of the power printed in the paper tells; and
what the decoder finds, here and by the printed cross-entropies (Figure 4). A budget that has ended is not run again.
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
LABELS = {
    "linear": "Efficient-PAC (linear)",
    "logdet": "Auto-PAC (log-det)",
    "sr_pac": "SR-PAC, certified",
    "dp": "Gaussian mechanism",
}
# Of releases, for a standard error of the attack; each has 4,000.
BLOCKS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", choices=["iris", "rice"])
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--game-epochs", type=int, default=2, help="of 100 steps each")
    parser.add_argument("--num-samples", type=int, default=500, help="of members, for training the shape")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.datasets:
        records = load(name, arguments.data_root)
        rows = []
        for place, budget in enumerate(PUBLISHED[name]["budgets"]):
            path = arguments.output / f"{name}_{budget:g}.part.json"
            if not path.exists():
                printed = PUBLISHED[name]["sr_pac"][place]
                row = one_budget(records, budget, printed, arguments.game_epochs, arguments.num_samples)
                row["printed_decoder_finds"] = PRINTED_ENTROPY - PUBLISHED[name]["achieved"][place]
                path.write_text(json.dumps(row))
            rows.append(json.loads(path.read_text()))
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


def sample_means(records: Array, size: int, rng: np.random.Generator) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Means of random members, at least one, and who they are."""
    members = rng.random((size, len(records))) < 0.5
    while (empty := ~members.any(axis=1)).any():
        members[empty] = rng.random((int(empty.sum()), len(records))) < 0.5
    return members @ records / members.sum(axis=1, keepdims=True), members


def mean_over_sizes(records: Array, power: int) -> float:
    """Mean of 1 / s^power over the number s of members, at least one."""
    sizes = np.arange(1, len(records) + 1)
    chances = stats.binom.pmf(sizes, len(records), 0.5)
    return float((chances / sizes**power).sum() / chances.sum())


def one_budget(records: Array, budget: float, printed: float, epochs: int, num_samples: int) -> dict[str, Any]:
    """Noise power of each method and the attack on it, and what the printed power would tell."""
    rng = np.random.default_rng(0)
    covariance = np.cov(records.T) * (mean_over_sizes(records, 1) - 1 / len(records))
    eigenvalues, directions = np.linalg.eigh(covariance)
    law = KnownMoments(records.mean(axis=0), covariance, lambda size: sample_means(records, size, rng)[0])
    outputs = torch.from_numpy(sample_means(records, num_samples, rng)[0])
    perturbation = FullGaussian(records.shape[1])
    game = StackelbergGame(
        SecretTable(outputs, secret="Whose mean it is."),
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
    dimension = records.shape[1]
    basis = np.eye(dimension) if released.basis is None else released.basis
    noises = {
        "linear": directions * linear_variances(eigenvalues, budget) @ directions.T,
        "logdet": directions * logdet_variances(eigenvalues, budget) @ directions.T,
        "sr_pac": basis @ released.noise.second_moment() @ basis.T,
        "dp": np.eye(dimension) * gaussian_mechanism_power(records, success) / dimension,
    }
    row: dict[str, Any] = {"budget": budget}
    for name, noise in noises.items():
        attacks = [attack(records, noise, covariance, rng) for _ in range(BLOCKS)]
        row[name] = float(np.trace(noise))
        row[f"{name}_attack"] = float(np.mean(attacks))
        row[f"{name}_attack_standard_error"] = float(np.std(attacks, ddof=1) / math.sqrt(BLOCKS))
    return row | {
        "sr_pac_certified": released.mutual_information,
        "sr_pac_method": released.certificate.method,
        "decoder_finds": found.estimate,
        "success_bound": success,
        "printed_sr_pac": printed,
        "least_information_of_the_printed_power": least_information(eigenvalues, printed),
    }


def gaussian_mechanism_power(records: Array, success: float) -> float:
    """Power of the Gaussian mechanism whose best attack on one record's presence succeeds that often."""
    # Noise on the sum of members, which is divided by their number.
    radius = float(np.linalg.norm(records - records.mean(axis=0), axis=1).max())
    deviation = radius / (2 * float(stats.norm.ppf(success)))
    return records.shape[1] * deviation**2 * mean_over_sizes(records, 2)


def attack(records: Array, noise: Array, covariance: Array, rng: np.random.Generator) -> float:
    """Success of the likelihood attack, scored by how well a release lines up with each record."""
    values, members = sample_means(records, 4_000, rng)
    releases = values + rng.multivariate_normal(np.zeros(len(noise)), noise, size=len(values))
    kept = rng.permutation(len(records))[:100]
    scores = (releases - records.mean(axis=0)) @ np.linalg.pinv(noise + covariance)
    scores = scores @ (records[kept] - records.mean(axis=0)).T
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
        for key, label in {**LABELS, "printed_sr_pac": "SR-PAC as printed"}.items():
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
    plot_attacks(files, folder)


def plot_attacks(files: list[Path], folder: Path) -> None:
    """Figure 5: success of the attack on each method, and its bound."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(files), 3.8), layout="constrained")
    for axis, file in zip(figure.subplots(1, len(files), squeeze=False)[0], files, strict=True):
        rows = json.loads(file.read_text())["rows"]
        budgets = [row["budget"] for row in rows]
        for key, label in LABELS.items():
            values = [row[f"{key}_attack"] for row in rows]
            errors = [2 * row[f"{key}_attack_standard_error"] for row in rows]
            axis.errorbar(budgets, values, errors, marker="o", markersize=4, label=label)
        axis.axhline(0.5, color="grey", linestyle=":")
        axis.set_xscale("log", base=2)
        axis.invert_xaxis()
        axis.set(title=file.stem.removeprefix("means_"), xlabel="mutual information (nats)", ylabel="attack success")
    axis.legend(fontsize=8)
    figure.savefig(folder / "figure5.png", dpi=110)


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
