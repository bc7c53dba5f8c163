"""Terms behind the mean over the batch: their values for single records, and those that have no records."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lightning_pac.gradients.calls import Batched, functions_named, record_axis, tag_of

__all__ = ["ADDITIONS", "Shares", "is_affine"]

# A mean over the batch is a number, or one for each task.
_MOST_VALUES = 64
# How far a mean over the records may be off in float32, and where some of it was rounded to 8 or 11 bits.
_FINE, _COARSE = 1e-4, 1e-2
_SIGNS = {
    (1.0, 1.0): "add add_ __add__ __radd__ __iadd__",
    (1.0, -1.0): "sub sub_ __sub__ __isub__",
    (-1.0, 1.0): "__rsub__",
}
ADDITIONS = {function: signs for signs, names in _SIGNS.items() for function in functions_named(names)}
"""Signs of the first and the second argument."""

_PRODUCTS = set(functions_named("mul __mul__ __rmul__ __imul__ mul_"))
_QUOTIENTS = set(functions_named("div __truediv__ __itruediv__ div_ true_divide"))
_LINEAR = set(ADDITIONS) | set(
    functions_named(
        "neg __neg__ sum mean stack cat view reshape squeeze unsqueeze float double to clone __getitem__ unbind"
    )
)


class Shares:
    """The values of which a tensor is the mean over the records, computed when they are asked for.

    Attributes:
        tolerance: How far the tensor may lie from the mean, relative to the terms.

    Args:
        function: What computed the tensor.
        args: Its arguments.
        kwargs: And these.
        result: The tensor.
        public: Whether a term without records was added to it.
    """

    def __init__(
        self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor, public: bool
    ) -> None:
        self.public = public
        leaves, self._structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._function, self._result = function, result.detach()
        self._leaves = [(leaf.detach(), tag_of(leaf)) if isinstance(leaf, Tensor) else (leaf, None) for leaf in leaves]
        tensors = [result, *(leaf for leaf, _ in self._leaves if isinstance(leaf, Tensor))]
        behind = [tag.shares for _, tag in self._leaves if type(tag) is Batched and tag.shares is not None]
        narrow = any(one.is_floating_point() and one.element_size() < 4 for one in tensors)
        self.tolerance = max([_COARSE if narrow else _FINE, *(shares.tolerance for shares in behind)])

    @staticmethod
    def of(
        function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor, tag: Batched, public: bool
    ) -> Batched:
        """The tag of a result, with its shares where it can be a mean over the records."""
        if tag.outer is not None or result.dim() > 1 or result.numel() > _MOST_VALUES or not result.requires_grad:
            return tag
        return Batched(tag.owner, None, None, Shares(function, args, kwargs, result, public))

    def values(self, count: int) -> Tensor | None:
        """Shape (n, *tensor); None where the tensor is no mean over the records."""
        batched: list[tuple[int, Tensor]] = []
        for place, (leaf, tag) in enumerate(self._leaves):
            if type(tag) is Batched:
                own = _of_each(leaf, tag, count)
                if own is None:
                    return None
                batched.append((place, own))
        owns, places = [own for _, own in batched], [place for place, _ in batched]
        found = self._of_records(owns, places)
        if found is None:
            return None
        # Of made-up values, none of which can cancel: of the records' own a sum may look like a mean, and one record
        # would decide how much all others count.
        made = [_made_up(own, number) for number, own in enumerate(owns)]
        values = self._of_records(made, places)
        if values is None:
            return None
        multiple = _multiple(values, self._of_whole(made, batched), (1, count), self.tolerance)
        if multiple is None:
            return None
        # A record whose value is not finite leaves nothing to compare.
        finite = bool(self._result.isfinite().all())
        if finite and _multiple(found, self._result, (multiple,), self.tolerance) is None:
            return None
        return found * multiple

    def _of_whole(self, owns: Sequence[Tensor], batched: Sequence[tuple[int, Tensor]]) -> Tensor:
        """The tensor, were these the records' own parts."""
        whole = {}
        for (place, _), own in zip(batched, owns, strict=True):
            leaf, tag = self._leaves[place]
            assert tag is not None
            axis = None if tag.outer is None else record_axis(leaf.shape, tag, len(own))
            whole[place] = own.mean(0) if axis is None else own.movedim(0, axis).reshape(leaf.shape)
        return self._call(whole)

    def _of_records(self, owns: Sequence[Tensor], places: Sequence[int]) -> Tensor | None:
        """The function of each record's parts alone, shape (n, *tensor); None if it takes none."""

        def of_one(*one: Tensor) -> Tensor:
            return self._call(dict(zip(places, one, strict=True)))

        try:
            return torch.func.vmap(of_one)(*owns)
        except Exception:
            try:
                return torch.stack([of_one(*one) for one in zip(*owns, strict=True)])
            except Exception:
                return None

    def _call(self, replaced: Mapping[int, Tensor]) -> Tensor:
        leaves = [replaced.get(place, leaf) for place, (leaf, _) in enumerate(self._leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        result: Tensor = self._function(*args, **kwargs)
        return result


def _multiple(values: Tensor, result: Tensor, among: Sequence[int], tolerance: float) -> int | None:
    """Of which multiple of a record's values the result is the mean: once in a mean, n times in a sum."""
    if values.shape[1:] != result.shape:
        return None
    for multiple in among:
        mean, expected = values.mean(0), result / multiple
        # Relative to the terms: they may cancel in their mean, which then is rounding alone.
        size = values.abs().mean(0) + expected.abs()
        share = torch.where(size > 0, (mean - expected).abs() / size, 0.0)  # no number where one of them overflowed
        if bool((share <= tolerance).all()):
            return multiple
    return None


def _made_up(values: Tensor, number: int) -> Tensor:
    """Numbers between 1/4 and 3/4 in place of the argument of that number; integers, perhaps indices, stay."""
    if not values.is_floating_point():
        return values
    made = torch.linspace(0.5, 0.75**0.5, values.numel(), dtype=values.dtype, device=values.device).square()
    # In another order for the next argument, so that a quotient of two means is not one of equal numbers.
    return (made.flip(0) if number % 2 else made).view(values.shape)


def is_affine(function: Any, args: Sequence[Any]) -> bool:
    """Whether a result's slope in what holds a term without records is the same whatever the records are."""
    if function in _LINEAR:
        return True
    batched = [type(tag_of(arg)) is Batched for arg in args if isinstance(arg, Tensor)]
    if function in _PRODUCTS:
        return sum(batched) == 1
    return function in _QUOTIENTS and sum(batched) == 1 and type(tag_of(args[0])) is Batched


def _of_each(leaf: Tensor, tag: Batched, count: int) -> Tensor | None:
    if tag.outer is None:
        return tag.shares.values(count) if tag.shares is not None else None
    axis = record_axis(leaf.shape, tag, count)
    if axis is None or tag.rows is not None:
        return None
    shape = leaf.shape
    return leaf.reshape(*shape[:axis], count, shape[axis] // max(count, 1), *shape[axis + 1 :]).movedim(axis, 0)
