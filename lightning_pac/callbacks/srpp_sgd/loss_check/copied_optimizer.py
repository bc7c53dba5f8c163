"""A copy of an optimizer that takes no step unless it is asked, and what its own step makes of the weights."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["copy_if_own", "copy_optimizer", "is_own", "move_weights", "same_gradients", "weights_after_a_step"]

_MOVED = 8  # weights that a step moves
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class _Resting:
    """Before the optimizer's class: hooks and overrides of a copied model may call `step`, and weights stay."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return None if closure is None else closure()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _with_all_attributes(self, type(self), memo)


class _Still(torch.optim.SGD):
    """In place of one of torch's, of which it has the settings and the state."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return None if closure is None else closure()


class _Unknown(_Still):
    """In place of one that cannot be copied."""


def copy_if_own(original: Optimizer, memo: dict[int, Any]) -> None:
    """Add the copy of an optimizer of the user's own, which may read more than gradients.

    It may keep statistics of activations, for instance, which hooks that it has put on layers give it. Optimizers of
    torch read nothing of the kind.

    Args:
        original: That of the run.
        memo: Copies of all objects, as in `copy.deepcopy`.
    """
    if not _is_own(original):
        return
    kind = type(original)
    try:
        _with_all_attributes(original, type(kind.__name__, (_Resting, kind), {"__module__": kind.__module__}), memo)
    except Exception:  # it holds what has no copy, as its model may, too
        memo.pop(id(original), None)


def copy_optimizer(original: Optimizer | None, trained: Sequence[Tensor], memo: dict[int, Any]) -> Optimizer:
    """The copy that was added, or a stand-in with the same settings and state; one over all weights for None.

    Args:
        original: That of the run, if there is one.
        trained: Copied parameters.
        memo: Copies of all objects, as in `copy.deepcopy`.
    """
    if isinstance(found := memo.get(id(original)), _Resting):
        return found  # type: ignore[return-value]
    kind = _Still if original is None or not _is_own(original) else _Unknown
    optimizer = kind(trained or [torch.zeros(1)], lr=0.0)
    if original is not None:
        groups = copy.deepcopy([{**group, "params": []} for group in original.param_groups])
        for group, own in zip(groups, original.param_groups, strict=True):
            group["params"] = [memo[id(parameter)] for parameter in own["params"] if id(parameter) in memo]
        optimizer.param_groups = groups
        for parameter, state in original.state.items():
            if id(parameter) in memo:
                optimizer.state[memo[id(parameter)]] = copy.deepcopy(state, memo)
    return optimizer


def is_own(optimizer: Optimizer) -> bool:
    """Whether the copy of an optimizer is that of one of the user's own."""
    return isinstance(optimizer, _Resting)


def weights_after_a_step(optimizer: Optimizer) -> list[Tensor]:
    """What the step of a user's own optimizer makes of the weights, with gradients that are always the same.

    Raises:
        TypeError: If the optimizer could not be copied.
    """
    if isinstance(optimizer, _Unknown):
        raise TypeError("the optimizer has no copy")
    if not isinstance(optimizer, _Resting):
        return []
    weights: list[Tensor] = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, weight in enumerate(weights):
        weight.grad = torch.arange(weight.numel(), dtype=weight.dtype).add_(number + 1).sin_().view(weight.shape)
        state = optimizer.state.get(weight, {})
        state.update({name: value.to(weight.device) for name, value in state.items() if isinstance(value, Tensor)})
    kind: Any = type(optimizer).__mro__[2]
    kind.step(optimizer, lambda: torch.zeros(()))
    return [weight.detach().clone() for weight in weights]


@contextmanager
def same_gradients(model: torch.nn.Module, logged: list[str] | None = None) -> Iterator[None]:
    """Let hooks read a gradient that is the same for all records, and takes no memory.

    Args:
        model: Whose gradient it is.
        logged: Names, of which those of gradients that come meanwhile are taken away: the run's own are released.
    """
    names = [] if logged is None else logged
    known = len(names)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.ones((), dtype=parameter.dtype).expand_as(parameter)
    try:
        yield
    finally:
        names[known:] = [name for name in names[known:] if "grad" not in name.lower()]
        for parameter in trained:
            parameter.grad = None


def move_weights(model: torch.nn.Module) -> None:
    """Move weights, as an optimizer would: while they stay, a model agrees with what it said of the batch before.

    The smallest are enough, and take no time. None changes its sign, which a scale may not.
    """
    weights = sorted((one for one in model.parameters() if one.requires_grad), key=Tensor.numel)
    with torch.no_grad():
        for number, weight in enumerate(weights[:_MOVED]):
            steps = torch.arange(weight.numel(), dtype=weight.dtype).add_(number + 1).sin_().mul_(0.3)
            steps = steps.view(weight.shape)
            weight.copy_(torch.where(weight == 0, steps, weight * (1 + steps)))


def _with_all_attributes(optimizer: Any, kind: type, memo: dict[int, Any]) -> Any:
    """A copy, also of what `copy.deepcopy` leaves out: all but the state and the groups."""
    twin: Any = object.__new__(kind)
    memo[id(optimizer)] = twin
    attributes = {name: value for name, value in vars(optimizer).items() if name != "step"}  # a scheduler's wrapper
    attributes |= {name: _own_hooks(attributes.get(name, {})) for name in _HOOKS}
    vars(twin).update(copy.deepcopy(attributes, memo))
    return twin


def _is_own(original: Optimizer) -> bool:
    is_torchs = type(original).__module__.startswith("torch.optim.")
    return not is_torchs or any(_own_hooks(vars(original).get(name, {})) for name in _HOOKS)


def _own_hooks(hooks: Any) -> Any:
    """Those of the user."""
    modules = {key: str(getattr(hook, "__module__", "")) for key, hook in hooks.items()}
    return OrderedDict((key, hooks[key]) for key, module in modules.items() if not module.startswith("lightning_pac."))
