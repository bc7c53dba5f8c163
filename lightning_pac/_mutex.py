"""A lock that belongs to one object."""

import os
import threading
import weakref
from types import TracebackType

__all__ = ["Mutex"]


class Mutex:
    """Makes the methods that hold it run one after another; a copy or pickle of its owner gets one of its own.

    In a fork it is free: a thread that held it does not exist there, and would be waited for without end.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["Mutex"], tuple[()]]:
        return Mutex, ()


_all: "weakref.WeakSet[Mutex]" = weakref.WeakSet()


def _free_in_fork() -> None:
    for mutex in _all:
        mutex._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_fork)
