"""Train a convolutional network on digits, privately.

    python examples/vision/demo.py
    python examples/vision/demo.py --data-root data

With --data-root the images are MNIST at half its resolution, which torchvision downloads to that folder if it is not
there. Without it, they are the 8 x 8 digits of scikit-learn. The secret is any fact that at most three labels decide.

With --choose a fifth of the training images is scored on and not trained on, and the test images stay aside: settings
are chosen by this.
"""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from lightning_pac import SRPPSGD, Poisson, TwoWorldScenario
from lightning_pac.cards import at_most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="folder for torchvision's MNIST")
    parser.add_argument("--epochs", type=int, help="defaults to 40, or 6 for MNIST")
    parser.add_argument("--rate", type=float, help="share of the images in a batch (0.5, or 0.05 for MNIST)")
    parser.add_argument("--learning-rate", type=float, help="defaults to 0.1, or 0.2 for MNIST")
    parser.add_argument("--choose", action="store_true", help="score on held-out training images")
    parser.add_argument("--output", type=Path, default=Path("runs/vision"))
    args = parser.parse_args()
    train_set, test_set = mnist(args.data_root) if args.data_root else digits()
    if args.choose:
        cut = len(train_set) // 5
        train_set, test_set = Subset(train_set, range(cut, len(train_set))), Subset(train_set, range(cut))

    # Few steps on large batches: noise is paid by the step, and the signal grows with the batch.
    rate = args.rate or (0.05 if args.data_root else 0.5)
    settings = {
        "epochs": args.epochs or (6 if args.data_root else 40),
        "batch_size": round(rate * len(train_set)),
        "learning_rate": args.learning_rate or (0.2 if args.data_root else 0.1),
        "output": args.output,
    }
    private = SRPPSGD(TwoWorldScenario(num_differing=3), epsilon=8.0, renyi_order=4, sampling=Poisson(rate=rate))
    print(f"ordinary training        {train(train_set, test_set, [], **settings):.3f}")
    print(f"private training         {train(train_set, test_set, [private], **settings):.3f}")
    print(f"Rényi epsilon            {private.account.epsilon:.2f} at order 4")
    print(f"guessing the secret      at most {at_most(private.account.world_success_bound())}")


class SmallConvNet(pl.LightningModule):
    """Two convolutions and a linear layer. A batch norm would mix the records of a batch, and is refused."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.Tanh(),
            nn.AdaptiveAvgPool2d(8),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Tanh(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(512, 10),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("test_accuracy", (self.network(images).argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)


def train(
    train_set: Dataset,
    test_set: Dataset,
    callbacks: list[pl.Callback],
    epochs: int,
    batch_size: int,
    learning_rate: float,
    output: Path,
) -> float:
    """Fit with the callbacks and return the test accuracy."""
    pl.seed_everything(0, verbose=False)  # public; noise and draws of private batches come from elsewhere
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=callbacks,
        default_root_dir=output,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = SmallConvNet(learning_rate)
    trainer.fit(model, DataLoader(train_set, batch_size=batch_size, shuffle=True))
    return trainer.test(model, DataLoader(test_set, batch_size=1000), verbose=False)[0]["test_accuracy"]


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,437 images of 8 x 8 pixels to train on, and 360 to test on."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(images / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8)[order]
    labels = torch.tensor(labels)[order]
    return TensorDataset(images[360:], labels[360:]), TensorDataset(images[:360], labels[:360])


def mnist(root: Path) -> tuple[TensorDataset, TensorDataset]:
    """60,000 images of 14 x 14 pixels to train on, and 10,000 to test on; each is the mean of 2 x 2 pixels."""
    from torchvision.datasets import MNIST

    parts = [MNIST(root, train=train, download=True) for train in (True, False)]
    images = (nn.functional.avg_pool2d(part.data[:, None] / 127.5 - 1, 2) for part in parts)
    train_set, test_set = (TensorDataset(*pair) for pair in zip(images, (part.targets for part in parts), strict=True))
    return train_set, test_set


if __name__ == "__main__":
    main()
