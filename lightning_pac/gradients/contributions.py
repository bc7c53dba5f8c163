"""One call's contribution to the per-example gradients of one parameter, in the cheapest exact form."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from lightning_pac._shown import shows_itself
from lightning_pac.gradients.arithmetic import (
    accumulate,
    block_layout,
    squared_norm_of_sum,
    squared_norms,
    widest_type,
)

__all__ = [
    "Contribution",
    "Dense",
    "Found",
    "OuterProduct",
    "OwnRows",
    "PositionOuterProducts",
    "Rows",
    "TableOfProducts",
    "checked_squares",
    "squares_of_grams",
]

# Numbers up to which instantiated gradients of several parameters are put side by side.
_FEW = 2**14


class Contribution(ABC):
    """Per-example gradients of one parameter, n of them, not necessarily instantiated.

    Everything is float32, whatever the layer computed in: a bound on norms that were rounded to eight bits is none.
    """

    @abstractmethod
    def squares(self) -> Tensor:
        """Squared norm of each example's gradient, shape (n,), float64, at most a share 2^-14 too small."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Write the sum of gradients, example i times `weights[i]`, into `out` of the parameter's shape.

        That is float32, and float64 for more than 4,096 examples. With weights that clip, one example changes the
        result by no more than `arithmetic.ROUNDING` says.
        """

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the gradients themselves, shape (n, *parameter); the caller may not change them."""

    @property
    def is_small(self) -> bool:
        """Whether calls of functions on the instantiated gradients would cost more than the numbers in them do."""
        return False

    def plus(self, other: "Contribution") -> "Contribution":
        """The gradients of two calls with one parameter, added: the norm of a sum is not the sum of norms."""
        return Dense(self.dense() + other.dense())

    def joined(self, rows: int) -> "Contribution":
        """The gradients of examples that are made of `rows` of these each, side by side: their sums."""
        return Dense(self.dense()).joined(rows)

    @abstractmethod
    def drop(self, excluded: Tensor) -> None:
        """Set the gradients of the examples where `excluded`, shape (n,), is true to zero, even if not finite."""


@shows_itself
class Dense(Contribution):
    """Instantiated gradients, shape (n, *parameter); complex ones are of tensors that are computed from parameters."""

    def __init__(self, gradients: Tensor) -> None:
        if not isinstance(gradients, Tensor):
            raise TypeError(f"gradients must be a Tensor, got an object of type {type(gradients).__name__}.")
        self._gradients = gradients if gradients.is_complex() else gradients.float()

    @override
    def squares(self) -> Tensor:
        return squared_norms(self._rows())

    @override
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        flat = self._rows()
        # sum_i w_i g_i: (width, rows of a block) times (rows,).
        accumulate(out.view(-1), len(flat), 1, lambda rows, part: torch.mv(flat[rows].t(), weights[rows], out=part))

    @override
    def dense(self) -> Tensor:
        return self._gradients

    @property
    @override
    def is_small(self) -> bool:
        return self._gradients.numel() <= _FEW

    @override
    def joined(self, rows: int) -> Contribution:
        return Dense(self._gradients.reshape(-1, rows, *self._gradients.shape[1:]).sum(1))

    def _rows(self) -> Tensor:
        return self._gradients.flatten(1) if self._gradients.dim() > 1 else self._gradients[:, None]

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
        return squared_norms(self._inputs) * squared_norms(self._output_gradients)

    @override
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        # sum_i (w_i g_i) a_i^T as one product (out, n) (n, in).
        _add_up_products(out, self._output_gradients * weights[:, None], self._inputs, len(weights), 1)

    @override
    def dense(self) -> Tensor:
        return self._output_gradients[:, :, None] * self._inputs[:, None, :]

    @property
    @override
    def is_small(self) -> bool:
        return self._output_gradients.numel() * self._inputs.shape[1] <= _FEW

    @override
    def joined(self, rows: int) -> Contribution:
        return PositionOuterProducts(self._inputs[:, None], self._output_gradients[:, None]).joined(rows)

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

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """Inputs a and output gradients g."""
        return self._inputs, self._output_gradients

    @override
    def plus(self, other: Contribution) -> Contribution:
        return other.plus(self) if isinstance(other, Rows) else super().plus(other)

    @override
    def squares(self) -> Tensor:
        # Both Gram matrices (n, T, T): T^2 (in + out) products a record, where the gradients take T in out.
        width = self._inputs.shape[2] + self._output_gradients.shape[2]
        return squares_of_grams(
            self._inputs @ self._inputs.mT, self._output_gradients @ self._output_gradients.mT, width
        )

    @override
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        self.add_up(weights, out)

    def add_up(self, weights: Tensor, out: Tensor, longest: float = 1.0) -> None:
        """The weighted sum, of gradients that are `longest` times the clipping norm long once they are weighted."""
        # sum_{i,t} (w_i g_it) a_it^T as one product (out, n T) (n T, in): a record's positions are rows like others.
        weighted = (self._output_gradients * weights[:, None, None]).flatten(0, 1)
        records, terms = self._inputs.shape[:2]
        _add_up_products(out, weighted, self._inputs.flatten(0, 1), records, terms, longest)

    @override
    def dense(self) -> Tensor:
        # (n, out, T) (n, T, in), summed over positions.
        return self._output_gradients.mT @ self._inputs

    @override
    def joined(self, rows: int) -> Contribution:
        joined = PositionOuterProducts(
            self._inputs.reshape(len(self._inputs) // rows, -1, self._inputs.shape[2]),
            self._output_gradients.reshape(len(self._inputs) // rows, -1, self._output_gradients.shape[2]),
        )
        # T (in + out) numbers a record stay factors while they are fewer than the in * out of its gradient.
        (_, terms, wide), narrow = joined._inputs.shape, joined._output_gradients.shape[2]
        return joined if terms * (wide + narrow) <= wide * narrow else Dense(joined.dense())

    @override
    def drop(self, excluded: Tensor) -> None:
        self._inputs = self._inputs.masked_fill(excluded[:, None, None], 0.0)
        self._output_gradients = self._output_gradients.masked_fill(excluded[:, None, None], 0.0)


@dataclass(frozen=True)
class OwnRows:
    """Gradients of a free tensor that has rows for every record: each record's, of its own rows.

    Attributes:
        gradients: Shape (n, rows of a record, *what is left without the dimension of rows).
        axis: That dimension.
    """

    gradients: Tensor
    axis: int


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
        # An example's touches of one row are added up before anything else sees them, so that none can cancel later.
        keys, place = torch.unique(examples * num_rows + rows, return_inverse=True)
        self._examples, self._rows = keys // num_rows, keys % num_rows
        self._gradients = gradients.new_zeros(keys.numel(), gradients.shape[1], dtype=torch.float32)
        self._gradients.index_add_(0, place, gradients.float())

    @override
    def plus(self, other: Contribution) -> Contribution:
        if isinstance(other, PositionOuterProducts):
            # Tied embeddings: the look-ups and the products of one table.
            return TableOfProducts(self, other)
        return super().plus(other)

    def padded(self) -> tuple[Tensor, Tensor]:
        """Rows and their gradients by example, (n, m) and (n, m, width): row 0 with gradient zero behind the last."""
        # Sorted by example (`torch.unique` sorts keys), a touch's place is its number less that of its example's first.
        sizes = torch.bincount(self._examples, minlength=self._num_examples)
        most = int(sizes.max()) if len(sizes) else 0
        place = torch.arange(len(self._examples), device=sizes.device) - (sizes.cumsum(0) - sizes)[self._examples]
        rows = self._rows.new_zeros(self._num_examples, most)
        gradients = self._gradients.new_zeros(*rows.shape, self._gradients.shape[1])
        rows[self._examples, place], gradients[self._examples, place] = self._rows, self._gradients
        return rows, gradients

    @override
    def squares(self) -> Tensor:
        # Rows of an example are distinct after merging, so that their squares add up.
        totals = self._gradients.new_zeros(self._num_examples, dtype=widest_type(self._gradients.device))
        return totals.index_add_(0, self._examples, squared_norms(self._gradients))

    @override
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        # In float64: a row that many examples touch is added up one by one, on a GPU in any order.
        touched, place = torch.unique(self._rows, return_inverse=True)
        wide = widest_type(out.device)
        totals = self._gradients.new_zeros(touched.numel(), self._gradients.shape[1], dtype=wide)
        totals.index_add_(0, place, self._gradients.to(wide) * weights.to(wide)[self._examples, None])
        out.zero_()[touched] = totals.to(out.dtype)

    @override
    def dense(self) -> Tensor:
        table = self._gradients.new_zeros(self._num_examples * self._num_rows, self._gradients.shape[1])
        table[self._examples * self._num_rows + self._rows] = self._gradients
        return table.view(self._num_examples, self._num_rows, -1)

    @override
    def joined(self, rows: int) -> Contribution:
        return Rows(self._num_examples // rows, self._num_rows, self._examples // rows, self._rows, self._gradients)

    @override
    def drop(self, excluded: Tensor) -> None:
        self._gradients = self._gradients.masked_fill(excluded[self._examples, None], 0.0)


class TableOfProducts(Contribution):
    r"""Gradients of a table that is looked up and multiplied with, as tied embeddings are, through Gram matrices.

    A touch of row r with gradient a is the outer product $e_r a^\top$: a record's gradient is a sum of T + m of them.

    Args:
        rows: The look-ups.
        products: The products.
    """

    def __init__(self, rows: Rows, products: PositionOuterProducts) -> None:
        self._rows, self._products = rows, products

    @override
    def squares(self) -> Tensor:
        rows, gradients = self._rows.padded()
        inputs, outputs = self._products.factors
        # Terms are g_t a_t^T and e_r a_r^T. Of the left factors, g_t . e_r is entry r of g_t, and e_r . e_s is 1 where
        # r = s; the right ones are a_t and a_r. What fills rows up has a_r = 0, and drops out.
        across = outputs.gather(2, rows[:, None, :].expand(-1, outputs.shape[1], -1))
        same = (rows[:, :, None] == rows[:, None, :]).to(outputs.dtype)
        gram = torch.cat([torch.cat([outputs @ outputs.mT, across], 2), torch.cat([across.mT, same], 2)], 1)
        joined = torch.cat([inputs, gradients], 1)
        # Products are added up T at a time, so that is what their lengths are held against.
        return squares_of_grams(joined @ joined.mT, gram, inputs.shape[2] + outputs.shape[2], inputs.shape[1])

    @override
    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        # Products and look-ups of a record may cancel, and are then longer than what it is clipped to: kappa times.
        products, looked_up = (torch.empty_like(out, dtype=widest_type(out.device)) for _ in range(2))
        self._products.add_up(weights, products, block_layout(self._products.factors[0].shape[1])[1])
        self._rows.weighted_sum(weights, looked_up)
        out.copy_(products.add_(looked_up))

    @override
    def dense(self) -> Tensor:
        return self._rows.dense() + self._products.dense()

    @override
    def joined(self, rows: int) -> Contribution:
        return self._rows.joined(rows).plus(self._products.joined(rows))

    @override
    def drop(self, excluded: Tensor) -> None:
        self._rows.drop(excluded)
        self._products.drop(excluded)


def checked_squares(contribution: Contribution, count: int) -> Tensor:
    """The squared norms of that many examples; those of fewer would be broadcast, and all clipped as one."""
    squares = contribution.squares()
    if squares.shape != (count,):
        raise RuntimeError(
            f"A {type(contribution).__name__} gave squared norms of shape {tuple(squares.shape)} for {count} records: "
            "return one for each."
        )
    return squares


# What a rule returns: free arguments, and how to build the contribution to each.
Found = Sequence[tuple[Tensor, Callable[[], Contribution | OwnRows]]]


def squares_of_grams(inputs: Tensor, output_gradients: Tensor, width: int, added: int | None = None) -> Tensor:
    """Squared norms from the Gram matrices of both factors of T outer products.

    Args:
        inputs: Shape (n, T, T).
        output_gradients: Shape (n, T, T); it is overwritten.
        width: What the entries of the two were summed over, in all.
        added: Of the T terms of a record, those that its weighted sum adds up in float32; None for all.
    """
    smallest = torch.finfo(torch.float32).tiny
    # |a_t| and |g_t|, shape (n, T), kept above zero where squares underflow.
    lengths = [(gram.diagonal(dim1=1, dim2=2).clamp(min=0.0) + smallest).sqrt() for gram in (inputs, output_gradients)]
    wide = widest_type(inputs.device)
    sizes = (lengths[0].to(wide) * lengths[1]).sum(1)
    # sum_{t,u} (a_t . a_u) (g_t . g_u): products in float32, their T^2 terms, of either sign, added in float64.
    squares = output_gradients.mul_(inputs).sum((1, 2), dtype=wide)
    return squared_norm_of_sum(squares, sizes, width, inputs.shape[1], added)


def _add_up_products(
    out: Tensor, left: Tensor, right: Tensor, num_records: int, terms: int, longest: float = 1.0
) -> None:
    accumulate(out, num_records, terms, lambda rows, part: torch.mm(left[rows].t(), right[rows], out=part), longest)
