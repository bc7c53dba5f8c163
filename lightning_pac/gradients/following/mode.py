"""Follows whatever is computed from parameters alone to the functions where it meets the batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from lightning_pac.gradients.calls import (
    CONSTANTS,
    Batched,
    Free,
    Pass,
    functions_named,
    hook_before_others,
    layout_of_result,
    name_of,
    set_tag,
    tag_of,
)
from lightning_pac.gradients.following.after_mean import ADDITIONS, Shares, is_affine
from lightning_pac.gradients.following.meeting import Meeting, Receiver
from lightning_pac.gradients.rules.table import OPENED

__all__ = ["Following"]

_EXPANSIONS = set(functions_named("expand expand_as broadcast_to"))
_SPLITS = set(functions_named("chunk split unbind tensor_split split_with_sizes"))
# What only asks for a shape or a type, and is most of what is called.
_QUERIES = set(functions_named("dim size numel is_floating_point __len__ is_contiguous stride"))
_QUERIES |= {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_nested", "is_cuda", "layout", "is_leaf")
}


class Following(TorchFunctionMode):
    """Sees every torch function of a forward pass and keeps three kinds of tensors apart.

    *Batched* tensors descend from the batch. *Free* ones are parameters, or computed from them without batched ones;
    autograd runs there as usual. All others are constants. Where a function meets a free and a batched argument, it is
    given the free one's detached value, so that the ordinary gradient is never formed, and the gradient of its output
    gives that one call's per-record gradients.

    Taking a batched tensor that was not seen to descend from the batch for a constant is safe: per-record gradients are
    split where the result meets others, and whether records are coupled is asked elsewhere, by perturbation. Taking a
    constant for batched is not, so a length that happens to be that of the batch makes nothing batched.

    Args:
        receiver: Takes the contributions.
    """

    def __init__(self, receiver: Receiver) -> None:
        super().__init__()
        self.receiver = receiver
        self.current = Pass(0)
        self._holds_public = False

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _QUERIES:
            return func(*args, **(kwargs or {}))
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function, and tag what it returns; this mode must be off."""
        if func is torch.autograd.grad and not kwargs.get("create_graph"):
            return self._inner_gradient(args, kwargs)
        self._holds_public = False
        reference, free = self._scan(args, kwargs)
        holds_public = self._holds_public
        if reference is None:
            result = func(*args, **kwargs)
            if free is not None and _looks_up(func, args, kwargs, free):
                set_tag(result, Free(source=free, indices=args[0].clone()))
            elif free is not None:
                _tag_free(func, args, free, result)
            return result
        if func is Tensor.register_hook:
            if not _is_of_fsdp(args):
                raise RuntimeError(
                    "A tensor of the batch was given a hook on its gradient, which may rescale it by all records: "
                    "leave register_hook out, and scale the loss of each record."
                )
            return hook_before_others(*args)  # meetings may need what it fetches, or repeat a part of the forward pass
        opened = OPENED.get(func)
        if opened is not None:
            with self:
                result = opened(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if free is not None and torch.is_grad_enabled():
            return self._meet(func, args, kwargs, reference, holds_public)
        result = func(*args, **kwargs)
        if func not in CONSTANTS:
            self._tag_batched(func, args, kwargs, result, reference, holds_public)
            if holds_public:
                self._watch_slope(func, args, result)
        return result

    def _inner_gradient(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A gradient of what is no parameter, as of an adversary's inputs: a number like any other that is computed."""
        inputs = kwargs["inputs"] if "inputs" in kwargs else args[1]
        inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        tags = [tag_of(tensor) for tensor in inputs]
        if any(type(tag) is Free or isinstance(tensor, nn.Parameter) for tag, tensor in zip(tags, inputs, strict=True)):
            return torch.autograd.grad(*args, **kwargs)
        self.receiver.is_paused = True
        try:
            found = torch.autograd.grad(*args, **kwargs)
        finally:
            self.receiver.is_paused = False
        for gradient, tag in zip(found, tags, strict=True):
            if isinstance(gradient, Tensor) and tag is not None:
                set_tag(gradient, tag)
        return found

    def _scan(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor | None, Tensor | None]:
        """The batched argument of most dimensions, and a free one."""
        reference: Tensor | None = None
        free: Tensor | None = None
        most = -1
        owner, seen, mixed = self.current, None, False
        values = (*args, *kwargs.values()) if kwargs else args
        for value in values:
            if isinstance(value, Tensor):
                candidates: Sequence[Any] = (value,)
            elif type(value) is list or type(value) is tuple:
                candidates = value
            else:
                continue
            for tensor in candidates:
                if not isinstance(tensor, Tensor):
                    continue
                tag = tag_of(tensor)
                if tag is None:
                    if not tensor.requires_grad:
                        continue
                    if torch.is_grad_enabled():
                        self.receiver.see_outsider(tensor)
                    if tensor.grad_fn is None:
                        continue
                    # Made where nothing was seen, of whatever.
                    tag = Batched(owner, None)
                    set_tag(tensor, tag)
                if type(tag) is Free:
                    free = tensor if tensor.requires_grad else free
                elif tag.owner is owner:
                    mixed = mixed or (seen is not None and seen is not tag)
                    seen = tag
                    if tag.shares is not None and tag.shares.public:
                        self._holds_public = True
                    if (dims := tensor.dim()) > most:
                        reference, most = tensor, dims
        owner.mixed = mixed
        return reference, free

    def _tag_batched(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        reference: Tensor,
        public: bool = False,
    ) -> None:
        if isinstance(result, Tensor):
            tag = layout_of_result(func, args, kwargs, result, reference, self.current)
            earlier, base = tag_of(result), result._base
            if base is not None and args and result is args[0] and not _same(tag, earlier):
                # Part of it was written to.
                set_tag(base, tag if base.shape == result.shape else Batched(self.current, None))
            set_tag(result, Shares.of(func, args, kwargs, result, tag, public) if tag.outer is None else tag)
        elif isinstance(result, list | tuple):
            for place, part in enumerate(result):
                if isinstance(part, Tensor):
                    set_tag(part, layout_of_result(func, args, kwargs, part, reference, self.current, place))
        elif result is None and func is Tensor.__setitem__:
            self._tag_batched(func, args, kwargs, args[0], reference)

    def _meet(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], reference: Tensor, holds_public: bool
    ) -> Any:
        meeting = Meeting(self.receiver, self.current, func, args, kwargs)
        public = holds_public or func in ADDITIONS
        result = meeting.run(lambda output: self._tag_batched(func, args, kwargs, output, reference, public))
        if holds_public:
            self._watch_slope(func, args, result)
        return result

    def _watch_slope(self, func: Any, args: Sequence[Any], result: Any) -> None:
        """Whatever comes after a term without records must leave its slope as it is for all records."""
        parts = [result] if isinstance(result, Tensor) else result if isinstance(result, list | tuple) else []
        for part in parts:
            if isinstance(part, Tensor) and part.requires_grad:
                tag = tag_of(part)
                if not is_affine(func, args) or type(tag) is not Batched or tag.shares is None:
                    self.current.bent_by = name_of(func)


def _is_of_fsdp(args: Sequence[Any]) -> bool:
    """Whether a hook is the one by which FSDP2 fetches parameters in time, which hands the gradient on as it is."""
    kind = type(getattr(args[-1], "__self__", None))
    return kind.__module__.startswith("torch.distributed.fsdp.") and args[-1].__name__ == "_pre_backward"


def _looks_up(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], free: Tensor) -> bool:
    """Whether rows of a free table are looked up by indices of no record, as those of positions are."""
    if func is not F.embedding or len(args) != 2 or free is not args[1] or free.dim() != 2:
        return False
    return kwargs.get("padding_idx") is None and not (kwargs.get("max_norm") or kwargs.get("scale_grad_by_freq"))


def _same(tag: Batched, earlier: Any) -> bool:
    return type(earlier) is Batched and tag.outer == earlier.outer and tag.rows is earlier.rows


def _tag_free(func: Any, args: Sequence[Any], free: Tensor, result: Any) -> None:
    if isinstance(result, Tensor):
        if result.requires_grad:
            _tag_one(func, args, free, result)
    elif isinstance(result, list | tuple):
        start = 0
        for part in result:
            if isinstance(part, Tensor) and part.requires_grad:
                slot = _rows_of(func, args, free, part, start)
                set_tag(part, Free(slot))
                start += part.shape[0] if slot is not None else 0
    elif result is None and args and isinstance(args[0], Tensor) and args[0].requires_grad and tag_of(args[0]) is None:
        set_tag(args[0], Free())


def _tag_one(func: Any, args: Sequence[Any], free: Tensor, result: Tensor) -> None:
    tag: Free | None = tag_of(result)
    if tag is not None and result is free and tag.slot is not None:
        return  # an attribute of the parameter, or the parameter itself
    if func in _EXPANSIONS and tag_of(free).indices is None:
        source = tag_of(free).source
        set_tag(result, Free(source=free if source is None else source))
        return
    if (
        func is Tensor.__getitem__
        and result.dim() == free.dim()
        and type(args[1]) is slice
        and args[1].step in (None, 1)
    ):
        slot = tag_of(free).slot
        if slot is not None and slot[2] < 0:
            start, stop, _ = args[1].indices(free.shape[0])
            set_tag(result, Free((slot[0], start, max(start, stop))))
            return
    set_tag(result, Free())


def _rows_of(func: Any, args: Sequence[Any], free: Tensor, part: Tensor, start: int) -> tuple[int, int, int] | None:
    """The slot of a part that a parameter's first dimension is split into."""
    slot = tag_of(free).slot
    if func not in _SPLITS or slot is None or slot[2] >= 0 or part.shape[1:] != free.shape[1:]:
        return None
    return (slot[0], start, start + part.shape[0]) if part.dim() == free.dim() and len(args) == 2 else None
