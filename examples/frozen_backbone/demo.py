"""Train only the last layer on private images, on top of a network that was trained on public ones.

    python examples/frozen_backbone/demo.py

The public images are the digits 0 to 4 of scikit-learn, on which the backbone is trained without privacy; the private
ones are the digits 5 to 9. With --choose, 180 of the training images are scored on and not trained on, and the test
images stay aside: settings are chosen by this.
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
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rate", type=float, default=0.5, help="share of the private images in a batch")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--features", type=int, default=32, help="width of the backbone's output")
    parser.add_argument("--choose", action="store_true", help="score on held-out training images")
    parser.add_argument("--output", type=Path, default=Path("runs/frozen_backbone"))
    args = parser.parse_args()
    public, private, test = digits()
    if args.choose:
        private, test = Subset(private, range(180, len(private))), Subset(private, range(180))

    pl.seed_everything(0, verbose=False)  # public; noise and draws of private batches come from elsewhere
    pretrained = Classifier(make_backbone(args.features), args)
    fit(pretrained, public, args, batch_size=64, callbacks=[])

    backbone = pretrained.backbone.requires_grad_(False)
    protection, all_layers = (
        SRPPSGD(TwoWorldScenario(num_differing=3), epsilon=8.0, renyi_order=4, sampling=Poisson(rate=args.rate))
        for _ in range(2)
    )
    head, private_head = Classifier(backbone, args), Classifier(backbone, args)
    whole = Classifier(make_backbone(args.features), args)
    print(f"ordinary head            {accuracy(head, private, test, args, []):.3f}")
    print(f"private head             {accuracy(private_head, private, test, args, [protection]):.3f}")
    print(f"private, all layers      {accuracy(whole, private, test, args, [all_layers]):.3f}")
    print(f"guessing the secret      at most {at_most(protection.account.world_success_bound())}")


class Classifier(pl.LightningModule):
    """A linear head for five classes on a backbone."""

    def __init__(self, backbone: nn.Module, args: argparse.Namespace) -> None:
        super().__init__()
        self.backbone, self.learning_rate = backbone, args.learning_rate
        self.head = nn.Linear(args.features, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("test_accuracy", (self(images).argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.SGD(trained, lr=self.learning_rate, momentum=0.9)


def make_backbone(num_features: int) -> nn.Module:
    """From images (n, 1, 8, 8) to features (n, num_features)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(512, num_features),
        nn.Tanh(),
    )


def accuracy(
    model: Classifier,
    train_set: Dataset,
    test_set: Dataset,
    args: argparse.Namespace,
    callbacks: list[pl.Callback],
) -> float:
    """Test accuracy after training what is not frozen."""
    trainer = fit(model, train_set, args, batch_size=round(args.rate * len(train_set)), callbacks=callbacks)
    return trainer.test(model, DataLoader(test_set, batch_size=len(test_set)), verbose=False)[0]["test_accuracy"]


def fit(
    model: Classifier, data: Dataset, args: argparse.Namespace, batch_size: int, callbacks: list[pl.Callback]
) -> pl.Trainer:
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        callbacks=callbacks,
        default_root_dir=args.output,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=batch_size, shuffle=True))
    return trainer


def digits() -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """Public images of 0 to 4, private images of 5 to 9 to train on, and 180 more of those to test on."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8)
    labels = torch.tensor(labels)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    low, high = order[labels[order] < 5], order[labels[order] >= 5]
    train, test = high[180:], high[:180]
    return (
        TensorDataset(images[low], labels[low]),
        TensorDataset(images[train], labels[train] - 5),
        TensorDataset(images[test], labels[test] - 5),
    )


if __name__ == "__main__":
    main()
