"""Numbers by which the user's code counts its own steps, so that something may be done in every tenth of them."""

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_pac.data.records import is_installed

__all__ = ["OwnCounters", "set_counters"]


class OwnCounters:
    """Integers that a step raises by one, or by two where a hook is run twice.

    Args:
        holders: Layers, callbacks and optimizers that may count, before the step.
    """

    def __init__(self, holders: Iterable[Any]) -> None:
        self._before = [
            (held, name, value)
            for held in _dictionaries(holders)
            for name in list(held)
            if (value := _integer(held[name])) is not None
        ]

    def found(self) -> list[tuple[Any, Any]]:
        """Where they are, after the step: a dictionary and a key."""
        return [(held, name) for held, name, _ in self._raised()]

    def set_back(self) -> None:
        """Let them have counted one step less than at first."""
        for held, name, value in self._raised():
            set_counters([(held, name)], value - 1)

    def _raised(self) -> Iterator[tuple[Any, Any, int]]:
        for held, name, value in self._before:
            now = _integer(held.get(name))
            if now is not None and now - value in (1, 2):
                yield held, name, value


def _dictionaries(holders: Iterable[Any]) -> Iterator[Any]:
    for holder in holders:
        yield vars(holder)
        if isinstance(holder, nn.Module):
            yield holder._buffers
        for held in vars(holder).values():
            # What libraries count, such as the steps of a writer that copies share, stays as it is.
            if not isinstance(held, Tensor | nn.Module | Optimizer | ModuleType) and not is_installed(
                type(held).__module__
            ):
                yield getattr(held, "__dict__", {})
        if isinstance(holder, Optimizer):
            yield from holder.param_groups
            yield from holder.state.values()


def _integer(value: Any) -> int | None:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex() and value.device.type == "cpu":
        return int(value) if bool(value == value.long()) else None
    return value if type(value) is int else None


def set_counters(counters: Iterable[tuple[Any, Any]], number: int) -> None:
    """Let them have counted so far."""
    for held, name in counters:
        value = held[name]
        if isinstance(value, Tensor):
            value.fill_(number)
        else:
            held[name] = number
