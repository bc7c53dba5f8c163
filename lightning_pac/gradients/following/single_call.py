"""Functions without a rule: the one call is differentiated record by record."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_pac.gradients.calls import Call, name_of, record_axis, tag_of, unflattened
from lightning_pac.gradients.contributions import Dense, Found, OwnRows

__all__ = ["per_record_gradients"]

_logger = logging.getLogger("lightning_pac.gradients")
# Records that `vmap` takes at once, which bounds the memory.
_CHUNK = 64
_looped: set[Any] = set()


def per_record_gradients(call: Call, leaves: Sequence[Any], structure: Any, free: Sequence[int]) -> Found:
    """Gradients of the free arguments of a call, by `vmap` of its vector-Jacobian product, or one by one.

    Args:
        call: The call.
        leaves: Its arguments as a flat list.
        structure: Makes them of it.
        free: Places of the free arguments.
    """
    n = call.count
    if not n:
        return [(leaves[place], _zeros(leaves[place])) for place in free]
    stacked: dict[int, Tensor] = {}
    for place, leaf in enumerate(leaves):
        if call.is_batched(leaf):
            stacked[place] = _stacked(call, leaf, tag_of(leaf))
    wanted = [place for place, gradient in enumerate(call.gradients) if gradient is not None]
    cotangents = []
    for place in wanted:
        gradient, output = call.gradients[place], call.outputs[place]
        assert gradient is not None
        assert output is not None
        if output[0].shares is not None:
            # A mean of n values hands each of them 1 / n of its gradient.
            cotangents.append((gradient / n).expand(n, *gradient.shape))
        else:
            cotangents.append(_stacked(call, gradient, output[0]))

    def outputs_of(values: Sequence[Any]) -> list[Tensor]:
        values = list(values)
        first = values[0]
        if call.writes and isinstance(first, Tensor):
            values[0] = first.clone()
        args, kwargs = unflattened(values, structure)
        with call.autocast.again():
            found = call.function(*args, **kwargs)
        if found is None:
            found = args[0]
        outputs = [found] if isinstance(found, Tensor) else list(found)
        return [outputs[place] for place in wanted]

    own = _rows_of_their_own(call, leaves, stacked, cotangents, outputs_of)
    mapped = [*stacked, *[place for place in own if place not in free]]
    slices = [*stacked.values(), *[own[place][0] for place in own if place not in free]]
    values = [own[place][0] if place in own else leaves[place] for place in free]

    def of_one(frees: Sequence[Tensor], singles: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
        def outputs(*given: Tensor) -> tuple[Tensor, ...]:
            replaced = list(leaves)
            for place, single in zip(mapped, singles, strict=True):
                replaced[place] = single
            for place, value in zip(free, given, strict=True):
                replaced[place] = value
            return tuple(outputs_of(replaced))

        # v^T J of one record's outputs, of the shape of the free arguments; over records, (n, *argument).
        pull = torch.func.vjp(outputs, *frees)[1]
        return pull(tuple(gradients))  # type: ignore[no-any-return]

    found: Sequence[Tensor] | None = None
    if call.function not in _looped:
        in_dims = ([0 if place in own else None for place in free], 0, 0)
        try:
            with torch.enable_grad():
                found = torch.func.vmap(of_one, in_dims=in_dims, randomness="different", chunk_size=_CHUNK)(
                    values, slices, cotangents
                )
        except Exception as error:
            _looped.add(call.function)
            _logger.warning("vmap cannot run %s (%s): its records are taken one by one.", name_of(call.function), error)
    if found is None:
        found = _one_by_one(call, leaves, mapped, slices, free, values, own, cotangents, outputs_of)
    results: list[Any] = []
    for place, gradients in zip(free, found, strict=True):
        if place in own:
            results.append((leaves[place], _own(gradients.detach(), own[place][1])))
        else:
            results.append((leaves[place], _dense(gradients.detach())))
    return results


def _stacked(call: Call, tensor: Tensor, tag: Any) -> Tensor:
    """Shape (n, *a record's), where a record keeps all dimensions."""
    shares: Tensor | None = tag.shares.values(call.count) if tag.shares is not None else None
    if shares is not None:
        return shares
    axis = record_axis(tensor.shape, tag, call.count) if tag.outer is not None else None
    if axis is None:
        raise call.refusal()
    if tag.rows is not None:
        return call._by_record(tensor, tag).movedim(1, axis + 1)
    return _unflattened(tensor, axis, call.count)


def _unflattened(tensor: Tensor, axis: int, count: int) -> Tensor:
    shape = tensor.shape
    return tensor.reshape(*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :]).movedim(axis, 0)


def _rows_of_their_own(
    call: Call,
    leaves: Sequence[Any],
    stacked: dict[int, Tensor],
    cotangents: Sequence[Tensor],
    outputs_of: Callable[[Sequence[Any]], list[Tensor]],
) -> dict[int, tuple[Tensor, int]]:
    """Free and constant arguments that have rows for every record, by what a record alone gives with the whole of them.

    Returns:
        By place, the argument with records in dimension 0, and the dimension that counted them.
    """

    def fits(own: dict[int, tuple[Tensor, int]]) -> bool:
        values = list(leaves)
        for place, value in stacked.items():
            values[place] = value[0]
        for place, (value, _) in own.items():
            values[place] = value[0]
        try:
            with torch.no_grad():
                shapes = [output.shape for output in outputs_of(values)]
        except Exception:
            return False
        return shapes == [cotangent.shape[1:] for cotangent in cotangents]

    # Right are those shapes with which a record alone gives outputs of the shape that its gradients have.
    if call.count == 1 or fits({}):
        return {}
    found: dict[int, tuple[Tensor, int]] = {}
    tag, shape = call.output
    axis = record_axis(shape, tag, call.count)
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor) or place in stacked or axis is None:
            continue
        # Broadcasting aligns from the right; other functions may count from the left.
        aligned = axis - (len(shape) - leaf.dim())
        for dim in dict.fromkeys((aligned, axis)):
            if 0 <= dim < leaf.dim() and leaf.shape[dim] > 1 and leaf.shape[dim] % call.count == 0:
                found[place] = (_unflattened(leaf, dim, call.count), dim)
                break
    if found and fits(found):
        return found
    raise call.refusal()


def _one_by_one(
    call: Call,
    leaves: Sequence[Any],
    mapped: Sequence[int],
    slices: Sequence[Tensor],
    free: Sequence[int],
    values: Sequence[Tensor],
    own: dict[int, Any],
    cotangents: Sequence[Tensor],
    outputs_of: Callable[[Sequence[Any]], list[Tensor]],
) -> list[Tensor]:
    rows: list[tuple[Tensor, ...]] = []
    for i in range(call.count):
        replaced = list(leaves)
        for place, value in zip(mapped, slices, strict=True):
            replaced[place] = value[i].detach()
        given = [
            (value[i] if place in own else value).detach().clone().requires_grad_()
            for place, value in zip(free, values, strict=True)
        ]
        for place, value in zip(free, given, strict=True):
            replaced[place] = value
        with torch.enable_grad():
            outputs = outputs_of(replaced)
            rows.append(
                torch.autograd.grad(
                    outputs,
                    given,
                    [cotangent[i] for cotangent in cotangents],
                    allow_unused=True,
                    materialize_grads=True,
                )
            )
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def _dense(gradients: Tensor) -> Callable[[], Dense]:
    return lambda: Dense(gradients)


def _own(gradients: Tensor, axis: int) -> Callable[[], OwnRows]:
    # Shape (n, *rows before, rows of a record, *rows behind).
    return lambda: OwnRows(gradients.movedim(axis + 1, 1), axis)


def _zeros(tensor: Tensor) -> Callable[[], Dense]:
    return lambda: Dense(tensor.new_zeros(0, *tensor.shape))
