"""Training without a Trainer: the library's draws, clipping, noise and account, or those of Opacus.

The Trainer's checks take longer than the steps of models as small as these, and change nothing in what is released.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from sets import Split
from torch import nn

from lightning_pac import DPAdamBC, Poisson, SRPPAccountant, TwoWorldScenario
from lightning_pac.accountants import SGDWorkload, best_bands, optimal_bands
from lightning_pac.callbacks.srpp_sgd.step import ClippingBlocks, NoisySum
from lightning_pac.gradients import make_engine
from lightning_pac.randomness import secure_generator
from lightning_pac.scenarios import Sampling

__all__ = ["Plan", "Recipe", "accuracy", "make_model", "plan_of", "train", "train_by_opacus", "train_openly"]

MOMENTUM = 0.9


@dataclass(frozen=True)
class Recipe:
    """A way to train: what is tuned, and which parts of the library take part."""

    rates: tuple[float, ...]
    optimizer: Callable[[Any, float], torch.optim.Optimizer]
    max_grad_norm: float | str = 1.0
    bands: bool = False
    decay: float | None = None
    rows: int = 1
    moves: bool = False
    persons: bool = False
    num_differing: int = 1
    sets: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Plan:
    """The draws, the noise and its correlation, which keep a promise."""

    sampling: Sampling
    noise_multiplier: float
    correlation: Any


def plan_of(recipe: Recipe, units: int, batch: int, steps: int, promise: dict[str, Any]) -> Plan:
    """What keeps the promise: the noise, and with `bands` the blocks that leave the least of it."""
    scenario = TwoWorldScenario(promise.get("num_differing", recipe.num_differing), units, promise["adjacency"])
    sampling: Sampling = Poisson(batch / (units * (recipe.rows if recipe.persons else 1)))

    def noise(account: SRPPAccountant) -> float:
        if "bound" in promise:
            return account.noise_multiplier_for(world_success_bound=promise["bound"], num_steps=steps)
        return account.noise_multiplier(promise["epsilon"], steps, delta=promise["delta"])

    terms = SRPPAccountant(scenario, sampling)
    if not recipe.bands:
        return Plan(sampling, noise(terms), None)
    best = best_bands(terms, steps, noise)
    terms = SRPPAccountant(scenario, best.sampling)
    matrix = None if best.bands == 1 else optimal_bands(SGDWorkload(steps, momentum=MOMENTUM), best.bands)
    return Plan(best.sampling, noise(terms), matrix)


def make_model(data: Split, seed: int) -> nn.Module:
    """A linear model from zero, or with a hidden layer for pixels and beans."""
    torch.manual_seed(seed)
    width, classes = data[0].shape[1], int(data[1].max()) + 1
    if width in (16, 784):
        return nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, classes))
    model = nn.Linear(width, classes, bias=False)
    nn.init.zeros_(model.weight)
    return model


def accuracy(model: nn.Module, data: Split) -> float:
    """Share of the records that it classifies rightly."""
    with torch.no_grad():
        return float((model(data[0]).argmax(dim=1) == data[1]).float().mean())


def train(model: nn.Module, data: Split, recipe: Recipe, rate: float, plan: Plan, steps: int) -> nn.Module:
    """A private run by the library; the averaged weights where they are asked for."""
    optimizer = recipe.optimizer(model.parameters(), rate)
    blocks = ClippingBlocks.of(model, recipe.max_grad_norm, "optimal")
    named = dict(model.named_parameters())
    summed = NoisySum(named, blocks, plan.noise_multiplier, plan.correlation)
    units = len(data[1]) // (recipe.rows if recipe.persons else 1)
    batch_size = plan.sampling.expected_batch_size(units)
    averaged = copy.deepcopy(model)
    engine = make_engine()
    engine.attach(model, blocks.names, recipe.rows)
    scale = float(recipe.rows if recipe.persons else 1)  # a person's gradient is the sum over the records
    for step, drawn in zip(range(steps), _draws(plan.sampling, units), strict=False):
        if len(drawn):
            rows = _rows(drawn, recipe)
            inputs, labels = data[0][rows], data[1][rows]
            with engine.following((inputs, labels)):
                loss = nn.functional.cross_entropy(model(_moved(inputs) if recipe.moves else inputs), labels)
            loss.backward()
            summed.add(*engine.clipped_sum(blocks.norms, scale, None, blocks.rule, None))
        released = summed.release()[: summed.num_here] / batch_size
        parts = torch.split(released, [parameter.numel() for parameter in named.values()])
        for parameter, part in zip(named.values(), parts, strict=True):
            parameter.grad = part.view(parameter.shape).to(parameter.dtype)
        if isinstance(optimizer, DPAdamBC):
            spread = (deviation / batch_size for deviation in summed.released_deviations())
            optimizer.expect_noise(dict(zip(named.values(), spread, strict=True)))
        optimizer.step()
        if recipe.decay is not None:
            weight = 1 - min(recipe.decay, (1 + step) / (10 + step))
            for mean, parameter in zip(averaged.parameters(), model.parameters(), strict=True):
                mean.data.lerp_(parameter.data, weight)
    engine.detach()
    return model if recipe.decay is None else averaged


def train_by_opacus(model: nn.Module, data: Split, recipe: Recipe, rate: float, plan: Plan, steps: int) -> nn.Module:
    """A run by Opacus: its gradients, clipping and noise, of the multiplier that its own accountant says."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    batch_size = int(plan.sampling.expected_batch_size(len(data[1])))
    wrapped = GradSampleModule(model)
    inner = recipe.optimizer(model.parameters(), rate)
    optimizer = DPOptimizer(
        inner, noise_multiplier=plan.noise_multiplier, max_grad_norm=1.0, expected_batch_size=batch_size
    )
    for _, drawn in zip(range(steps), _draws(plan.sampling, len(data[1])), strict=False):
        rows = torch.from_numpy(drawn)
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(data[0][rows]), data[1][rows]).backward()
        optimizer.step()
    return model


def train_openly(model: nn.Module, data: Split, recipe: Recipe, rate: float, batch: int, steps: int) -> nn.Module:
    """A run without any promise."""
    optimizer = recipe.optimizer(model.parameters(), rate)
    for step in range(steps):
        place = step * batch % (len(data[1]) - batch)
        if place < batch:
            order = torch.randperm(len(data[1]))
        rows = order[place : place + batch]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data[0][rows]), data[1][rows]).backward()
        optimizer.step()
    return model


def _draws(sampling: Sampling, units: int) -> Iterator[Any]:
    while True:
        yield from sampling.draw_pass(units, secure_generator())


def _rows(drawn: Any, recipe: Recipe) -> torch.Tensor:
    """Rows of the units: a person's records lie side by side, views are the record itself."""
    units = torch.from_numpy(drawn)
    if recipe.persons:
        return (units[:, None] * recipe.rows + torch.arange(recipe.rows)).flatten()
    return units.repeat_interleave(recipe.rows)


def _moved(images: torch.Tensor) -> torch.Tensor:
    """Each image moved by up to two pixels in each direction."""
    square = images.view(-1, 28, 28)
    places = torch.arange(28)
    down, right = torch.randint(-2, 3, (2, len(square), 1))
    rows, columns = (places + down) % 28, (places + right) % 28
    return square[torch.arange(len(square))[:, None, None], rows[:, :, None], columns[:, None, :]].flatten(1)
