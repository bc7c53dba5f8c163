"""Beginning and end of a forward pass: the outermost call of a module, or of `training_step`."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily
from torch.utils import checkpoint
from torch.utils.hooks import RemovableHandle

from lightning_pac.gradients.calls import (
    Batched,
    Free,
    Pass,
    as_written,
    enclosing_backward,
    nested_tensors,
    record_count,
    set_tag,
    settle_packed,
    tag_of,
)
from lightning_pac.gradients.following.mode import Following
from lightning_pac.gradients.rules.table import applied

__all__ = ["Entrance"]


class Entrance:
    """Turns a mode on in outermost calls, whose arguments are the batch.

    Args:
        mode: The mode.
        batch_first: Whether records are in dimension 0 of the batch's tensors, unless a module says otherwise.
        rests: Whether it is to stay off in a call that begins now.
    """

    def __init__(self, mode: Following, batch_first: bool, rests: Callable[[], bool]) -> None:
        self._mode, self._batch_first, self._rests = mode, batch_first, rests
        self._handles: list[RemovableHandle] = []
        self._entered: nn.Module | None = None
        self._depth = 0
        self._outermost: set[nn.Module] = set()
        self._outside = True
        self._as_written: AbstractContextManager[None] = nullcontext()

    def open(self, module: nn.Module) -> None:
        """Watch a module, what is below it and has trainable parameters, and its `training_step` if it has one."""
        for layer in module.modules():
            if any(parameter.requires_grad for parameter in layer.parameters()):
                self._handles.append(layer.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True))
        _watch_functions(self)
        step = getattr(module, "training_step", None)
        if callable(step):
            own = vars(module).get("training_step")

            @functools.wraps(step)
            def training_step(*args: Any, **kwargs: Any) -> Any:
                with self.inside((args, kwargs), 0 if self._batch_first else 1):
                    return step(*args, **kwargs)

            def restore() -> None:
                if own is None:
                    vars(module).pop("training_step", None)
                else:
                    module.training_step = own

            object.__setattr__(module, "training_step", training_step)
            self._restore = restore
        else:
            self._restore = lambda: None

    def close(self) -> None:
        """Leave everything as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._outermost.clear()
        self._restore()
        _unwatch_functions(self)

    def _before(self, layer: nn.Module, args: Any, kwargs: Any) -> None:
        if self._outside and torch.is_grad_enabled() and not self._rests():
            if torch.compiler.is_compiling():
                raise RuntimeError(
                    "Per-example gradients cannot be taken inside torch.compile; train the uncompiled module."
                )
            self._begin((args, kwargs), 0 if _batch_first(layer, self._batch_first) else 1)
            if layer not in self._outermost:  # few are, and the others are spared a hook
                self._outermost.add(layer)
                self._handles.append(layer.register_forward_hook(self._after, always_call=True))
            self._entered, self._depth = layer, 0
        if layer is self._entered:
            self._depth += 1

    def _after(self, layer: nn.Module, args: Any, output: Any) -> None:
        if layer is self._entered:
            self._depth -= 1
            if not self._depth:
                self._entered = None
                self._end()

    @contextmanager
    def inside(self, arguments: Any, batch_dim: int) -> Iterator[None]:
        """Follow what is computed inside from these arguments; inside another outermost call, that goes on."""
        if not self._outside or not torch.is_grad_enabled() or self._rests():
            yield
            return
        self._begin(arguments, batch_dim)
        try:
            yield
        finally:
            self._end()

    def _begin(self, arguments: Any, batch_dim: int) -> None:
        tensors = list(nested_tensors(arguments))
        batch = [tensor for tensor in tensors if type(tag_of(tensor)) is not Free]
        packed = list(nested_tensors(arguments, kind=PackedSequence))
        count = int(packed[0].batch_sizes[0]) if packed else record_count(batch, batch_dim)
        current = Pass(count, self._mode.receiver)
        for tensor in batch:
            set_tag(tensor, _tag_of_input(tensor, current, batch_dim))
        for sequences in packed:
            settle_packed(sequences, current)
        self._turn_on(current)

    def _turn_on(self, current: Pass) -> None:
        self._mode.current = current
        self._as_written = as_written()
        self._as_written.__enter__()
        self._outside = False
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def repeating(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What is called now, if anything is followed now, and once more by a backward pass, followed as before."""
        if self._outside:
            return function
        current = self._mode.current

        def repeat(*args: Any, **kwargs: Any) -> Any:
            if not self._outside:
                return function(*args, **kwargs)
            self._turn_on(current)
            try:
                return function(*args, **kwargs)
            finally:
                self._end()

        return repeat

    def _end(self) -> None:
        self._outside = True
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._as_written.__exit__(None, None, None)


# A user's `torch.autograd.Function` is no function of torch. While engines are attached, its calls are shown to the
# mode that is on; setting the method anew for every pass would cost more than all the rest.
_STOCK: Any = vars(torch.autograd.Function)["apply"]
# Where checkpointing without reentry keeps what it will call again, behind the calls of modules.
_Frame: Any = checkpoint._CheckpointFrame
_STOCK_FRAME: Any = _Frame.__init__
_open: list[Entrance] = []


def _watch_functions(entrance: Entrance) -> None:
    if not _open:
        torch.autograd.Function._stock_apply = _STOCK  # type: ignore[attr-defined]  # which Dynamo can bind to a class
        torch.autograd.Function.apply = classmethod(_apply)
        _Frame.__init__ = _make_frame
    _open.append(entrance)


def _unwatch_functions(entrance: Entrance) -> None:
    if entrance not in _open:
        return
    _open.remove(entrance)
    if not _open:
        torch.autograd.Function.apply = _STOCK
        del torch.autograd.Function._stock_apply  # type: ignore[attr-defined]
        _Frame.__init__ = _STOCK_FRAME


def _make_frame(frame: Any, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    for entrance in _open:
        recompute_fn = entrance.repeating(recompute_fn)
    _STOCK_FRAME(frame, recompute_fn, *args, **kwargs)


def _apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    if not cls.__module__.startswith(("torch.", "lightning_pac.")):
        stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        if stack and isinstance(stack[-1], Following):
            with _pop_mode_temporarily():
                return stack[-1].call(applied(cls), args, kwargs)
    results = cls._stock_apply(*args, **kwargs)  # type: ignore[attr-defined]
    if cls.__name__ == "RegisterPostBackwardFunction":  # FSDP2's: hands on what it is given, to be told of the gradient
        for given, result in zip(args[-len(results) :], results, strict=True):
            set_tag(result, tag_of(given))
    return results


def _tag_of_input(tensor: Tensor, current: Pass, batch_dim: int) -> Batched:
    earlier = tag_of(tensor)
    if type(earlier) is Batched and earlier.owner.count == current.count and enclosing_backward() >= 0:
        return Batched(current, earlier.outer, earlier.rows) if earlier is not earlier.owner.first else current.first
    if tensor.dim() > batch_dim and tensor.shape[batch_dim] == current.count:
        return current.first if batch_dim == 0 else Batched(current, tensor.shape[0])
    return Batched(current, None)


def _batch_first(layer: nn.Module, default: bool) -> bool:
    """The place of the batch dimension, as the layer itself or its attention states it."""
    for part in layer.modules():
        stated = getattr(part, "batch_first", None)
        if isinstance(stated, bool) and (part is layer or isinstance(layer, _TRANSFORMERS)):
            return stated
    return default


_TRANSFORMERS = (
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.Transformer,
)
