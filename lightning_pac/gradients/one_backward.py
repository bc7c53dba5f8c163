"""The fast engine: one backward pass, without ordinary weight gradients, and a clipped sum from what it leaves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lightning_pac._shown import shows_itself
from lightning_pac._validation import Count, Natural, Positive, validated
from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.gradients.arithmetic import ieee_float32, sum_type, widest_type
from lightning_pac.gradients.calls import Call, Free, set_tag, tag_of
from lightning_pac.gradients.clipping import ClippingRule, clip, clip_factors
from lightning_pac.gradients.contract import (
    NO_GRADIENT,
    GradientEngine,
    block_index,
    count_records,
    held_below,
    trainable_parameters,
)
from lightning_pac.gradients.contributions import Contribution, Dense, OwnRows, checked_squares
from lightning_pac.gradients.following import Entrance, Following, Outsiders, Receiver, ToParameters
from lightning_pac.gradients.refusals import refuse_unfit_modules

__all__ = ["OneBackwardEngine"]

# A parameter, or some of its rows where one call uses only those.
Slot = tuple[int, int, int]
# A contribution with its block, and what it is the gradient of, small ones together.
Part = tuple[int, Contribution, list[Slot]]


@shows_itself
class OneBackwardEngine(GradientEngine, Receiver):
    """Per-example clipping near the cost of an ordinary step.

    Tensors that depend on parameters but not on the batch are followed to the functions where they meet it. There they
    are replaced by detached ones, so autograd never forms their ordinary gradient; a hook on the function's output
    receives the output gradient, from which, with the other arguments, the norms follow in the cheapest exact form for
    the function and the shape. The clipped sum is one contraction for each. The parameters themselves keep
    `requires_grad`: whatever is not seen gives one a gradient, and that is refused by name.

    Args:
        batch_first: Whether dimension 0 of a batch's tensors counts the examples, not 1; a module may have it, too.
        public_terms: Whether terms without records (penalties on weights) may be added to the mean of the losses, whose
            gradient the caller of `clipped_sum` then adds after the noise. Otherwise they are refused.
        rests: Whether a pass that begins now is none of training, and left alone; `bool()` is False.
    """

    def __init__(self, batch_first: bool = True, public_terms: bool = False, rests: Callable[[], bool] = bool) -> None:
        self._public_terms = public_terms
        self._entrance = Entrance(Following(self), batch_first, rests)
        self._handles: list[RemovableHandle] = []
        self._attached = False
        self._counted_by: Callable[[], str] = str
        self._task: int | None = None
        self._count: int | None = None
        self._outsiders: Outsiders | None = None
        self._forget()

    @override
    @validated
    def attach(
        self,
        module: nn.Module,
        blocks: Mapping[str, Sequence[str]] | None = None,
        rows_per_record: Count = 1,
        gathered: Mapping[str, nn.Parameter] | None = None,
        gathering: Callable[[bool], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        if self._attached:
            raise RuntimeError("This engine is attached already; detach it first.")
        held = trainable_parameters(module)
        named = held
        if gathered is not None:
            absent = next((name for name in held if name not in gathered), None)
            if absent is not None:
                raise ValueError(
                    f"gathered leaves out {absent!r}, which is trainable: give all of these by their names."
                )
            named = {name: gathered[name] for name in held}
        self._module, self._gathering, self._outsiders = module, gathering, Outsiders(module)
        self._names, self._parameters = list(named), list(named.values())
        self._size = sum(parameter.numel() for parameter in self._parameters)
        self._block_of = block_index(self._names, blocks)
        self._num_blocks = len(blocks) if blocks is not None else 1
        self._rows_per_record = rows_per_record
        refuse_unfit_modules(module)
        self._index = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        for index, parameter in enumerate(self._parameters):
            set_tag(parameter, Free((index, 0, -1)))
            hook = self._raw_gradient_hook(index)
            for form in {parameter, held[self._names[index]]}:
                self._handles.append(form.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        self._known = self._index.keys() | {id(parameter) for parameter in held.values()}
        self._entrance.open(module)
        self._attached = True
        self._forget()

    def following(self, batch: object) -> AbstractContextManager[None]:
        """Inside, what the batch and the parameters meet in is seen, also outside of the module's own calls."""
        return self._entrance.inside(batch, 0)

    @override
    @validated
    def clipped_sum(
        self,
        max_grad_norm: float | Sequence[float],
        scale: Positive = 1.0,
        num_records: Natural | None = None,
        rule: ClippingRule = clip,
        unused_rows: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        try:
            parts, weights, norms = self._weigh(max_grad_norm, scale, num_records, rule, unused_rows)
            flat, sums = self._empty_sums(sum_type(len(norms), self._device))
            with ieee_float32():
                for block, contribution, slots in parts:
                    outs = [_rows(sums[slot[0]], slot) for slot in slots]
                    if len(outs) == 1:
                        contribution.weighted_sum(weights[block], outs[0])
                        continue
                    # Small parameters are columns of one product, which is the flat buffer if there are no others.
                    size = sum(out.numel() for out in outs)
                    whole = flat if size == len(flat) else flat.new_empty(size)
                    contribution.weighted_sum(weights[block], whole)
                    if whole is not flat:
                        torch._foreach_copy_(outs, torch._C._nn.unflatten_dense_tensors(whole, outs))
            return sums, norms
        finally:
            self._forget()

    @override
    @validated
    def clipped_parts(
        self,
        max_grad_norm: float | Sequence[float],
        scale: Positive = 1.0,
        num_records: Natural | None = None,
        rule: ClippingRule = clip,
        unused_rows: Tensor | None = None,
    ) -> tuple[Iterator[Tensor], Tensor]:
        try:
            parts, weights, norms = self._weigh(max_grad_norm, scale, num_records, rule, unused_rows)
            return self._one_by_one(parts, weights, sum_type(len(norms), self._device)), norms
        finally:
            self._forget()

    @override
    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._attached:
            for parameter in self._parameters:
                set_tag(parameter, None)
            self._entrance.close()
        self._attached = False
        self._forget()

    def _weigh(
        self,
        max_grad_norm: float | Sequence[float],
        scale: float,
        num_records: int | None,
        rule: ClippingRule,
        unused_rows: Tensor | None,
    ) -> tuple[list[Part], Tensor, Tensor]:
        """The contributions, the weights of records in each block, shape (K, n), and the norms before clipping."""
        self._check_frozen()
        if self._count is None:
            raise RuntimeError(NO_GRADIENT)
        self.public_gradient = self._gradient_of_public_terms()
        with ieee_float32():
            with self._gathering(self._derived.uses_values(self._index)):
                for index, gradients in self._derived.per_record(self._parameters):
                    self._add((index, 0, -1), Dense(gradients))
            count = self._join_rows(self._count, unused_rows)
            parts = self._parts()
            # |g_i|^2 in each block, shape (n,), float64: the sum over its parameters, which have no entry in common.
            totals: dict[int, Tensor] = {}
            # Taken here, next to the sums: contributions hold tensors of the model, and a function may write to those
            # in its own backward, as reversible layers do, so that a norm of before would not bound what is summed.
            for block, contribution, _ in parts:
                square = checked_squares(contribution, count)
                totals[block] = totals[block] + square if block in totals else square
            if len(totals) < self._num_blocks:
                zeros = torch.zeros(count, dtype=widest_type(self._device), device=self._device)
                totals = {block: totals.get(block, zeros) for block in range(self._num_blocks)}
            squares = torch.stack([totals[block] for block in range(self._num_blocks)], 1)
            # Of a mean over n records, a record's share has the gradient g_i / n: `count * scale` undoes that.
            norms = squares.sqrt_().mul_(count * scale).float()
            if num_records is not None:
                # (n, K): the factor C / inf of a dummy is exactly zero.
                norms[num_records:] = torch.inf
            factors, reported = clip_factors(norms, max_grad_norm, rule)
            if reported is not norms:
                # A factor of zero is not enough: 0 * inf and 0 * nan are nan, so those gradients are zeroed themselves.
                excluded = ~norms.isfinite().all(dim=1)
                for _, contribution, _ in parts:
                    contribution.drop(excluded)
            # (K, n): the clipping factor, and n * scale once more for the sum.
            return parts, (factors * (count * scale)).t().contiguous(), reported

    def _one_by_one(self, parts: list[Part], weights: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
        """The sum of each parameter in turn; contributions are let go as they are used up."""
        small: dict[Slot, Tensor] = {}
        large: dict[int, list[tuple[Slot, int, Contribution]]] = {}
        for block, contribution, slots in parts:
            if len(slots) == 1:
                large.setdefault(slots[0][0], []).append((slots[0], block, contribution))
                continue
            shapes = [_rows(self._parameters[slot[0]], slot) for slot in slots]
            whole = weights.new_empty(sum(shape.numel() for shape in shapes), dtype=dtype)
            with ieee_float32():
                contribution.weighted_sum(weights[block], whole)
            small.update(zip(slots, torch._C._nn.unflatten_dense_tensors(whole, shapes), strict=True))
        parts.clear()
        for index, parameter in enumerate(self._parameters):
            total = weights.new_zeros(parameter.shape, dtype=dtype)
            for slot in [slot for slot in small if slot[0] == index]:
                _rows(total, slot).copy_(small.pop(slot))
            for slot, block, contribution in large.pop(index, []):
                with ieee_float32():
                    contribution.weighted_sum(weights[block], _rows(total, slot))
            yield total

    def _parts(self) -> list[Part]:
        """Contributions in order of the parameters; small ones side by side, and last."""
        parts: list[Part] = []
        small: dict[int, list[tuple[Tensor, Slot]]] = {}
        for slot in sorted(self._contributions):
            contribution, block = self._contributions[slot], self._block_of[slot[0]]
            if contribution.is_small:
                gradients = contribution.dense()
                rows = gradients.flatten(1) if gradients.dim() > 1 else gradients[:, None]
                small.setdefault(block, []).append((rows, slot))
            else:
                parts.append((block, contribution, [slot]))
        for block, pairs in small.items():
            rows = torch.cat([rows for rows, _ in pairs], 1)
            parts.append((block, Dense(rows), [slot for _, slot in pairs]))
        return parts

    def _join_rows(self, count: int, unused_rows: Tensor | None) -> int:
        """Let contributions be those of records; returns how many there are."""
        self._join_parts()
        if self._rows_per_record == 1:
            return count
        records = count_records(count, self._rows_per_record)
        # Rows' gradients come with 1 / (records * rows): times `records`, their sum is that of the mean over rows.
        for slot, contribution in self._contributions.items():
            if unused_rows is not None:
                contribution.drop(unused_rows.to(self._device))
            self._contributions[slot] = contribution.joined(self._rows_per_record)
        return records

    def _check_frozen(self) -> None:
        for parameter in held_below(self._module):
            if parameter.requires_grad and id(parameter) not in self._known:
                name = next(name for name, one in self._module.named_parameters() if one is parameter)
                raise PrivacyViolationError(
                    f"The parameter {name!r} was unfrozen after attach, so its gradient is not clipped; detach, "
                    "unfreeze and attach again."
                )

    def _gradient_of_public_terms(self) -> Tensor | None:
        if not self._public:
            return None
        frees = [free for free, _ in self._public]
        gradients = [gradient.to(free.dtype) for free, gradient in self._public]
        found = torch.autograd.grad(frees, self._parameters, gradients, retain_graph=True, materialize_grads=True)
        return torch.cat([gradient.reshape(-1).float() for gradient in found])

    def _empty_sums(self, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        """One flat buffer, also seen through the parameters' shapes, zero where nothing will be written."""
        flat = torch.empty(self._size, dtype=dtype, device=self._device)
        sums = list(torch._C._nn.unflatten_dense_tensors(flat, [*self._parameters]))
        whole = {index for index, _, stop in self._contributions if stop < 0}
        for index, total in enumerate(sums):
            if index not in whole:
                total.zero_()
        return flat, sums

    def _join_parts(self) -> None:
        """Parameters that were used in parts that overlap, or in parts and as a whole, get one contribution."""
        parts: dict[int, list[Slot]] = {}
        for slot in self._contributions:
            parts.setdefault(slot[0], []).append(slot)
        for index, slots in parts.items():
            slots.sort(key=lambda slot: slot[1])
            # Squares of disjoint rows add up; rows in common must be added before a norm is taken.
            apart = all(first[2] <= second[1] for first, second in pairwise(slots))
            if len(slots) == 1 or (apart and all(slot[2] >= 0 for slot in slots)):
                continue
            count = self._count or 0
            total = torch.zeros(count, *self._parameters[index].shape, dtype=torch.float32, device=self._device)
            for slot in slots:
                gradients = self._contributions.pop(slot).dense()
                (total if slot[2] < 0 else total[:, slot[1] : slot[2]]).add_(gradients)
            self._contributions[(index, 0, -1)] = Dense(total)

    # What the meetings call.

    @override
    def check_backward(self, what: Callable[[], str], outer_pass: int, gradient: Tensor) -> None:
        if gradient.requires_grad:
            raise RuntimeError(f"create_graph=True reached {what()}: second derivatives are not supported.")
        # Reentrant checkpointing runs a backward pass of its own inside the one in which it repeats the call.
        task = outer_pass if outer_pass >= 0 else torch._C._current_graph_task_id()
        if self._task is None:
            self._task = task
        if task != self._task:
            raise RuntimeError("Two backward passes ran since the last clipped_sum; call it after each backward pass.")

    @override
    def check_count(self, what: Callable[[], str], count: int) -> None:
        if self._count is None:
            self._count, self._counted_by = count, what
        if count != self._count:
            raise RuntimeError(
                f"{what()} saw {count} records where {self._counted_by()} saw {self._count}: give both the records in "
                "the first dimension."
            )

    @override
    def see_outsider(self, tensor: Tensor) -> None:
        assert self._outsiders is not None
        self._outsiders.see(tensor)

    @override
    def receive(self, free: Tensor, contribution: Contribution | OwnRows) -> None:
        self._device = free.device
        tag: Free = tag_of(free)
        if tag.indices is not None and tag.source is not None:
            self.receive(tag.source, ToParameters.to_table(free, contribution))
        elif tag.slot is not None and isinstance(contribution, Contribution):
            self._add(tag.slot, contribution)
        else:
            self._derived.add(free, contribution)

    @override
    def receive_public(self, free: Tensor, gradient: Tensor, call: Call) -> None:
        if not self._public_terms:
            raise call.refusal()
        if call.current.bent_by is not None:
            raise RuntimeError(
                f"{call.describe()} adds a term without records to a mean over the batch, and {call.current.bent_by} "
                "makes what that does to the loss depend on the records: add it to the loss at last."
            )
        self._public.append((free, gradient))

    @override
    def describe(self, free: Sequence[Tensor]) -> str:
        names: list[str] = []
        for tensor in free:
            tag: Free = tag_of(tensor)
            names += [self._names[tag.slot[0]]] if tag.slot is not None else self._derived.names_behind(tensor, self)
        return ", ".join(repr(name) for name in dict.fromkeys(names)) or "parameters"

    def name_of(self, parameter: Tensor) -> str | None:
        """The name of a trainable parameter."""
        return None if (index := self._index.get(id(parameter))) is None else self._names[index]

    def _add(self, slot: Slot, contribution: Contribution) -> None:
        # |g + g'|^2 has a cross term, so two calls with one parameter are one contribution.
        earlier = self._contributions.get(slot)
        self._contributions[slot] = contribution if earlier is None else earlier.plus(contribution)

    def _raw_gradient_hook(self, index: int) -> Callable[[Tensor], None]:
        def refuse_raw_gradient(parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                raise PrivacyViolationError(
                    f"The parameter {self._names[index]!r} received a gradient that did not come through a function "
                    "of torch where it meets the batch, so it has no per-example form: use it inside the module's "
                    "forward or training_step, autograd.grad in an evaluation, and weight_decay to penalize weights."
                )

        return refuse_raw_gradient

    def _forget(self) -> None:
        if self._outsiders is not None:
            self._outsiders.forget()
        self._task = self._count = None
        self._counted_by = str
        self._device = torch.device("cpu")
        self._contributions: dict[Slot, Contribution] = {}
        self._derived = ToParameters()
        self._public: list[tuple[Tensor, Tensor]] = []


def _rows(whole: Tensor, slot: Slot) -> Tensor:
    return whole if slot[2] < 0 else whole[slot[1] : slot[2]]
