"""Gradients of single records by plain backward passes, independent of the engine that an audit is about."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

__all__ = ["RecordGradients"]

# Values of gradients that are held at once.
_AT_ONCE = 2**22


class RecordGradients:
    """Clipped gradients and losses of single records, by a copy of the model that follows its weights.

    Each gradient is that of a batch of one record. Where torch can, it takes many of these in one vectorised pass of a
    second copy (`torch.func.vmap`), which the first records are held against.

    Args:
        make_copy: Makes a copy of the model, on the CPU.
        make_batch: Makes a batch of records.
        names: Names of the trained parameters of each block.
        norms: Clipping norm of each block.
    """

    def __init__(
        self,
        make_copy: Callable[[], pl.LightningModule],
        make_batch: Callable[[list[Any]], Any],
        names: Sequence[Sequence[str]],
        norms: Sequence[float],
    ) -> None:
        self._step = _TrainingStep(make_copy())
        self._vectorised: _TrainingStep | None = _TrainingStep(make_copy())  # what a failed pass leaves stays in there
        self._make_batch = make_batch
        self._trained = {name: held for name, held in self._step.named_parameters() if held.requires_grad}
        ends = torch.tensor([held.numel() for held in self._trained.values()]).cumsum(0).tolist()
        places = dict(zip(self._trained, zip([0, *ends], ends, strict=False), strict=True))
        self._blocks = [[slice(*places[f"model.{name}"]) for name in block] for block in names]
        self._norms = tuple(norms)
        self._rows_at_once = max(1, _AT_ONCE // ends[-1])

    def follow(self, pl_module: pl.LightningModule) -> None:
        """Take over the weights and buffers of the model that is trained."""
        with torch.no_grad():
            theirs = {**dict(pl_module.named_parameters()), **dict(pl_module.named_buffers())}
            for name, value in (*self._step.model.named_parameters(), *self._step.model.named_buffers()):
                value.copy_(theirs[name])

    def of_rows(self, batch: Any, count: int) -> Iterator[Tensor]:
        """The clipped gradients of a batch's first rows, in float64, some of shape (rows, parameters) at a time."""
        if len({leaf.shape[:1] for leaf in _tensors(batch)} | {()}) > 2:
            raise MisconfigurationException(
                "CanaryAudit cuts a batch into its rows, but its tensors have different lengths: audit a twin whose "
                "collate function gives each tensor one row for a record."
            )
        return self._of_batches(
            [apply_to_collection(batch, Tensor, lambda leaf, row=row: _row(leaf, row)) for row in range(count)]
        )

    def of_records(self, records: Sequence[Any]) -> Iterator[Tensor]:
        """The clipped gradients of records that are in no batch, in the same way."""
        return self._of_batches([self._make_batch([record]) for record in records])

    def losses(self, records: Sequence[Any]) -> list[float]:
        """The loss of each record."""
        return [float(self._step(self._make_batch([record])).detach()) for record in records]

    def draws_at_random(self, record: Any) -> bool:
        """Whether a record's gradient is another one in a second pass."""
        batch = self._make_batch([record])
        first, second = (self._one_by_one([apply_to_collection(batch, Tensor, torch.clone)]) for _ in range(2))
        return not torch.equal(first, second)

    def hold_against(self, records: Sequence[Any]) -> None:
        """Go on record by record, unless the vectorised pass gives these the gradients of single passes."""
        batches = [self._make_batch([record]) for record in records]
        plain, found = self._one_by_one(batches), self._at_once(batches)
        if found is None or not torch.allclose(found, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max())):
            self._vectorised = None

    def _of_batches(self, batches: Sequence[Any]) -> Iterator[Tensor]:
        for start in range(0, len(batches), self._rows_at_once):
            some = batches[start : start + self._rows_at_once]
            found = self._at_once(some)
            yield self._clipped(self._one_by_one(some) if found is None else found)

    def _one_by_one(self, batches: Sequence[Any]) -> Tensor:
        parameters = list(self._trained.values())
        rows = []
        for batch in batches:
            gradients = torch.autograd.grad(self._step(batch), parameters, allow_unused=True)
            parts = [
                torch.zeros_like(parameter) if gradient is None else gradient
                for parameter, gradient in zip(parameters, gradients, strict=True)
            ]
            rows.append(torch.cat([part.reshape(-1).double() for part in parts]))
        return torch.stack(rows)

    def _at_once(self, batches: Sequence[Any]) -> Tensor | None:
        """The gradients by one vectorised pass; None where torch has none for these."""
        step = self._vectorised
        if step is None or not batches:
            return None
        try:
            stacked = [torch.stack(column) for column in zip(*map(_tensors, batches), strict=True)]  # (rows, 1, ...)
            values = {**dict(self._step.named_parameters()), **dict(self._step.named_buffers())}
            fixed = {name: value.detach() for name, value in values.items() if name not in self._trained}

            def loss(parameters: dict[str, Tensor], row: list[Tensor]) -> Tensor:
                leaves = iter(row)
                batch = apply_to_collection(batches[0], Tensor, lambda _: next(leaves))
                return functional_call(step, {**fixed, **parameters}, (batch,))  # type: ignore[no-any-return]

            found = vmap(grad(loss), in_dims=(None, 0))(
                {name: values[name].detach() for name in self._trained}, stacked
            )
        except Exception:  # whatever a model does that torch cannot vectorise
            self._vectorised = None
            return None
        return torch.cat([found[name].flatten(1).double() for name in self._trained], dim=1)

    def _clipped(self, gradients: Tensor) -> Tensor:
        for block, norm in zip(self._blocks, self._norms, strict=True):
            length = torch.stack([(gradients[:, part] ** 2).sum(dim=1) for part in block]).sum(dim=0).sqrt()  # (rows,)
            for part in block:
                gradients[:, part] *= (norm / length).clamp(max=1.0)[:, None]
        return gradients


def _tensors(batch: Any) -> list[Tensor]:
    """The tensors of a batch, in the order in which they are gone through."""
    found: list[Tensor] = []
    apply_to_collection(batch, Tensor, found.append)
    return found


def _row(leaf: Tensor, row: int) -> Tensor:
    return leaf[row : row + 1].cpu() if leaf.ndim else leaf.cpu()


class _TrainingStep(nn.Module):
    """The loss of a batch as a forward pass, which is what `torch.func` calls."""

    def __init__(self, model: pl.LightningModule) -> None:
        super().__init__()
        self.model = model
        self._with_index = is_param_in_hook_signature(model.training_step, "batch_idx", min_args=2)

    def forward(self, batch: Any) -> Tensor:
        with torch.enable_grad():
            found = self.model.training_step(batch, 0) if self._with_index else self.model.training_step(batch)
        loss = found["loss"] if isinstance(found, dict) else found
        assert isinstance(loss, Tensor)
        return loss
