"""Bags of embeddings that the copies of a network look up under `vmap`."""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

__all__ = ["StackedBags"]

_SIGNATURE = inspect.signature(F.embedding_bag)


class StackedBags(TorchFunctionMode):
    """Gives `F.embedding_bag` a batching rule, which torch lacks.

    Without one, each copy in turn adds the gradient of its table to a table of all copies, so that a step takes time
    in the square of their number.
    """

    @override
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.embedding_bag:
            given = _SIGNATURE.bind(*args, **(kwargs or {}))
            given.apply_defaults()
            if given.arguments["max_norm"] is None:  # which writes to the table
                return _Bags.apply(*given.args)
        return function(*args, **(kwargs or {}))


class _Bags(torch.autograd.Function):
    """No backward: autograd is outside of `vmap`, and sees what the rule is made of."""

    @staticmethod
    @override
    def forward(*args: Any) -> Tensor:
        return F.embedding_bag(*args)

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    @override
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        weight, dim = args[1], in_dims[1]
        if dim is not None and in_dims.count(None) == len(args) - 1:  # all look the same rows up: in one wide table
            wide = weight.movedim(dim, 1)  # (rows, copies, width)
            found = F.embedding_bag(args[0], wide.flatten(1), *args[2:])
            return found.view(-1, *wide.shape[1:]), 1
        columns = [
            [value] * info.batch_size if dim is None else value.unbind(dim)
            for value, dim in zip(args, in_dims, strict=True)
        ]
        return torch.stack([F.embedding_bag(*row) for row in zip(*columns, strict=True)]), 0
