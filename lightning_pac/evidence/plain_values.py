"""The plain values in a pickled file, such as those that a checkpoint holds beside its tensors."""

import pickle
from typing import Any

__all__ = ["PlainValues"]


class PlainValues(pickle.Unpickler):
    """Reads dictionaries, lists, texts and numbers, and calls nothing that a file names: a stand-in takes its place."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in, whatever is asked for."""
        return _Standin

    def persistent_load(self, pid: Any) -> None:
        """A tensor's storage, which is not read."""


class _Standin(dict[Any, Any]):
    """Takes whatever an object of another class is built with."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "_Standin":
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """As to a list."""

    extend = append
