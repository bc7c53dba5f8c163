"""The fast engine: one backward pass, without ordinary weight gradients, and a clipped sum from what it leaves."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lightning_pac.exceptions import PrivacyViolationError
from lightning_pac.gradients.arithmetic import ieee_float32, widest_type
from lightning_pac.gradients.contract import GradientEngine, block_index, clip_factors, trainable_parameters
from lightning_pac.gradients.contributions import Contribution, Dense
from lightning_pac.gradients.refusals import refuse_compiled_modules, refuse_mixing_layers
from lightning_pac.gradients.tap import DeferredCall, Receiver, Tap
from lightning_pac.gradients.taps import plan_taps

__all__ = ["OneBackwardEngine"]

# A parameter, or some of its rows where one call uses only those.
Slot = tuple[int, int, int]


class OneBackwardEngine(GradientEngine, Receiver):
    """Per-example clipping near the cost of an ordinary step.

    While a layer with a rule computes, its parameters are replaced by detached ones, so autograd never forms their
    ordinary gradient. A hook on the layer's output receives the output gradient, from which, with the layer's input,
    the norms follow in the cheapest exact form for the shape; the clipped sum is one contraction for each layer. The
    parameters themselves keep `requires_grad`: whatever else uses one gives it a gradient, and that is refused by
    name. Modules without a rule are differentiated example by example with `torch.func.vmap`, those modules alone.

    Args:
        batch_first: Dimension 0 of every layer's input counts the examples. False means dimension 1. A module with a
            `batch_first` attribute decides for itself and for what is below it.
    """

    def __init__(self, batch_first: bool = True) -> None:
        self._batch_first = batch_first
        self._taps: list[Tap] = []
        self._handles: list[RemovableHandle] = []
        self._suspended = False
        self._task: int | None = None
        self._count: int | None = None
        self._forget()

    @override
    def attach(self, module: nn.Module, blocks: Mapping[str, Sequence[str]] | None = None) -> None:
        if self._taps:
            raise RuntimeError("This engine is attached already; detach it first.")
        named = trainable_parameters(module)
        self._module = module
        self._names, self._parameters = list(named), list(named.values())
        self._block_of = block_index(self._names, blocks)
        self._num_blocks = len(blocks) if blocks is not None else 1
        refuse_compiled_modules(module)
        refuse_mixing_layers(module)
        self._index = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        self._taps = plan_taps(module, self, self._batch_first)
        through_autograd = {id(parameter) for tap in self._taps for parameter in tap.autograd_parameters()}
        for index, parameter in enumerate(self._parameters):
            hook = self._raw_gradient_hook(index, expected=id(parameter) in through_autograd)
            self._handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        self._forget()

    @override
    def clipped_sum(
        self, max_grad_norm: float | Sequence[float], scale: float = 1.0, num_records: int | None = None
    ) -> tuple[list[Tensor], Tensor]:
        try:
            self._check_frozen()
            self._finish_deferred_calls()
            if self._count is None:
                raise RuntimeError("No per-example gradient was captured; run forward and backward after attach.")
            with ieee_float32():
                return self._clip(max_grad_norm, self._count * scale, self._count, num_records)
        finally:
            self._forget()

    @override
    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        for tap in self._taps:
            tap.remove()
        self._handles, self._taps = [], []
        self._forget()

    def _clip(
        self, max_grad_norm: float | Sequence[float], multiplier: float, count: int, num_records: int | None
    ) -> tuple[list[Tensor], Tensor]:
        device = self._device
        squares = torch.zeros(self._num_blocks, count, dtype=widest_type(device), device=device)
        for slot, contribution in self._contributions.items():
            square = self._squares.get(slot)
            squares[self._block_of[slot[0]]] += contribution.squares() if square is None else square
        norms = squares.sqrt_().mul_(multiplier).t().float()
        norms[num_records if num_records is not None else count :] = torch.inf
        factors, reported = clip_factors(norms, max_grad_norm)
        excluded = ~norms.isfinite().all(dim=1)
        if bool(excluded.any()):
            for contribution in self._contributions.values():
                contribution.drop(excluded)
        weights = (factors * multiplier).t().contiguous()
        sums = self._empty_sums(device)
        for slot, contribution in self._contributions.items():
            index, start, stop = slot
            out = sums[index] if stop < 0 else sums[index][start:stop]
            contribution.weighted_sum(weights[self._block_of[index]], out)
        return sums, reported

    def _check_frozen(self) -> None:
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad and id(parameter) not in self._index:
                raise PrivacyViolationError(
                    f"The parameter {name!r} was unfrozen after attach, so its gradient is not clipped; detach, "
                    "unfreeze and attach again."
                )

    def _empty_sums(self, device: torch.device) -> list[Tensor]:
        """One flat buffer seen through the parameters' shapes, zero where nothing will be written."""
        flat = torch.empty(sum(parameter.numel() for parameter in self._parameters), device=device)
        parts = torch.split(flat, [parameter.numel() for parameter in self._parameters])
        sums = [part.view(parameter.shape) for part, parameter in zip(parts, self._parameters, strict=True)]
        whole = {index for index, _, stop in self._contributions if stop < 0}
        for index, total in enumerate(sums):
            if index not in whole:
                total.zero_()
        return sums

    # What the taps call.

    @property
    @override
    def watching(self) -> bool:
        if self._suspended or not torch.is_grad_enabled():
            return False
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "Per-example gradients cannot be taken inside torch.compile; train the uncompiled module."
            )
        return True

    @override
    def check_backward(self, layer: str, outer_pass: int, gradient: Tensor) -> None:
        self.saw_short_floats |= gradient.dtype in (torch.bfloat16, torch.float16)
        if gradient.requires_grad:
            raise RuntimeError(f"create_graph=True reached the layer {layer!r}: second derivatives are not supported.")
        # Reentrant checkpointing runs a backward pass of its own inside the one in which it repeats the call.
        task = outer_pass if outer_pass >= 0 else torch._C._current_graph_task_id()
        if self._task is None:
            self._task = task
        if task != self._task:
            raise RuntimeError("Two backward passes ran since the last clipped_sum; call it after each backward pass.")

    @override
    def check_count(self, layer: str, count: int) -> None:
        if self._count is None:
            self._count, self._counted_by = count, layer
        if count != self._count:
            raise RuntimeError(
                f"The layer {layer!r} saw {count} rows where {self._counted_by!r} saw {self._count}: give each layer "
                "the examples in its first dimension; expand position indices to the batch, flatten no time into it."
            )

    @override
    def receive(self, parameter: Tensor, contribution: Contribution, rows: slice = slice(None)) -> None:
        index = self._index.get(id(parameter))
        if index is None:
            return
        slot = (index, rows.start, rows.stop) if rows.start is not None else (index, 0, -1)
        self._device = parameter.device
        if self._is_whole.setdefault(index, slot[2] < 0) != (slot[2] < 0):
            raise RuntimeError(
                f"The parameter {self._names[index]!r} is used by attention in parts and elsewhere as a whole, so that "
                "its gradients cannot be added up: do not tie it."
            )
        earlier = self._contributions.get(slot)
        if earlier is None:
            self._contributions[slot] = contribution
            # Taken now, while what it is computed from is in the cache.
            with ieee_float32():
                self._squares[slot] = contribution.squares()
            return
        # The norm of a sum is not the sum of norms: calls that share a parameter are added before it is taken.
        self._contributions[slot] = Dense(earlier.dense() + contribution.dense())
        self._squares.pop(slot, None)

    @override
    def defer(self, call: DeferredCall) -> None:
        if call not in self._deferred_calls:
            self._deferred_calls.append(call)

    def _finish_deferred_calls(self) -> None:
        expected: dict[int, Tensor] = {}
        tolerated: dict[int, float] = {}
        self._suspended = True
        try:
            for call in self._deferred_calls:
                self.check_count(call.layer, call.count)
                for parameter, gradients in call.per_example_gradients():
                    index = self._index[id(parameter)]
                    total = gradients.sum(0)
                    expected[index] = expected[index] + total if index in expected else total
                    size = float(torch.linalg.vector_norm(gradients.flatten(1), dim=1).sum())
                    tolerated[index] = tolerated.get(index, 0.0) + call.tolerance * size
                    self.receive(parameter, Dense(gradients))
        finally:
            self._suspended = False
        for index, raw in self._raw.items():
            found = expected.get(index)
            distance = torch.linalg.vector_norm(raw if found is None else raw - found)
            if found is None or bool(distance > tolerated[index] + 1e-12):
                raise PrivacyViolationError(
                    f"The per-example gradients of {self._names[index]!r} do not add up to its gradient, because its "
                    "module draws random numbers (dropout) or mixes examples, or it is used elsewhere: move it into a "
                    "small module of its own that does neither, or set that module's dropout to 0."
                )

    def _raw_gradient_hook(self, index: int, expected: bool) -> Callable[[Tensor], None]:
        def receive_raw_gradient(parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                return
            if not expected:
                raise PrivacyViolationError(
                    f"The parameter {self._names[index]!r} received a gradient that did not come through a call of its "
                    "layer, so it has no per-example form: call the layer itself, and move penalties on weights to the "
                    "optimizer's weight_decay."
                )
            earlier = self._raw.get(index)
            self._raw[index] = gradient.float() if earlier is None else earlier + gradient.float()

        return receive_raw_gradient

    def _forget(self) -> None:
        self._task = self._count = None
        self._counted_by = ""
        self._device = torch.device("cpu")
        self._contributions: dict[Slot, Contribution] = {}
        self._squares: dict[Slot, Tensor] = {}
        self._is_whole: dict[int, bool] = {}
        self._deferred_calls: list[DeferredCall] = []
        self._raw: dict[int, Tensor] = {}
