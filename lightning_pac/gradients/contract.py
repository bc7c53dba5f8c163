"""The contract of a gradient engine: per-example gradients go in, only their clipped sum comes out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lightning_pac._validation import validated
from lightning_pac.gradients.clipping import ClippingRule, clip

__all__ = [
    "NO_GRADIENT",
    "GradientEngine",
    "block_index",
    "count_records",
    "flat_sum",
    "held_below",
    "trainable_parameters",
]

NO_GRADIENT = (
    "No gradient of a record came through the model in this backward pass: attach before the forward pass, and let no "
    "branch replace the loss, as a guard against NaN does."
)
"""Why there is nothing to clip."""


class GradientEngine(ABC):
    """Turns backward passes into sums of clipped per-example gradients, without letting a raw gradient out.

    The order of calls is `attach` once, then for every microbatch an ordinary forward and backward pass of a loss that
    is the *mean* over its n records and one `clipped_sum`, and `detach` at the end. A record may have several rows, all
    the same number, side by side: its loss is then their mean, and they are clipped as one. While an engine is
    attached, the `grad` of a trainable parameter is empty after every backward pass.

    Attributes:
        public_gradient: That of terms without records in the last microbatch, as a vector of all trainable parameters
            one after the other, not scaled; None if there was none.
    """

    public_gradient: Tensor | None = None

    @abstractmethod
    def attach(
        self,
        module: nn.Module,
        blocks: Mapping[str, Sequence[str]] | None = None,
        rows_per_record: int = 1,
        gathered: Mapping[str, nn.Parameter] | None = None,
        gathering: Callable[[bool], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Hook into `module` and everything below it.

        Args:
            module: The module to be trained; it is neither wrapped nor renamed.
            blocks: Names of parameters for each block that is clipped on its own. Each trainable parameter belongs to
                exactly one. None is one block of all.
            rows_per_record: Rows of a batch that make up a record.
            gathered: By name, the parameters that modules compute with, where they hold others between passes, such as
                shards of them; their values may be gone between passes.
            gathering: Called between passes with whether values of those are needed; inside its context they are there.

        Raises:
            ValueError: The module has no trainable parameter, a layer that mixes examples, or blocks that do not
                partition the trainable parameters.
        """

    @abstractmethod
    def clipped_sum(
        self,
        max_grad_norm: float | Sequence[float],
        scale: float = 1.0,
        num_records: int | None = None,
        rule: ClippingRule = clip,
        unused_rows: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        r"""Clip the gradients of the last microbatch and forget them.

        With $g_i$ the gradient of record i's share of the loss, the record's gradient is `n * scale` times it, and the
        sum is $\sum_i g_i \min(1, C / \lVert g_i \rVert)$, or has the factors of another rule. A record with a gradient
        that is not finite counts as zero. One record more, less or changed moves the sums as they are returned by at
        most the share `ROUNDING` above what it does in real arithmetic, if the gradients that reach the functions are
        the same for all others and their places but for one, too.

        Args:
            max_grad_norm: C, one for all blocks or one for each.
            scale: Undoes a division of the loss, by the number of accumulated microbatches for example.
            num_records: Only the first rows of the microbatch are records, the others dummies, whose gradients count as
                exactly zero; None for no dummies.
            rule: How norms become factors.
            unused_rows: Rows whose gradients count as zero, where a record fills fewer; one truth value for each row.

        Returns:
            The sums in the order of the parameters that were trainable at `attach`, in float32, and in float64 for more
            than 4,096 records, whose sum a rounding to float32 would move by more than `ROUNDING` says; and the norms
            before clipping, shape (n, number of blocks); a record that counts as zero has norm zero.
        """

    def clipped_parts(
        self,
        max_grad_norm: float | Sequence[float],
        scale: float = 1.0,
        num_records: int | None = None,
        rule: ClippingRule = clip,
        unused_rows: Tensor | None = None,
    ) -> tuple[Iterator[Tensor], Tensor]:
        """As `clipped_sum`, where the sums are not all wanted at once: each may be formed when it is asked for.

        The engine may go on to the next microbatch once all have been asked for.
        """
        sums, norms = self.clipped_sum(max_grad_norm, scale, num_records, rule, unused_rows)
        return iter(sums), norms

    @abstractmethod
    def detach(self) -> None:
        """Remove every hook and leave the module as it was before `attach`."""


@validated
def flat_sum(sums: Sequence[Tensor]) -> Tensor:
    """The sums as one vector: without a copy where they lie side by side in one buffer, as those of an engine do.

    Args:
        sums: Tensors of one type on one device, as `clipped_sum` returns them.

    Example:
        >>> buffer = torch.arange(5.0)
        >>> flat_sum([buffer[:2], buffer[2:]]).data_ptr() == buffer.data_ptr()
        True
    """
    if not sums:
        raise ValueError("sums is empty: give those that clipped_sum returned.")
    first = sums[0]
    storage, size = first.untyped_storage().data_ptr(), 0
    for total in sums:
        # One buffer if each begins where the one before it ends.
        beside = (
            total.untyped_storage().data_ptr() == storage and total.storage_offset() == first.storage_offset() + size
        )
        if not beside or not total.is_contiguous() or total.dtype != first.dtype:
            return torch.cat([part.reshape(-1) for part in sums])
        size += total.numel()
    return first.as_strided((size,), (1,), first.storage_offset())


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by name, or a `ValueError` if there are none."""
    parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not parameters:
        raise ValueError(f"{type(module).__name__} has no trainable parameter; unfreeze what is to be trained.")
    return parameters


def held_below(module: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters of a module and of those below it, in any order: `parameters` takes its time for their names."""
    layers, seen = [module], {module}
    for layer in layers:
        for below in layer._modules.values():
            if below is not None and below not in seen:
                seen.add(below)
                layers.append(below)
        for parameter in layer._parameters.values():
            if parameter is not None:
                yield parameter


def count_records(num_rows: int, rows_per_record: int) -> int:
    """The number of records that the rows of a batch are."""
    records, rest = divmod(num_rows, rows_per_record)
    if rest:
        raise ValueError(
            f"A batch has {num_rows} rows, which are no records of {rows_per_record} rows each: give every record as "
            "many rows as any other."
        )
    return records


def block_index(names: Sequence[str], blocks: Mapping[str, Sequence[str]] | None) -> list[int]:
    """Number of the block of each trainable parameter, after checking that the blocks partition them."""
    if blocks is None:
        return [0] * len(names)
    owner: dict[str, int] = {}
    for index, (block, members) in enumerate(blocks.items()):
        for name in members:
            if name in owner:
                raise ValueError(f"blocks name the parameter {name!r} more than once: leave it in one.")
            if name not in names:
                raise ValueError(f"blocks[{block!r}] names {name!r}, which is not a trainable parameter of the module.")
            owner[name] = index
    missing = [name for name in names if name not in owner]
    if missing:
        raise ValueError(f"blocks leave out {missing[0]!r}, which is trainable: add it to one or freeze it.")
    return [owner[name] for name in names]
