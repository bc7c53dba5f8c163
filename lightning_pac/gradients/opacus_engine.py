"""The reference engine, on Opacus' hooks."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from opacus.grad_sample import GradSampleHooks
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lightning_pac._validation import Count, Natural, Positive, validated
from lightning_pac.gradients.arithmetic import sum_type, widest_type
from lightning_pac.gradients.clipping import ClippingRule, clip, clip_factors
from lightning_pac.gradients.contract import (
    NO_GRADIENT,
    GradientEngine,
    block_index,
    count_records,
    trainable_parameters,
)
from lightning_pac.gradients.contributions import Contribution, Dense
from lightning_pac.gradients.refusals import refuse_mixing_layers

__all__ = ["OpacusEngine"]


class OpacusEngine(GradientEngine):
    """Instantiates every per-example gradient with Opacus' hooks, which attach without wrapping the module.

    Slow and large, but independent of our own rules: what the faster engine is compared with.
    """

    def __init__(self) -> None:
        self._hooks: Any = None

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
        if self._hooks is not None:
            raise RuntimeError("This engine is attached already; detach it first.")
        if gathered is not None:
            raise ValueError("gathered: Opacus has no hooks for sharded parameters; take the engine one_backward.")
        named = trainable_parameters(module)
        self._block_of = block_index(list(named), blocks)
        self._num_blocks = len(blocks) if blocks is not None else 1
        self._rows_per_record = rows_per_record
        refuse_mixing_layers(module)
        if getattr(module, "_compiler_ctx", None) is not None or any(map(_is_compiled, module.modules())):
            raise ValueError("Opacus' hooks see nothing of what torch.compile compiled; take the engine one_backward.")
        if any(isinstance(layer, nn.MultiheadAttention) for layer in module.modules()):
            raise ValueError("Opacus has no rule for nn.MultiheadAttention; take the engine one_backward.")
        self._names, self._parameters = list(named), list(named.values())
        self._hooks = GradSampleHooks(module, strict=False)
        self._clearing: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(_clear_gradient)  # type: ignore[no-untyped-call]
            for p in self._parameters
        ]

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
        samples: list[Tensor | None] = []
        for parameter in self._parameters:
            sample = getattr(parameter, "grad_sample", None)
            parameter.grad_sample = None  # type: ignore[attr-defined]
            samples.append(sample)
        if any(isinstance(sample, list) for sample in samples):
            raise RuntimeError("Two backward passes ran since the last clipped_sum; call it after each backward pass.")
        present = [sample for sample in samples if sample is not None]
        if not present:
            raise RuntimeError(NO_GRADIENT)
        rows, device = len(present[0]), present[0].device
        count = count_records(rows, self._rows_per_record)
        gradients = [None if sample is None else self._of_records(sample, unused_rows) for sample in samples]
        scale = scale / self._rows_per_record  # Opacus has undone a mean over the rows
        squares = torch.zeros(count, self._num_blocks, dtype=widest_type(device), device=device)
        for gradient, block in zip(gradients, self._block_of, strict=True):
            if gradient is not None:
                squares[:, block] += gradient.squares()
        # The factor C / inf of a dummy is exactly zero.
        squares[num_records if num_records is not None else count :] = torch.inf
        factors, norms = clip_factors(squares.sqrt().mul(scale).float(), max_grad_norm, rule)
        excluded = ~squares.isfinite().all(dim=1)
        sums = []
        for parameter, gradient, block in zip(self._parameters, gradients, self._block_of, strict=True):
            sums.append(torch.zeros_like(parameter, dtype=sum_type(count, device)))
            if gradient is not None:
                # 0 * nan is nan: what a factor of zero leaves out must be zero itself.
                gradient.drop(excluded)
                gradient.weighted_sum(factors[:, block] * scale, sums[-1])
        return sums, norms

    @override
    def detach(self) -> None:
        if self._hooks is None:
            return
        for handle in self._clearing:
            handle.remove()
        self._hooks.cleanup()
        self._hooks = None

    def _of_records(self, sample: Tensor, unused_rows: Tensor | None) -> Contribution:
        gradients: Contribution = Dense(sample)
        if unused_rows is not None:
            gradients.drop(unused_rows.to(sample.device))
        return gradients if self._rows_per_record == 1 else gradients.joined(self._rows_per_record)


def _is_compiled(layer: nn.Module) -> bool:
    return type(layer).__name__ == "OptimizedModule" or layer._compiled_call_impl is not None


def _clear_gradient(parameter: Tensor) -> None:
    parameter.grad = None
