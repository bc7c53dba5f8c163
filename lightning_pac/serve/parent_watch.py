"""Processes of a server that end with the process that started them."""

import os
import signal
import threading
import time

__all__ = ["end_forks_with_this_process", "end_with_parent"]

_SECONDS_BETWEEN_LOOKS = 0.1


def end_with_parent(parent: int) -> None:
    """Let a thread end this process, at once, when its parent has ended.

    A killed process takes nobody along: without this its worker would keep the ledger's lock, and its forks the port.
    Everything that was answered is on the disk, so there is nothing to save.

    Args:
        parent: Number of the process that must go on.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="parent-watch").start()


def end_forks_with_this_process() -> None:
    """Let every process that this one forks from now on end with it."""
    parent = os.getpid()

    def watch_in_fork() -> None:
        # The parent's own way to end is not for its forks.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent(parent)

    os.register_at_fork(after_in_child=watch_in_fork)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)
