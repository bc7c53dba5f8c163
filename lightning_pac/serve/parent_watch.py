"""Processes of a server that end with the process that started them."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["end_with_parent", "forks_end_with_this_process"]

_SECONDS_BETWEEN_LOOKS = 0.1


def end_with_parent(parent: int) -> None:
    """Let a thread end this process, at once, when its parent has ended.

    A killed process takes nobody along: without this its worker would keep the ledger's lock, and its forks the port.
    Everything that was answered is on the disk, so there is nothing to save.

    Args:
        parent: Number of the process that must go on.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="parent-watch").start()


@contextmanager
def forks_end_with_this_process() -> Iterator[None]:
    """Let every process that this one forks in the block end with it."""
    parent, inside = os.getpid(), True

    def watch_in_fork() -> None:
        if inside:
            # The parent's own way to end is not for its forks.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            end_with_parent(parent)

    os.register_at_fork(after_in_child=watch_in_fork)
    try:
        yield
    finally:
        inside = False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)
