"""Noticing that a buffer or a weight was written to, without a look at its values."""

from torch import Tensor, nn

__all__ = ["StateWatch"]


class StateWatch:
    """Compares buffers and parameters by identity, version and storage with those noted before.

    Writing to a tensor in place raises its version; a new tensor has another identity. A write to `tensor.data` raises
    no version: the replay of a step on synthetic records, which compares values, has to find it.

    Args:
        module: The module that is watched, with everything below it.

    Example:
        >>> layer = nn.BatchNorm1d(2)
        >>> watch = StateWatch(layer)
        >>> layer.running_mean += 1
        >>> watch.changed()
        {'running_mean'}
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.named_modules())
        self.note()

    def note(self) -> None:
        """Compare with the state as it is now from now on."""
        self._noted = self._facts()

    def changed(self) -> set[str]:
        """Names of what was written to, replaced, added or removed."""
        facts, noted = self._facts(), self._noted
        return {
            name for name in facts.keys() | noted.keys() if name not in facts or not _same(facts[name], noted.get(name))
        }

    def _facts(self) -> dict[str, tuple[Tensor, int, int]]:
        """By name; the tensors are held on to, so that none that is new can have the identity of one that is gone."""
        facts = {}
        for prefix, layer in self._modules:
            for tensors in (layer._parameters, layer._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        version = -1 if tensor.is_inference() else tensor._version
                        facts[f"{prefix}.{name}" if prefix else name] = (tensor, version, tensor.data_ptr())
        return facts


def _same(fact: tuple[Tensor, int, int], noted: tuple[Tensor, int, int] | None) -> bool:
    return noted is not None and fact[0] is noted[0] and fact[1:] == noted[1:]
