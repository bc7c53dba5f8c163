"""A lock that belongs to one object."""

import threading
from types import TracebackType

__all__ = ["Mutex"]


class Mutex:
    """Makes the methods that hold it run one after another; a copy or pickle of its owner gets one of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["Mutex"], tuple[()]]:
        return Mutex, ()
