"""What every network of the matrix has to show: its clipped sum is that of records alone, and one moves it by 2 C."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from batches import RECORDS
from entries import Entry
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import FixedDraws
from lightning_pac.gradients import ROUNDING, flat_sum, make_engine

NORM = 0.5
"""C, as a share of the records' median norm: about half of them are clipped."""
TOLERANCE, MARGIN = 1e-5, 4e-3
"""Of sums; of norms, which are raised where a gradient's terms may have cancelled, and never lowered."""


class Training(pl.LightningModule):
    """A network under its loss."""

    def __init__(self, network: nn.Module, loss: Callable[[nn.Module, Any], Tensor]) -> None:
        super().__init__()
        self.network = network
        self._loss = loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._loss(self.network, batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], 0.1)


@contextmanager
def in_float64() -> Iterator[None]:
    """What is made inside is of double precision: rounding is none of the errors that are looked for."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def rows(batch: Any, chosen: Sequence[int] | int) -> Any:
    """Some records of a batch, or one as it was before it was collated."""
    if isinstance(batch, Tensor):
        return batch[chosen if isinstance(chosen, int) else list(chosen)]
    if isinstance(batch, Mapping):
        return {name: rows(value, chosen) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)([rows(value, chosen) for value in batch])
    return batch


class Case:
    """One network with a batch; draws belong to records, or else to places in the batch."""

    def __init__(self, entry: Entry) -> None:
        torch.manual_seed(0)
        self.entry = entry
        with in_float64():
            self.model = Training(entry.build().train(), entry.loss).double()
            batch = entry.batch()
        self.batch = apply_to_collection(batch, Tensor, lambda t: t.double() if t.is_floating_point() else t)

    def loss(self, chosen: Sequence[int]) -> Tensor:
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        with in_float64(), nullcontext() if self.entry.draws else FixedDraws(chosen, 1):
            return self.model.training_step(rows(self.batch, chosen), 0)

    def ordinary(self, chosen: Sequence[int]) -> Tensor:
        """The gradient of records' mean loss, without an engine."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        found = torch.autograd.grad(self.loss(chosen), parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in found]).double()

    def clipped(self, chosen: Sequence[int], norm: float) -> tuple[Tensor, Tensor]:
        engine = make_engine()
        engine.attach(self.model)
        try:
            self.loss(chosen).backward()
            sums, norms = engine.clipped_sum(norm)
        finally:
            engine.detach()
        return flat_sum(sums).double().clone(), norms[:, 0].double()

    def error(self) -> tuple[float, float]:
        """Largest relative error of clipped sums, also of those where one record took another's place; largest move.

        Every record is replaced in turn; a move is the length of the sum's change, in clipping norms.
        """
        first, others = list(range(RECORDS)), list(range(RECORDS, 2 * RECORDS))
        exchanged = [[o if i == place else i for i in first] for place, o in zip(first, others, strict=True)]
        if self.entry.draws:
            whole, sizes = self.clipped(first, 1e30)
            worst, alone = relative(whole, RECORDS * self.ordinary(first)), {}
        else:
            alone = {i: self.ordinary([i]) for i in [*first, *others]}
            worst, sizes = 0.0, torch.stack([gradient.norm() for gradient in alone.values()])
        norm = NORM * float(sizes.median())
        total, norms = self.clipped(first, norm)
        move = 0.0
        for chosen in [first, *exchanged]:
            moved, moved_norms = self.clipped(chosen, norm)
            stay = [i for i in first if chosen[i] == i]
            worst = max(worst, relative(moved_norms[stay], norms[stay]))
            move = max(move, float((moved - total).norm()) / norm)
            if alone:
                truth = sizes[chosen]
                assert bool((moved_norms >= truth * (1 - 2**-13)).all()), "a norm is too small"
                assert bool((moved_norms <= truth * (1 + MARGIN) + 1e-6 * norm).all()), "a norm is too large"
                factors = (norm / moved_norms).clamp(max=1.0)
                worst = max(worst, relative(moved, sum(f * alone[i] for f, i in zip(factors, chosen, strict=True))))
        assert move <= 2 * (1 + ROUNDING), "a record moves the sum by more than 2 C"
        return worst, move


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def check(entry: Entry) -> tuple[float, float]:
    """The largest error and move; what is refused is refused by its reason, and trains after the advice."""
    case = Case(entry)
    if entry.refusal:
        with pytest.raises((ValueError, RuntimeError), match=entry.refusal):
            case.clipped(range(RECORDS), 1.0)
        if entry.advice is None:
            return math.nan, math.nan
        case.model.network = entry.advice(case.model.network)
    return case.error()
