"""Train on handwritten digits with and without privacy, attack every run, and write a report.

    python examples/digits/demo.py --output runs/demo

The secret is whether three labels more or less show a certain digit. Three private runs promise that a guess of it is
correct at most 55, 60 or 65 % of the time; a fourth run is ordinary training.
"""

import argparse
import dataclasses
import logging
import shutil
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from digits import DigitsData, LinearDigits
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import TensorDataset

from lightning_pac.audits import likelihood_ratio_attack, loss_threshold_attack
from lightning_pac.callbacks import SRPPSGD
from lightning_pac.cards import Estimate, PrivacyCard
from lightning_pac.cli import main as lightning_pac
from lightning_pac.scenarios import Poisson

EPOCHS = 5
COPIES = 14  # 20,118 images
SAMPLING = Poisson(rate=0.1)

# Name of the run: how often a guess of the secret may be correct.
RUNS: dict[str, float | None] = {"ordinary": None, "promise-65": 0.65, "promise-60": 0.6, "promise-55": 0.55}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="folder of logs, cards and the report")
    args = parser.parse_args()
    if args.output.exists():
        shutil.rmtree(args.output)
    # Of what the Trainer says, leave the private runs' own lines.
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(lambda record: record.getMessage().startswith("SRPPSGD"))
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    data = DigitsData(batch_size=2012, copies=COPIES)
    for name, bound in RUNS.items():
        print(f"\n{name}", flush=True)
        train_and_attack(name, bound, data, args.output)
    print()
    lightning_pac(["report", str(args.output)])


def train_and_attack(name: str, bound: float | None, data: DigitsData, output: Path) -> None:
    """Fit, test and attack one run; its metrics, card and checkpoint are in `output / name`."""
    pl.seed_everything(0, verbose=False)  # the noise and the draws of private batches come from elsewhere
    model = LinearDigits()
    callbacks = []
    if bound is not None:
        callbacks.append(SRPPSGD(data.worlds.scenario, sampling=SAMPLING, world_success_bound=bound, max_grad_norm=2.0))
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=CSVLogger(output, name=name, version=""),
        callbacks=callbacks,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)

    membership = loss_threshold_attack(losses(model, data.train_set), losses(model, data.test_set), rng=0)
    folder = Path(trainer.log_dir)
    if bound is None:
        card = PrivacyCard(
            title="Ordinary training",
            secret=f"Nothing stays secret, not even {data.worlds.secret}.",
            guarantees=(),
            conditions=("No gradient was clipped, and no noise was added.",),
        )
        worlds = compare_worlds(model, data)
    else:
        card = PrivacyCard.from_json((folder / "privacy_card.json").read_text())
        noise, scenario = card.details["noise_multiplier"], data.worlds.scenario
        # So many that the interval is narrow beside the distance of bounds that are shown with it.
        worlds = likelihood_ratio_attack(
            scenario, SAMPLING, noise, trainer.global_step, num_runs=100_000, rng=0
        ).to_estimate()
    dataclasses.replace(card, estimates=(membership.to_estimate(), worlds)).save(folder)


def losses(model: LinearDigits, records: TensorDataset) -> torch.Tensor:
    """The loss of every record."""
    images, labels = records.tensors
    with torch.no_grad():
        return nn.functional.cross_entropy(model(images), labels, reduction="none")


def compare_worlds(model: LinearDigits, data: DigitsData) -> Estimate:
    """The attack on a gradient without noise: compute it in both worlds, and look which one it is."""
    images, _ = data.train_set.tensors
    gradients = []
    for labels in (data.worlds.labels_a, data.worlds.labels_b, data.worlds.labels):
        loss = nn.functional.cross_entropy(model(images), torch.tensor(labels))
        gradients.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]))
    distances = [float((gradients[2] - gradients[world]).norm()) for world in (0, 1)]
    right = distances[data.worlds.realized] < distances[1 - data.worlds.realized]
    return Estimate(
        name="likelihood_ratio_attack_success",
        value=float(right),
        unit="probability",
        meaning="Without noise the gradients of the two worlds differ visibly, and the attacker is always right.",
        method="computing a gradient in both worlds and comparing it with the one that training used",
    )


if __name__ == "__main__":
    main()
