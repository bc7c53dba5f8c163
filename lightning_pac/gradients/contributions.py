"""One layer call's contribution to the per-example gradients of one parameter, in the cheapest exact form."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from lightning_pac.gradients.arithmetic import squared_norm_of_sum

__all__ = ["Contribution", "Contributions", "Dense", "OuterProduct", "PositionOuterProducts", "Rows"]

# Rows up to this length have norms to half a part in a million.
_LONGEST = 2048
_BLOCK = 512


class Contribution(ABC):
    """Per-example gradients of one parameter, n of them, not necessarily instantiated.

    Everything is float32, whatever the layer computed in: a bound on norms that were rounded to eight bits is none.
    """

    @abstractmethod
    def squares(self) -> Tensor:
        """Squared norm of each example's gradient, shape (n,)."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Write the sum of gradients, example i times `weights[i]`, into `out` of the parameter's shape."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the gradients themselves, shape (n, *parameter); the caller may not change them."""

    @abstractmethod
    def drop(self, excluded: Tensor) -> None:
        """Set the gradients of the examples where `excluded`, shape (n,), is true to zero, even if not finite."""


# What a rule returns: how to build the contribution to each parameter it may be asked for, by the parameter's name.
Contributions = dict[str, Callable[[], Contribution]]


class Dense(Contribution):
    """Instantiated gradients, shape (n, *parameter)."""

    def __init__(self, gradients: Tensor) -> None:
        self._gradients = gradients.float()

    @override
    def squares(self) -> Tensor:
        return _squared_norms(self._gradients.flatten(1))

    @override
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        torch.mv(self._gradients.flatten(1).t(), weights, out=out.view(-1))

    @override
    def dense(self) -> Tensor:
        return self._gradients

    @override
    def drop(self, excluded: Tensor) -> None:
        # Out of place: the gradients of a bias may be autograd's own tensor.
        self._gradients = self._gradients.masked_fill(excluded.view(-1, *[1] * (self._gradients.dim() - 1)), 0.0)


class OuterProduct(Contribution):
    r"""Rank-one gradients $g_i a_i^\top$ of a linear map applied once to each example.

    The squared norm is $\lVert g_i \rVert^2 \lVert a_i \rVert^2$ (Goodfellow 2015).

    Args:
        inputs: a, shape (n, in).
        output_gradients: g, shape (n, out).
    """

    def __init__(self, inputs: Tensor, output_gradients: Tensor) -> None:
        self._inputs, self._output_gradients = inputs.float(), output_gradients.float()

    @override
    def squares(self) -> Tensor:
        # A factor may fall below the smallest float and still matter beside a large one.
        smallest = torch.finfo(torch.float32).tiny
        return (_squared_norms(self._inputs) + smallest) * (_squared_norms(self._output_gradients) + smallest)

    @override
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        torch.mm((self._output_gradients * weights[:, None]).t(), self._inputs, out=out)

    @override
    def dense(self) -> Tensor:
        return torch.einsum("no,ni->noi", self._output_gradients, self._inputs)

    @override
    def drop(self, excluded: Tensor) -> None:
        self._inputs = self._inputs.masked_fill(excluded[:, None], 0.0)
        self._output_gradients = self._output_gradients.masked_fill(excluded[:, None], 0.0)


class PositionOuterProducts(Contribution):
    r"""Gradients $\sum_t g_{it} a_{it}^\top$ of a linear map applied at T positions, through their Gram matrices.

    The squared norm is $\sum_{t,u} (a_{it} \cdot a_{iu}) (g_{it} \cdot g_{iu})$ (Li et al. 2022, "Large language models
    can be strong differentially private learners").

    Args:
        inputs: a, shape (n, T, in).
        output_gradients: g, shape (n, T, out).
    """

    def __init__(self, inputs: Tensor, output_gradients: Tensor) -> None:
        self._inputs, self._output_gradients = inputs.float(), output_gradients.float()

    @override
    def squares(self) -> Tensor:
        gram = self._inputs @ self._inputs.mT
        gram.mul_(self._output_gradients @ self._output_gradients.mT)
        sizes = gram.diagonal(dim1=1, dim2=2).clamp(min=0.0).sqrt().sum(1)
        return squared_norm_of_sum(gram.sum((1, 2)), sizes)

    @override
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        weighted = (self._output_gradients * weights[:, None, None]).flatten(0, 1)
        torch.mm(weighted.t(), self._inputs.flatten(0, 1), out=out)

    @override
    def dense(self) -> Tensor:
        return self._output_gradients.mT @ self._inputs

    @override
    def drop(self, excluded: Tensor) -> None:
        self._inputs = self._inputs.masked_fill(excluded[:, None, None], 0.0)
        self._output_gradients = self._output_gradients.masked_fill(excluded[:, None, None], 0.0)


class Rows(Contribution):
    """Gradients of a table of which each example touches a few rows, possibly one row several times.

    Args:
        num_examples: n.
        num_rows: Rows of the table.
        examples: Example of each touch, shape (m,).
        rows: Row of each touch, shape (m,).
        gradients: Gradient of each touch, shape (m, width).
    """

    def __init__(self, num_examples: int, num_rows: int, examples: Tensor, rows: Tensor, gradients: Tensor) -> None:
        self._num_examples, self._num_rows = num_examples, num_rows
        self._examples, self._rows, self._gradients = examples, rows, gradients.float()

    @override
    def squares(self) -> Tensor:
        keys, place = torch.unique(self._examples * self._num_rows + self._rows, return_inverse=True)
        merged = self._gradients.new_zeros(keys.numel(), self._gradients.shape[1])
        merged.index_add_(0, place, self._gradients)
        totals = self._gradients.new_zeros(self._num_examples)
        squares = totals.index_add(0, keys // self._num_rows, merged.square().sum(1))
        sizes = totals.index_add(0, self._examples, torch.linalg.vector_norm(self._gradients, dim=1))
        return squared_norm_of_sum(squares, sizes)

    @override
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        out.zero_().index_add_(0, self._rows, self._gradients * weights[self._examples, None])

    @override
    def dense(self) -> Tensor:
        table = self._gradients.new_zeros(self._num_examples * self._num_rows, self._gradients.shape[1])
        table.index_add_(0, self._examples * self._num_rows + self._rows, self._gradients)
        return table.view(self._num_examples, self._num_rows, -1)

    @override
    def drop(self, excluded: Tensor) -> None:
        self._gradients = self._gradients.masked_fill(excluded[self._examples, None], 0.0)


def _squared_norms(rows: Tensor) -> Tensor:
    """Squared norms of rows, of long ones block by block: torch adds them up one by one, and loses 1e-3 of 10^6."""
    whole = rows.shape[1] - rows.shape[1] % _BLOCK if rows.shape[1] > _LONGEST else 0
    rest: Tensor = torch.linalg.vector_norm(rows[:, whole:], dim=1).square()
    if not whole:
        return rest
    blocks: Tensor = torch.linalg.vector_norm(rows[:, :whole].view(len(rows), whole // _BLOCK, _BLOCK), dim=2)
    return rest + blocks.square().sum(1)
