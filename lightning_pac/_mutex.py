"""A lock that belongs to one object."""

import os
import weakref
from _thread import RLock

__all__ = ["Mutex"]


class Mutex(RLock):  # type: ignore[misc]  # it can be derived from, whatever its stub says
    """Makes the methods that hold it run one after another; a copy or pickle of its owner gets one of its own.

    In a fork it is free: a thread that held it does not exist there, and would be waited for without end. Python's own
    lock is what it is, and not what it has: an interrupt between taking a lock and knowing of it would leave it taken.
    """

    def __new__(cls) -> "Mutex":
        mutex = super().__new__(cls)
        _all.add(mutex)
        return mutex

    def __reduce__(self) -> tuple[type["Mutex"], tuple[()]]:
        return Mutex, ()


_all: "weakref.WeakSet[Mutex]" = weakref.WeakSet()


def _free_in_fork() -> None:
    for mutex in _all:
        mutex._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_fork)
