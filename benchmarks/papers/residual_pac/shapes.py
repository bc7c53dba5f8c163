"""Noise power at equal certified information, for outputs that are clearly not Gaussian.

python benchmarks/papers/residual_pac/shapes.py --output runs/residual_pac
"""

import argparse
import json
import logging
import warnings
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from classifiers import Array

from lightning_pac.mechanisms import calibrate_gaussian
from lightning_pac.modules import FullGaussian, GaussianMixture, PosteriorDecoder, SecretTable, StackelbergGame

BUDGETS = [0.25, 0.5, 1.0, 2.0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--outputs", nargs="+", choices=problems())
    parser.add_argument("--epochs", type=int, default=6, help="of 100 steps each")
    parser.add_argument("--num-draws", type=int, default=2**17)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = []
    chosen = {name: table for name, table in problems().items() if not arguments.outputs or name in arguments.outputs}
    for name, outputs in chosen.items():
        for budget in BUDGETS:
            if budget >= np.log(len(np.unique(outputs, axis=0))):
                continue
            row = {"outputs": name, "budget": budget, "logdet": calibrate_gaussian(outputs, budget).power}
            exact = calibrate_gaussian(outputs, budget, rule="exact", num_draws=arguments.num_draws)
            row["exact"] = exact.power
            for family in (FullGaussian, lambda dimension: GaussianMixture(dimension, 2)):
                torch.manual_seed(0)
                perturbation, table = family(outputs.shape[1]), torch.from_numpy(outputs)
                game = StackelbergGame(
                    SecretTable(table), PosteriorDecoder(table, perturbation), perturbation, budget, noise_lr=0.03
                )
                quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
                pl.Trainer(max_epochs=arguments.epochs, accelerator="cpu", enable_progress_bar=False, **quiet).fit(game)
                released = game.certify(num_draws=arguments.num_draws)
                key = "sr_pac_" + ("mixture" if isinstance(perturbation, GaussianMixture) else "gaussian")
                row |= {key: released.power, f"{key}_certified": released.mutual_information}
                row[f"{key}_shape"] = released.shape
            rows.append(row)
            print(json.dumps(row), flush=True)
            (arguments.output / "shapes.json").write_text(json.dumps(rows, indent=1))


def problems() -> dict[str, Array]:
    """Outputs of 2 to 64 secrets."""
    rng = np.random.default_rng(0)
    rare = np.zeros(64)
    rare[0] = 8.0
    centres = rng.standard_normal((8, 4)) * 3
    return {
        "two modes": np.array([[-1.0], [1.0]]),
        "modes, rare value, heavy tail": np.stack(
            [np.repeat([-1.0, 1.0], 32), rare + 0.1 * rng.standard_normal(64), rng.standard_t(3, 64)], axis=1
        ),
        "eight clusters": np.repeat(centres, 8, axis=0) + 0.1 * rng.standard_normal((64, 4)),
    }


if __name__ == "__main__":
    main()
