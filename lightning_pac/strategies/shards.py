"""Tensors of which every rank holds some rows."""

from itertools import pairwise
from typing import Any

import torch.distributed as dist
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lightning_pac._validation import Natural, validated
from lightning_pac.strategies.ranks import Ranks

__all__ = ["RowShards"]


@validated
class RowShards:
    """Divides the rows of stacked tensors among ranks, as evenly as they go.

    Args:
        ranks: The processes that hold the rows.
        num_rows: Rows of every stacked tensor.

    Example:
        >>> shards = RowShards(Ranks(rank=1, size=3), num_rows=8)
        >>> shards.own, shards.sizes
        (slice(2, 5, None), [2, 3, 3])
    """

    def __init__(self, ranks: Ranks, num_rows: Natural) -> None:
        bounds = [num_rows * rank // ranks.size for rank in range(ranks.size + 1)]
        self._slices = [slice(start, stop) for start, stop in pairwise(bounds)]
        self._num_rows = num_rows
        self.own = self._slices[ranks.rank]

    @property
    def sizes(self) -> list[int]:
        """The number of rows each rank holds."""
        return [part.stop - part.start for part in self._slices]

    def cut(self, stacked: Any) -> Any:
        """This rank's rows of every tensor in a collection; tensors without dimensions stay as they are."""
        return apply_to_collection(stacked, Tensor, lambda tensor: tensor[self.own].clone() if tensor.dim() else tensor)

    def join(self, shards: Any) -> Any:
        """All rows of every tensor in a collection, on every rank; called by all ranks at once."""
        return apply_to_collection(shards, Tensor, self._join)

    def _join(self, shard: Tensor) -> Tensor:
        if not shard.dim():
            return shard
        stacked = shard.new_empty(self._num_rows, *shard.shape[1:])
        stacked[self.own] = shard.detach()
        for rank, part in enumerate(self._slices):
            dist.broadcast(stacked[part], src=rank)  # rows of a contiguous tensor are contiguous
        return stacked
