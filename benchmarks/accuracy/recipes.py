"""Rows of the comparison: ways to train, the data sets they are measured on, and the promises they keep."""

import math
from typing import Any

import torch
from loop import MOMENTUM, Recipe

__all__ = [
    "BATCH", "DELTA", "EPOCHS", "EPSILON_OF_FACT", "ORDERED", "PROMISES", "RECIPES", "WHOLE", "rates_of", "rows_of",
]  # fmt: skip

DELTA = 1e-5
BATCH = 512
EPOCHS = {
    "adult": 4, "bank": 4, "dry_bean": 12, "mnist": 6, "mnist_features": 10, "cifar10_features": 6, "cifar10": 6,
    "ag_news": 5,
}  # fmt: skip
IMAGES = ("mnist", "cifar10_features", "cifar10")
GROUPED = ("adult", "bank", "dry_bean")
ORDERED = ("mnist_features",)


def sgd(parameters: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, rate, momentum=MOMENTUM)


SGD_RATES, ADAM_RATES = (0.1, 0.3, 1.0, 3.0, 10.0), (0.002, 0.006, 0.02, 0.06, 0.2)
PLAIN = Recipe(SGD_RATES, sgd)
AVERAGED = Recipe(SGD_RATES, sgd, decay=0.95)


def ordered(**parts: Any) -> Recipe:
    return Recipe((0.03, 0.1, 0.3, 1.0, 3.0), sgd, sets=ORDERED, **parts)


RECIPES: dict[str, Recipe] = {
    "non-private": PLAIN,
    "non-private, averaged": AVERAGED,
    "Opacus, PRV": PLAIN,
    "Opacus, PRV, averaged": AVERAGED,
    "plain": PLAIN,
    "all": Recipe(SGD_RATES, sgd, bands="best", decay=0.95),
    "best bands": Recipe(SGD_RATES, sgd, bands="best"),
    "averaged weights": AVERAGED,
    "auto": Recipe(SGD_RATES, sgd, max_grad_norm="auto"),
    "Adam": Recipe(ADAM_RATES, torch.optim.Adam),
    "moved images": Recipe(SGD_RATES, sgd, moves=True, sets=IMAGES),
    "moved images, 4 views": Recipe(SGD_RATES, sgd, moves=True, rows=4, sets=IMAGES),
    "persons of 4": Recipe(SGD_RATES, sgd, rows=4, persons=True, sets=GROUPED),
    "num_differing=4": Recipe(SGD_RATES, sgd, num_differing=4, sets=GROUPED),
    "one order": ordered(in_order=True),
    "one order, 4 bands": ordered(in_order=True, bands=4),
    "one order, 16 bands": ordered(in_order=True, bands=16),
    "one order, 40 bands": ordered(in_order=True, bands=40),
    "Poisson": ordered(),
    "blocks, 4 bands": ordered(bands=4),
    "blocks, 16 bands": ordered(bands=16),
    "blocks, best bands": ordered(bands="best"),
}
# Every part alone is measured at (3, 1e-5) only.
WHOLE = ("non-private, averaged", "Opacus, PRV, averaged", "plain", "all")
PROMISES: dict[str, dict[str, Any]] = {
    **{f"{epsilon:g}": {"epsilon": epsilon, "delta": DELTA, "adjacency": "zero_out"} for epsilon in (1.0, 3.0, 8.0)},
    "fact": {"bound": 0.6, "num_differing": 10, "adjacency": "replace"},
}
# A bound of 0.6 on ten replaced records from a promise about one that is added or removed, by group privacy: twenty
# steps of epsilon leave a guess at exp(20 epsilon) / (1 + exp(20 epsilon)), beside which delta is nothing.
EPSILON_OF_FACT = math.log(0.6 / 0.4) / 20


def rates_of(name: str, row: str, promise: str) -> tuple[float, ...]:
    """The learning rates that a row chooses from: larger where inputs are sparse, smaller beside much noise."""
    rates = RECIPES[row].rates
    if name == "ag_news" and RECIPES[row].optimizer is sgd:
        rates = tuple(10 * rate for rate in rates)
    # A fact of ten records takes ten times the noise, and its best rates lie lower.
    return (0.3 * rates[0], *rates[:-1]) if promise == "fact" else rates


def rows_of(name: str, promise: str) -> list[str]:
    """The rows of a data set at a promise: all parts at (3, 1e-5), noise in one order and by Poisson at any epsilon."""
    if name in ORDERED:
        return [row for row, recipe in RECIPES.items() if name in recipe.sets and promise != "fact"]
    if name == "cifar10":  # the dearest set
        return [*WHOLE, *(("averaged weights", "moved images", "moved images, 4 views") if promise == "3" else ())]
    if promise == "3":
        return [row for row, recipe in RECIPES.items() if not recipe.sets or name in recipe.sets]
    return list(WHOLE)
