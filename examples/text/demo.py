"""Sort news by topic with averaged word vectors, privately for each article.

    python examples/text/demo.py --data-root data

reads `ag_news/*.csv` below that folder: AG News with a class and a text in each row (a training file whose name holds
"train", and `test.csv`, whose columns are class, title and description). There is no small corpus to fall back on.
"""

import argparse
import csv
import re
import zlib
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, Poisson, TwoWorldScenario

# Words are hashed to rows: a vocabulary that is counted in private articles would tell which words they use.
NUM_ROWS = 4096
NUM_WORDS = 48
NUM_CLASSES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder that holds the folder ag_news")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=3300, help="records in a batch, on average")
    parser.add_argument("--rate", type=float, default=0.1, help="probability that a record is in a batch")
    parser.add_argument("--output", type=Path, default=Path("runs/text"))
    args = parser.parse_args()
    folder = args.data_root / "ag_news"
    train_set, test_set = articles(next(folder.glob("*train*.csv"))), articles(folder / "test.csv")

    private = SRPPSGD(
        TwoWorldScenario.differential_privacy(),
        epsilon=2.0,
        renyi_order=16,
        sampling=Poisson(rate=args.rate, batch_size=args.batch_size),
    )
    # A gradient of norm 1 at most, as clipped ones are, bears larger steps.
    print(f"ordinary training        {train(train_set, test_set, args, 2.0, []):.3f}")
    print(f"private training         {train(train_set, test_set, args, 20.0, [private]):.3f}")
    run = private.account
    epsilon, _ = run.accountant.epsilon_at_delta(run.noise_multiplier, run.num_steps, delta=1e-5)
    print(f"differential privacy     epsilon {epsilon:.2f} at delta 1e-5")


class BagOfWords(pl.LightningModule):
    """The mean of the word vectors, and a linear layer."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.words = nn.EmbeddingBag(NUM_ROWS, 16, mode="mean", padding_idx=0)
        self.topics = nn.Linear(16, NUM_CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        return self.topics(self.words(rows))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        rows, labels = batch
        return nn.functional.cross_entropy(self(rows), labels)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        rows, labels = batch
        self.log("test_accuracy", (self(rows).argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)


def train(
    train_set: TensorDataset,
    test_set: TensorDataset,
    args: argparse.Namespace,
    learning_rate: float,
    callbacks: list[pl.Callback],
) -> float:
    """Fit with the callbacks and return the test accuracy."""
    pl.seed_everything(0, verbose=False)  # public; noise and draws of private batches come from elsewhere
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        callbacks=callbacks,
        default_root_dir=args.output,
        log_every_n_steps=10,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = BagOfWords(learning_rate)
    trainer.fit(model, DataLoader(train_set, batch_size=args.batch_size, shuffle=True))
    return trainer.test(model, DataLoader(test_set, batch_size=1000), verbose=False)[0]["test_accuracy"]


def articles(file: Path) -> TensorDataset:
    """Rows of words (n, 48), padded with 0, and classes from 0."""
    with file.open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.reader(lines) if row[0].isdigit()]
    classes = torch.tensor([int(row[0]) for row in rows])
    hashed = torch.zeros(len(rows), NUM_WORDS, dtype=torch.int64)
    for position, row in enumerate(rows):
        words = re.findall("[a-z]+", " ".join(row[1:]).lower())[:NUM_WORDS]
        hashed[position, : len(words)] = torch.tensor(
            [1 + zlib.crc32(word.encode()) % (NUM_ROWS - 1) for word in words]
        )
    # The four classes are public; some files count them from 1.
    return TensorDataset(hashed, classes - int(classes.max() == NUM_CLASSES))


if __name__ == "__main__":
    main()
