"""Train one private model on two devices, here two processes on the CPU.

    python examples/two_devices/demo.py --output runs/two_devices

The only line that differs from training on one device is `strategy="ddp_private"`. On GPUs, leave `accelerator` out.
"""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, Poisson, TwoWorldScenario

NUM_TEST = 360


class LinearDigits(pl.LightningModule):
    """Multinomial logistic regression on 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(64, 10)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.25, momentum=0.9)


def make_data() -> tuple[TensorDataset, TensorDataset]:
    """Every image by itself: centred and scaled to norm 4."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32)
    images = images - images.mean(dim=1, keepdim=True)
    images = 4 * images / images.norm(dim=1, keepdim=True)
    data = images, torch.tensor(labels)
    return TensorDataset(*(part[NUM_TEST:] for part in data)), TensorDataset(*(part[:NUM_TEST] for part in data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/two_devices"), help="folder of log, card and ledger")
    parser.add_argument("--strategy", default="ddp_private", help="or ddp_private_spawn")
    args = parser.parse_args()
    train_set, test_set = make_data()
    # Half of all records in a step, over both devices.
    private = SRPPSGD(TwoWorldScenario(num_differing=3), epsilon=8.0, renyi_order=4, sampling=Poisson(rate=0.5))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=args.strategy,
        max_epochs=25,
        callbacks=[private],
        logger=CSVLogger(args.output, name="", version=""),
        log_every_n_steps=1,
        enable_progress_bar=False,
    )
    model = LinearDigits()
    trainer.fit(model, DataLoader(train_set, batch_size=256))
    if trainer.is_global_zero:  # the script runs once for each device
        images, labels = test_set.tensors
        accuracy = float((model.network(images).argmax(dim=1) == labels).float().mean())
        epsilon = float(trainer.callback_metrics["privacy/rpp_epsilon"])
        print(f"epsilon {epsilon:.3g} at order 4, test accuracy {accuracy:.0%}")


if __name__ == "__main__":
    main()
