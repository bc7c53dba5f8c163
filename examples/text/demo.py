"""Sort news by topic with averaged word vectors, privately for each article.

    python examples/text/demo.py --data-root data

reads `ag_news/*.csv` below that folder: AG News with a class and a text in each row (a training file whose name holds
"train", and `test.csv`, whose columns are class, title and description). There is no small corpus to fall back on.

The first 5,000 training articles count as public: learning rates are chosen on them (`--choose` tries them all), and
they are not trained on.
"""

import argparse
import csv
import re
import zlib
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from lightning_pac import SRPPSGD, Poisson, SRPPAccountant, TwoWorldScenario

# Words are hashed to rows: a vocabulary that is counted in private articles would tell which words they use.
NUM_ROWS = 4096
NUM_WORDS = 48
NUM_CLASSES = 4
RATES = (1.0, 3.0, 10.0, 30.0)
SCENARIO = TwoWorldScenario.differential_privacy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder that holds the folder ag_news")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=2800, help="records in a batch, on average")
    parser.add_argument("--rate", type=float, default=0.1, help="probability that a record is in a batch")
    parser.add_argument("--public", type=int, default=5000, help="training articles that count as public")
    parser.add_argument("--learning-rate", type=float, default=10.0, help="by default the one that --choose finds best")
    parser.add_argument("--choose", action="store_true", help="try learning rates on the public articles, and stop")
    parser.add_argument("--output", type=Path, default=Path("runs/text"))
    args = parser.parse_args()
    folder = args.data_root / "ag_news"
    articles = read(next(folder.glob("*train*.csv")))
    public, train_set = (Subset(articles, part) for part in (range(args.public), range(args.public, len(articles))))

    sampling = Poisson(rate=args.rate, batch_size=args.batch_size)
    if args.choose:
        terms = SRPPAccountant(SCENARIO.resolve(len(train_set)), sampling, renyi_order=16)
        choose(public, terms.noise_multiplier(2.0, args.steps), args)
        return
    test_set = read(folder / "test.csv")
    private = SRPPSGD(SCENARIO, epsilon=2.0, renyi_order=16, sampling=sampling)
    print(f"ordinary training        {train(train_set, test_set, args, args.learning_rate, []):.3f}")
    print(f"private training         {train(train_set, test_set, args, args.learning_rate, [private]):.3f}")
    run = private.account
    epsilon, _ = run.accountant.epsilon_at_delta(run.noise_multiplier, run.num_steps, delta=1e-5)
    print(f"differential privacy     epsilon {epsilon:.2f} at delta 1e-5")


def choose(public: Subset, noise_multiplier: float, args: argparse.Namespace) -> None:
    """Fit four fifths of the public articles with the private run's noise, steps and batches; score on the rest."""
    cut = len(public) * 4 // 5
    fitted, scored = Subset(public, range(cut)), Subset(public, range(cut, len(public)))
    args.batch_size = min(args.batch_size, cut)
    sampling = Poisson(rate=args.batch_size / cut, batch_size=args.batch_size)
    for rate in RATES:
        private = SRPPSGD(SCENARIO, noise_multiplier=noise_multiplier, sampling=sampling)
        found = (train(fitted, scored, args, rate, callbacks) for callbacks in ([], [private]))
        print(f"learning rate {rate:<5g} ordinary {next(found):.3f}, private {next(found):.3f}")


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
    train_set: Dataset,
    test_set: Dataset,
    args: argparse.Namespace,
    learning_rate: float,
    callbacks: list[pl.Callback],
) -> float:
    """Fit with the callbacks and return the test accuracy."""
    pl.seed_everything(0, verbose=False)  # public; noise and draws of private batches come from elsewhere
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        max_steps=args.steps,
        callbacks=callbacks,
        default_root_dir=args.output,
        log_every_n_steps=10,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = BagOfWords(learning_rate)
    trainer.fit(model, DataLoader(train_set, batch_size=args.batch_size, shuffle=True))
    return trainer.test(model, DataLoader(test_set, batch_size=1000), verbose=False)[0]["test_accuracy"]


def read(file: Path) -> TensorDataset:
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
