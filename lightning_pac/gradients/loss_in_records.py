"""Losses that average over all targets of a batch, averaged in records first."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.gradients.calls import nested_tensors, record_count

__all__ = ["per_record_mean"]


@validated
def per_record_mean(model: nn.Module, batch: Any) -> Tensor:
    r"""The loss that a model computes itself, as a mean over records of means over each one's own targets.

    Models of Hugging Face divide a batch's cross-entropy by the number of targets in it that are not -100, so that a
    record weighs the more the fewer targets the others have, and its gradient depends on them. Here that loss is
    $\frac{1}{n} \sum_i \frac{1}{m_i} \sum_t \ell_{it}$, $m_i$ being the record's own targets that count, or the sum
    of their class weights; a record without any has loss zero. Any other loss of the model stays as it is.

    Args:
        model: Returns its loss, alone, first in a tuple, or as `loss` in a mapping or an object.
        batch: What it is called with: names and values, several arguments, or one. Its tensors hold records in
            dimension 0, and the rows of targets that are given to `F.cross_entropy` or `F.nll_loss` come in the order
            of the records.

    Raises:
        ValueError: If rows of targets cannot be divided into the records of the batch, or no loss is returned.

    Example:
        >>> class Model(nn.Module):
        ...     def forward(self, logits, labels):
        ...         return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}
        >>> batch = {"logits": torch.zeros(2, 3, 4), "labels": torch.tensor([[1, 2, 3], [-100, -100, 0]])}
        >>> round(float(per_record_mean(Model(), batch)), 4)  # log 4
        1.3863
    """
    count = record_count(list(nested_tensors(batch)), 0)
    with _InRecords(count):
        if isinstance(batch, Mapping):
            found: Any = model(**batch)
        else:
            found = model(*batch) if isinstance(batch, list | tuple) else model(batch)
    loss = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", found)
    loss = loss[0] if isinstance(loss, tuple) else loss
    if not isinstance(loss, Tensor) or loss.dim():
        raise ValueError(
            f"{type(model).__name__} returned no loss for this batch: give it the targets, under their name."
        )
    return loss


class _InRecords(TorchFunctionMode):
    """Divides cross-entropies by what counts in each record.

    Args:
        count: Records of the batch.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in (F.cross_entropy, F.nll_loss):
            return func(*args, **kwargs)
        names = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
        given = dict(zip(names, args, strict=False)) | kwargs
        # These are what `reduction` was before torch 1.0, and decide where they are given.
        old = [value for value in (given.pop("size_average", None), given.pop("reduce", None)) if value is not None]
        if not (all(old) if old else given.get("reduction", "mean") == "mean"):
            return func(*args, **kwargs)
        losses = func(**(given | {"reduction": "none"}))
        target, weight = given["target"], given.get("weight")
        # m_i adds up targets or their class weights, by which torch divides, too; class probabilities count one each.
        if target.is_floating_point():
            counts = torch.ones_like(losses)
        else:
            counted = target != given.get("ignore_index", -100)
            counts = counted.to(losses.dtype)
            if weight is not None:
                counts = counts * weight[target.where(counted, 0)]
        if losses.shape[:1].numel() % max(self._count, 1):
            raise ValueError(
                f"A loss has {len(losses)} rows of targets for the {self._count} records of the batch, so they "
                "cannot be averaged in records: average the losses yourself, each record's own first."
            )
        # (n, targets of a record) to (n,); a record in which nothing counts has the loss 0 / 1.
        losses, counts = (values.reshape(self._count, -1).sum(1) for values in (losses, counts))
        return (losses / torch.where(counts > 0, counts, 1.0)).mean()
