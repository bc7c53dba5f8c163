"""Accuracy of SGD by learning rate and noise: what the rule for learning rates and its warning rest on.

    python benchmarks/learning_rates.py [--steps 50 250] [--momentum 0.9] [--adam] [--cosine] [--squared] [--repeats 4]

Rates are multiples of the ratio of clipped signal to noise, times 1 - momentum; those of Adam are multiples of 0.01.
With `--cosine` they fall to zero. With `--squared`, numbers within [-1, 1] are learnt by their squared error, of which
the share of variance explained is shown in place of accuracy, and rates are multiples of 0.1 in place of the ratio. The
data are made or come with scikit-learn, a fifth of them is held out, and a batch has a fifth of the rest. Writes a
Markdown table.
"""

import argparse
import math

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification, make_friedman1
from torch import nn
from tqdm import tqdm

from lightning_pac.gradients import make_engine

MULTIPLES = (0.3, 1, 3, 10, 30, 100)
RATIOS = (0.2, 1.0, 5.0)
OF_SQUARED = (0.1, 0.3, 1, 3, 10)


def shapes() -> tuple[np.ndarray, np.ndarray]:
    """Pictures of 24 x 24 of a circle or a square, of any size, place and brightness."""
    generator, grid = np.random.default_rng(0), np.arange(24)
    labels, pictures = generator.integers(2, size=2000), np.full((2000, 1, 24, 24), -0.8)
    for picture, label in zip(pictures, labels, strict=True):
        half, row, column = generator.uniform(4, 7), *generator.uniform(8, 15, size=2)
        down, across = np.abs(grid - row)[:, None], np.abs(grid - column)[None]
        inside = np.maximum(down, across) < half if label else np.hypot(down, across) < half
        picture[0, inside] = generator.uniform(0.2, 1)
    return pictures, labels


def texts() -> tuple[np.ndarray, np.ndarray]:
    """Words of texts on four topics, whose frequencies fall as in a language and differ by topic."""
    generator = np.random.default_rng(0)
    labels = generator.integers(4, size=6000)
    frequencies = np.exp(generator.normal(0, 0.7, (4, 4096))) / np.arange(1, 4097)
    frequencies /= frequencies.sum(axis=1, keepdims=True)
    return np.stack([generator.choice(4096, 48, p=frequencies[label]) for label in labels]), labels


class Mean(nn.Module):
    """Averages the embeddings of a text's words."""

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """One row a text, of embeddings with one row a word."""
        return embeddings.mean(dim=1)


def settings() -> dict[str, tuple[np.ndarray, np.ndarray, nn.Sequential]]:
    """Features within about [-1, 1] or words, labels and a network."""
    table = make_classification(4000, 20, n_informative=8, random_state=1)
    table = (np.clip(table[0] / 4, -1, 1), table[1])
    cancer = load_breast_cancer(return_X_y=True)
    cancer = ((cancer[0] - cancer[0].mean(0)) / cancer[0].std(0), cancer[1])
    digits = load_digits(return_X_y=True)
    digits = (digits[0] / 8 - 1, digits[1])
    images = (digits[0].reshape(-1, 1, 8, 8), digits[1])
    return {
        "table, linear": (*table, nn.Sequential(nn.Linear(20, 2))),
        "table, one hidden layer": (*table, nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))),
        "cancer, linear": (*cancer, nn.Sequential(nn.Linear(30, 2))),
        "digits, linear": (*digits, nn.Sequential(nn.Linear(64, 10))),
        "digits, one hidden layer": (*digits, nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))),
        "shapes, convolution": (
            *shapes(),
            nn.Sequential(
                nn.Conv2d(1, 16, 5, stride=2), nn.Tanh(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 2)
            ),
        ),
        "texts, averaged embeddings": (
            *texts(),
            nn.Sequential(nn.Embedding(4096, 16), Mean(), nn.Linear(16, 4)),
        ),
        "digits, convolution": (
            *images,
            nn.Sequential(nn.Conv2d(1, 16, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(144, 10)),
        ),
    }


def loads() -> tuple[np.ndarray, np.ndarray]:
    """The load of a household in the next hour, after those of a day."""
    generator, hours = np.random.default_rng(0), np.arange(25)
    mean, peak = generator.uniform(0.2, 1, (4000, 1)), generator.uniform(0, 24, (4000, 1))
    load = 2 * mean * (1 + 0.6 * np.sin(2 * np.pi * (hours - peak) / 24)) - 1 + generator.normal(0, 0.1, (4000, 25))
    load = np.clip(load, -1, 1)
    return load[:, :24], load[:, 24]


def squared_settings() -> dict[str, tuple[np.ndarray, np.ndarray, nn.Sequential]]:
    """Features and numbers within [-1, 1], and a network."""
    features, numbers = make_friedman1(4000, random_state=0)
    friedman = (2 * features - 1, np.clip((numbers - 14.4) / 12, -1, 1))
    known = {"friedman": (friedman, 10), "loads": (loads(), 24)}
    linear = {f"{name}, linear": (*data, nn.Sequential(nn.Linear(width, 1))) for name, (data, width) in known.items()}
    return linear | {
        f"{name}, one hidden layer": (*data, nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, 1)))
        for name, (data, width) in known.items()
    }


def run(
    features: np.ndarray,
    labels: np.ndarray,
    network: nn.Sequential,
    *,
    ratio: float,
    multiple: float,
    steps: int,
    momentum: float,
    adam: bool,
    cosine: bool,
    squared: bool,
    seed: int,
) -> float:
    """Accuracy after one run, or the share of variance explained."""
    torch.manual_seed(seed)
    order = torch.randperm(len(labels))
    x, y = torch.tensor(features)[order], torch.tensor(labels)[order]
    x, y = (part.float() if part.is_floating_point() else part for part in (x, y))
    held = len(y) // 5
    for layer in network:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    parameters = list(network.parameters())
    batch = (len(y) - held) // 5
    deviation = batch / (ratio * math.sqrt(sum(parameter.numel() for parameter in parameters)))
    rate = multiple * (0.1 if squared else ratio) * (1 - momentum)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum)
    if adam:
        optimizer = torch.optim.Adam(parameters, lr=0.01 * multiple)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if cosine else None
    engine = make_engine()
    engine.attach(network)
    for _ in range(steps):
        drawn = held + (torch.rand(len(y) - held) < 0.2).nonzero()[:, 0]
        output = network(x[drawn])
        loss = (
            nn.functional.mse_loss(output[:, 0], y[drawn]) if squared else nn.functional.cross_entropy(output, y[drawn])
        )
        loss.backward()
        total, _ = engine.clipped_sum(max_grad_norm=1.0)
        for parameter, part in zip(parameters, total, strict=True):
            parameter.grad = (part + deviation * torch.randn_like(parameter)) / batch
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
    engine.detach()
    with torch.no_grad():
        output = network(x[:held])
        if squared:
            return float(1 - (output[:, 0] - y[:held]).square().mean() / y[:held].var())
        return float((output.argmax(dim=1) == y[:held]).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[50])
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--adam", action="store_true")
    parser.add_argument("--cosine", action="store_true")
    parser.add_argument("--squared", action="store_true")
    parser.add_argument("--repeats", type=int, default=4)
    args = parser.parse_args()
    known = squared_settings() if args.squared else settings()
    multiples = OF_SQUARED if args.squared else MULTIPLES
    rows = [(name, ratio, steps) for name in known for ratio in RATIOS for steps in args.steps]
    print("| | ratio | steps |", " | ".join(f"{multiple:g}" for multiple in multiples), "|")
    print("| --- | --- | --- |", " | ".join("---" for _ in multiples), "|")
    for name, ratio, steps in tqdm(rows):
        options = {"ratio": ratio, "steps": steps, "momentum": args.momentum, "adam": args.adam, "cosine": args.cosine}
        options["squared"] = args.squared
        cells = []
        for multiple in multiples:
            found = [run(*known[name], multiple=multiple, seed=seed, **options) for seed in range(args.repeats)]
            cells.append(f"{100 * sum(found) / len(found):.1f}")
        print(f"| {name} | {ratio:g} | {steps} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
