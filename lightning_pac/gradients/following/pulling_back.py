"""From tensors that were computed from parameters back to the parameters, record by record."""

from collections.abc import Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_pac.gradients.calls import Free, tag_of
from lightning_pac.gradients.contributions import Contribution, OwnRows, Rows
from lightning_pac.gradients.rules.elementwise import sum_by_record

__all__ = ["ToParameters"]


class ToParameters:
    """Per-record gradients of derived tensors, added up until they are asked for."""

    def __init__(self) -> None:
        self._gradients: dict[int, tuple[Tensor, Tensor]] = {}

    def add(self, free: Tensor, contribution: Contribution | OwnRows) -> None:
        """Add a call's contribution to a free tensor."""
        tag: Free = tag_of(free)
        if isinstance(contribution, OwnRows):
            if tag.source is not None:
                whole = _whole(contribution, free.shape, tag.source.shape)
                if whole is not None:
                    self.add(tag.source, whole)
                    return
            gradients = _spread(contribution, free.shape)
        else:
            gradients = contribution.dense()
        earlier = self._gradients.get(id(free))
        self._gradients[id(free)] = (free, gradients if earlier is None else earlier[1] + gradients)

    @staticmethod
    def to_table(free: Tensor, contribution: Contribution | OwnRows) -> Contribution:
        """The contribution to a table from one to the rows that were looked up in it."""
        tag: Free = tag_of(free)
        assert tag.indices is not None
        assert tag.source is not None
        indices = tag.indices
        if isinstance(contribution, OwnRows) and contribution.axis < indices.dim():
            # (n, k, ...): the look-ups of each record.
            gradients = contribution.gradients
            rows = indices.movedim(contribution.axis, 0).reshape(gradients.shape[:-1])
        else:
            gradients = (
                contribution.dense() if isinstance(contribution, Contribution) else _spread(contribution, free.shape)
            )
            rows = indices.expand(gradients.shape[:-1])
        n, table = len(gradients), tag.source
        records = torch.arange(n, device=rows.device)[:, None].expand(n, rows[:1].numel())
        return Rows(n, len(table), records.reshape(-1), rows.reshape(-1).long(), gradients.reshape(-1, table.shape[1]))

    def uses_values(self, parameters: Container[int]) -> bool:
        """Whether the way back from a tensor leads through values of parameters, whose identities are given."""
        return any(tensor not in parameters for tensor in self._gradients)

    def per_record(self, parameters: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Numbers of parameters and their gradients, shape (n, *parameter), float32."""
        through = []
        index = {id(parameter): number for number, parameter in enumerate(parameters)}
        for free, gradients in self._gradients.values():
            if id(free) in index:
                yield index[id(free)], gradients
            else:
                through.append((free, gradients))
        if not through:
            return
        found = _pulled(
            [free for free, _ in through], [gradients.to(free.dtype) for free, gradients in through], parameters
        )
        for number, gradient in enumerate(found):
            if gradient is not None:
                yield number, gradient.float()

    @staticmethod
    def names_behind(free: Tensor, engine: Any) -> list[str]:
        """Names of the parameters that a tensor was computed from."""
        names, seen, nodes = [], set(), [free.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            name = engine.name_of(variable) if variable is not None else None
            names += [name] if name is not None else []
            nodes += [following for following, _ in node.next_functions]
        return names


def _pulled(
    frees: Sequence[Tensor], gradients: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    try:
        # One vector-Jacobian product, batched over the n records; where `vmap` cannot run a backward, n single ones.
        return torch.autograd.grad(
            frees, list(parameters), list(gradients), is_grads_batched=True, allow_unused=True, retain_graph=True
        )
    except RuntimeError:
        rows = [
            torch.autograd.grad(
                frees, list(parameters), [gradient[i] for gradient in gradients], allow_unused=True, retain_graph=True
            )
            for i in range(len(gradients[0]))
        ]
        return [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]


def _whole(contribution: OwnRows, shape: torch.Size, source: torch.Size) -> Contribution | None:
    """Gradients of the tensor whose rows were repeated."""
    axis = contribution.axis
    rows = contribution.gradients
    aligned = axis - (len(shape) - len(source))
    if aligned >= 0 and source[aligned] != 1:
        return None
    values = rows.flatten(0, 1).movedim(0, axis)
    found = sum_by_record(values, source, axis, rows.shape[0])
    return found if isinstance(found, Contribution) else None


def _spread(contribution: OwnRows, shape: torch.Size) -> Tensor:
    """Each record's gradient of the whole tensor: zero but for its own rows."""
    rows, axis = contribution.gradients, contribution.axis
    n = rows.shape[0]
    # (n, n, rows, ...): row i of the first dimension has its gradient in block i of the second.
    whole = rows.new_zeros(n, n, *rows.shape[1:])
    whole[torch.arange(n), torch.arange(n)] = rows
    return whole.flatten(1, 2).movedim(1, axis + 1).reshape(n, *shape)
