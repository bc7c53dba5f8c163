"""Noticing that a buffer, a weight or an optimizer was written to outside the optimizer's own update."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from lightning_pac.strategies.sharding import held_forms, local_part

__all__ = ["OPTIMIZER_STATE", "SETTINGS", "StateWatch", "settings_of"]

Fact = tuple[Tensor, Any, int]
SETTINGS = "settings of the optimizer"
OPTIMIZER_STATE = "state of the optimizer"


class StateWatch:
    """Compares buffers, parameters and the optimizer with what was noted before.

    Tensors are compared by identity, version and storage: writing in place raises the version, a new tensor has another
    identity. A write to `tensor.data` raises no version; it is found by the norms, if they were noted. Of sharded
    parameters the shards are watched: what is written to gathered ones is gone when their storage is let go.

    Args:
        module: The module that is watched, with everything below it.
        optimizer: Its optimizer, of which the settings and the state are watched.

    Example:
        >>> layer = nn.BatchNorm1d(2)
        >>> watch = StateWatch(layer)
        >>> layer.running_mean += 1
        >>> watch.changed()
        {'running_mean'}
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self._modules, self._optimizer = list(module.named_modules()), optimizer
        self._shards = held_forms(module)
        self._found: set[str] = set()
        self.note()

    def note(self) -> None:
        """Compare with the state as it is now from now on."""
        self._found.clear()
        self._norms: dict[str, float] = {}
        self._renew(self._read())

    def note_norms(self) -> str | None:
        """Compare norms with those of now, too; names what is not finite among parameters and the optimizer's state."""
        self._norms = _norms(self._facts)
        trained = [name for name in self._norms if isinstance(self._facts[name][0], nn.Parameter) or "/" in name]
        return next((_title(name) for name in trained if not math.isfinite(self._norms[name])), None)

    def changed(self, norms: bool = False) -> set[str]:
        """Names of what was written to, replaced, added or removed since `note`.

        Args:
            norms: Whether norms are compared with those noted: a pass over memory.
        """
        facts = self._read()
        self._found |= self._differences(facts)
        self._renew(facts)
        if norms and self._norms:
            now = _norms({name: fact for name, fact in facts.items() if name in self._norms})
            self._found |= {_title(name) for name, norm in now.items() if not _is_same(norm, self._norms[name])}
        return set(self._found)

    def modes(self) -> dict[str, bool]:
        """Whether each layer is in training mode, by name."""
        return {name: layer.training for name, layer in self._modules}

    @contextmanager
    def trusting(self) -> Iterator[None]:
        """Leave out what is written meanwhile."""
        self._found |= self._differences(self._read())
        found = set(self._found)
        try:
            yield
        finally:
            self._renew(self._read())
            if self._norms:
                self._norms = _norms(self._facts)
            self._found = found

    def _differences(self, facts: dict[str, Fact]) -> set[str]:
        noted = self._facts
        found = {
            _title(name)
            for name in facts.keys() | noted.keys()
            if name not in facts or not _same(facts[name], noted.get(name))
        }
        return found | ({SETTINGS} if settings_of(self._optimizer) != self._settings else set())

    def _renew(self, facts: dict[str, Fact]) -> None:
        self._facts = facts
        self._settings = settings_of(self._optimizer)

    def _read(self) -> dict[str, Fact]:
        """By name; the tensors are held on to, so that none that is new can have the identity of one that is gone."""
        facts = {}
        for prefix, layer in self._modules:
            for tensors in (layer._parameters, layer._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        facts[f"{prefix}.{name}" if prefix else name] = _fact(self._shards.get(id(tensor), tensor))
        state = {} if self._optimizer is None else self._optimizer.state
        for number, (key, values) in enumerate(state.items()):
            if not isinstance(values, Mapping):
                raise MisconfigurationException(
                    f"{type(self._optimizer).__name__} keeps {key!r} in its state as {type(values).__name__}, beside "
                    "the dictionaries of its parameters, where no check finds it: keep it in its param_groups, "
                    f"group[{key!r}], which checkpoints hold as well, or in an attribute of the optimizer."
                )
            for name, value in values.items():
                if isinstance(value, Tensor):
                    facts[f"{OPTIMIZER_STATE}/{number} {name}"] = _fact(value)
        return facts


def settings_of(optimizer: torch.optim.Optimizer | None) -> list[dict[str, Any]]:
    """The options of an optimizer's groups, tensors among them as numbers."""
    groups = [] if optimizer is None else optimizer.param_groups
    return [
        {
            name: value.detach().tolist() if isinstance(value, Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in groups
    ]


def _title(name: str) -> str:
    return name.partition("/")[0]


def _fact(tensor: Tensor) -> Fact:
    here = local_part(tensor)  # which counts writes of its own
    if here.is_inference():
        return tensor, -1, here.data_ptr()
    return tensor, tensor._version if here is tensor else (tensor._version, here._version), here.data_ptr()


def _same(fact: Fact, noted: Fact | None) -> bool:
    return noted is not None and fact[0] is noted[0] and fact[1:] == noted[1:]


def _is_same(norm: float, noted: float) -> bool:
    return norm == noted or (math.isnan(norm) and math.isnan(noted))


@torch.no_grad()
def _norms(facts: dict[str, Fact]) -> dict[str, float]:
    """Norms of rows and more of floating-point numbers that lie together, where they lie."""
    tensors = {name: local_part(fact[0]).detach() for name, fact in facts.items()}
    devices = [tensor.device for tensor in tensors.values()][:1]
    rows = {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and tensor.ndim and [tensor.device] == devices
    }
    if not rows:
        return {}
    return dict(zip(rows, torch.stack(torch._foreach_norm(list(rows.values()))).tolist(), strict=True))
