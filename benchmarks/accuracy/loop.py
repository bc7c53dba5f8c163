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

from lightning_pac import BlockedPoisson, CyclicShuffle, Poisson, SRPPAccountant, TwoWorldScenario
from lightning_pac.accountants import SGDWorkload, best_bands, optimal_bands
from lightning_pac.callbacks.srpp_sgd.step import ClippingBlocks, NoisySum
from lightning_pac.gradients import make_engine
from lightning_pac.randomness import secure_generator
from lightning_pac.scenarios import Sampling

__all__ = ["Plan", "Recipe", "accuracy", "make_model", "plan_of", "train", "train_by_opacus", "train_openly"]

MOMENTUM = 0.9


@dataclass(frozen=True)
class Recipe:
    """A way to train: what is tuned, and which parts of the library take part.

    Attributes:
        rates: Learning rates to choose from.
        optimizer: Made of parameters and a rate.
        max_grad_norm: Clipping norm, or "auto".
        bands: Their number, 1 for independent noise, or "best".
        in_order: Whether batches come in one order that is kept, instead of by Poisson sampling.
        decay: Of the averaged weights.
        rows: Views of a record, or records of a person.
        moves: Whether each view is moved at random.
        persons: Whether a unit is a person with as many records.
        num_differing: Records that the promise counts.
        sets: Where it is measured, everywhere if empty.
    """

    rates: tuple[float, ...]
    optimizer: Callable[[Any, float], torch.optim.Optimizer]
    max_grad_norm: float | str = 1.0
    bands: int | str = 1
    in_order: bool = False
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
    """What keeps the promise: the noise, and under Poisson sampling as many blocks as bands."""
    scenario = TwoWorldScenario(promise.get("num_differing", recipe.num_differing), units, promise["adjacency"])
    rate = batch / (units * (recipe.rows if recipe.persons else 1))

    def noise(account: SRPPAccountant) -> float:
        if "bound" in promise:
            return account.noise_multiplier_for(world_success_bound=promise["bound"], num_steps=steps)
        return account.noise_multiplier(promise["epsilon"], steps, delta=promise["delta"])

    sampling: Sampling = CyclicShuffle(batch) if recipe.in_order else Poisson(rate)
    bands = recipe.bands
    if bands == "best":
        best = best_bands(SRPPAccountant(scenario, sampling), steps, noise)
        bands, sampling = best.bands, best.sampling
    elif bands != 1 and not recipe.in_order:
        sampling = BlockedPoisson(rate, bands)
    matrix = None if bands == 1 else optimal_bands(SGDWorkload(steps, momentum=MOMENTUM), bands)
    return Plan(sampling, noise(SRPPAccountant(scenario, sampling, correlation=matrix)), matrix)


def make_model(data: Split, seed: int) -> nn.Module:
    """A linear model from zero, one with a hidden layer for pixels and beans, or two convolutions for photographs."""
    torch.manual_seed(seed)
    width, classes = data[0].shape[-1], int(data[1].max()) + 1
    if data[0].dim() == 4:
        first = nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.Tanh(), nn.AvgPool2d(2)
        second = nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, classes))
    if width in (16, 784):
        return nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, classes))
    model = nn.Linear(width, classes, bias=False)
    nn.init.zeros_(model.weight)
    return model


def accuracy(model: nn.Module, data: Split) -> float:
    """Share of the records that it classifies rightly, by the first of their views."""
    inputs = data[0][:, 0] if data[0].dim() == 3 else data[0]
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == data[1]).float().mean())


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
            inputs, labels = _shown(data[0], rows, recipe), data[1][rows]
            with engine.following((inputs, labels)):
                loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            summed.add(*engine.clipped_sum(blocks.norms, scale, None, blocks.rule, None))
        released = summed.release()[: summed.num_here] / batch_size
        parts = torch.split(released, [parameter.numel() for parameter in named.values()])
        for parameter, part in zip(named.values(), parts, strict=True):
            parameter.grad = part.view(parameter.shape).to(parameter.dtype)
        optimizer.step()
        _average(averaged, model, recipe, step)
    engine.detach()
    return averaged


def train_by_opacus(model: nn.Module, data: Split, recipe: Recipe, rate: float, plan: Plan, steps: int) -> nn.Module:
    """A run by Opacus: its gradients, clipping and noise, of the multiplier that its own accountant says."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.seed()  # its noise follows torch's generator, which holds the seed of the model
    batch_size = int(plan.sampling.expected_batch_size(len(data[1])))
    averaged, wrapped = copy.deepcopy(model), GradSampleModule(model)
    inner = recipe.optimizer(model.parameters(), rate)
    optimizer = DPOptimizer(
        inner, noise_multiplier=plan.noise_multiplier, max_grad_norm=1.0, expected_batch_size=batch_size
    )
    for step, drawn in zip(range(steps), _draws(plan.sampling, len(data[1])), strict=False):
        rows = torch.from_numpy(drawn)
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(_shown(data[0], rows, recipe)), data[1][rows]).backward()
        optimizer.step()
        _average(averaged, model, recipe, step)
    return averaged


def train_openly(model: nn.Module, data: Split, recipe: Recipe, rate: float, batch: int, steps: int) -> nn.Module:
    """A run without any promise."""
    averaged, optimizer = copy.deepcopy(model), recipe.optimizer(model.parameters(), rate)
    for step in range(steps):
        place = step * batch % (len(data[1]) - batch)
        if place < batch:
            order = torch.randperm(len(data[1]))
        rows = order[place : place + batch]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(_shown(data[0], rows, recipe)), data[1][rows]).backward()
        optimizer.step()
        _average(averaged, model, recipe, step)
    return averaged


def _average(averaged: nn.Module, model: nn.Module, recipe: Recipe, step: int) -> None:
    """Move the averaged weights towards the model's, all the way without a decay."""
    kept = 0.0 if recipe.decay is None else min(recipe.decay, (1 + step) / (10 + step))
    for mean, parameter in zip(averaged.parameters(), model.parameters(), strict=True):
        mean.data.lerp_(parameter.data, 1 - kept)


def _draws(sampling: Sampling, units: int) -> Iterator[Any]:
    kept = list(sampling.draw_pass(units, secure_generator())) if isinstance(sampling, CyclicShuffle) else None
    while True:
        yield from kept or sampling.draw_pass(units, secure_generator())


def _rows(drawn: Any, recipe: Recipe) -> torch.Tensor:
    """Rows of the units: a person's records lie side by side, views are the record itself."""
    units = torch.from_numpy(drawn)
    if recipe.persons:
        return (units[:, None] * recipe.rows + torch.arange(recipe.rows)).flatten()
    return units.repeat_interleave(recipe.rows)


def _shown(inputs: torch.Tensor, rows: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """The inputs of rows: of views that are there the first, or each row another; images moved where they are to be."""
    if inputs.dim() == 3:
        first = torch.randint(inputs.shape[1], (len(rows) // recipe.rows, 1)) if recipe.moves else 0
        views = (first + torch.arange(recipe.rows).expand(len(rows) // recipe.rows, -1)) % inputs.shape[1]
        return inputs[rows, views.flatten()]
    return _moved(inputs[rows]) if recipe.moves else inputs[rows]


def _moved(images: torch.Tensor) -> torch.Tensor:
    """Each image moved by up to two pixels in each direction, photographs by four, and mirrored half of the time."""
    if images.dim() == 2:
        return _rolled(images.view(-1, 1, 28, 28), 2).flatten(1)
    mirrored = torch.rand(len(images), 1, 1, 1) < 0.5
    return _rolled(torch.where(mirrored, images.flip(3), images), 4)


def _rolled(images: torch.Tensor, most: int) -> torch.Tensor:
    places = torch.arange(images.shape[2])
    down, right = torch.randint(-most, most + 1, (2, len(images), 1))
    rows, columns = (places + down) % len(places), (places + right) % len(places)
    # Shape (n, H, W, channels) after the two index arrays, which are apart.
    picked = images[torch.arange(len(images))[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.movedim(3, 1).contiguous()
