"""A check that the engine's examples are the records: what a record contributes must not depend on its company."""

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_pac._validation import validated
from lightning_pac.gradients.contract import GradientEngine, flat_sum
from lightning_pac.gradients.rules.measured_choice import instantiating

__all__ = ["coupling_error"]


@validated
def coupling_error(engine: GradientEngine, loss: Callable[[slice], Tensor], num_records: int) -> float:
    r"""Largest relative change of what records contribute when others of the batch are left out.

    Per-example gradients exist only if the loss is a mean of one term for each record. A class-weighted mean, a
    contrastive loss, a layer that mixes examples, or a first dimension that counts positions and not records all show
    as an error far above the rounding of float32, about 1e-5. The batch is taken apart into halves, and into every
    second record, every fourth and so on, so any two are parted. Ours.

    Args:
        engine: Attached to the model; nothing else may be between its backward pass and its clipped sum.
        loss: Mean loss over the records in a slice, with steps, of one synthetic batch; without randomness of its own.
        num_records: Records of that batch, an even number from two.

    Raises:
        ValueError: The engine saw another number of examples than the batch has records.

    Example:
        >>> from lightning_pac.gradients import make_engine
        >>> model, engine, x = torch.nn.Linear(3, 2), make_engine(), torch.randn(8, 3)
        >>> engine.attach(model)
        >>> coupling_error(engine, lambda rows: model(x[rows]).square().sum(1).mean(), 8) < 1e-4
        True
        >>> coupling_error(engine, lambda rows: model(x[rows] - x[rows].mean(0)).square().sum(1).mean(), 8) < 1e-4
        False
    """
    if num_records < 2 or num_records % 2:
        raise ValueError(f"num_records must be even and at least 2, got {num_records}.")
    # Sums are of n times each record's share, so that its gradient is the same in a part of a batch.
    half = num_records // 2
    partitions = [[slice(0, half), slice(half, num_records)]]
    stride = 2
    while stride < num_records:
        partitions.append([slice(start, num_records, stride) for start in range(stride)])
        stride *= 2
    with instantiating():
        whole_sum, whole_norms = _unclipped(engine, loss, slice(0, num_records))
        if whole_norms.shape[0] != num_records:
            raise ValueError(
                f"The engine saw {whole_norms.shape[0]} examples in a batch of {num_records} records; put the records "
                "in the first dimension of every input."
            )
        errors = []
        for parts in partitions:
            rest = whole_sum.clone()
            for rows in parts:
                part_sum, norms = _unclipped(engine, loss, rows)
                rest -= part_sum
                errors.append(torch.linalg.vector_norm(norms - whole_norms[rows]))
            errors.append(torch.linalg.vector_norm(rest))
    size = torch.linalg.vector_norm(whole_norms).clamp(min=torch.finfo(torch.float32).tiny)
    return float(torch.stack(errors).max() / size)


def _unclipped(engine: GradientEngine, loss: Callable[[slice], Tensor], rows: slice) -> tuple[Tensor, Tensor]:
    loss(rows).backward()  # type: ignore[no-untyped-call]
    sums, norms = engine.clipped_sum(max_grad_norm=1e30)
    return flat_sum(sums).clone(), norms
