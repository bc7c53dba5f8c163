"""Processes of a server that end with the process that started them, and leave Ctrl-C to it."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["end_with_parent", "forks_end_with_this_process", "interrupts_held"]

_SECONDS_BETWEEN_LOOKS = 0.1
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Let this process end, at once, when its parent has ended.

    A killed process takes nobody along: without this its worker would keep the ledger's lock, and its forks the port.
    Everything that was answered is on the disk, so there is nothing to save. On Linux the kernel sees to it, also for a
    process that is stopped or stuck in native code; elsewhere a thread does.

    Args:
        parent: Number of the process that must go on.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Also on Linux, for a parent that ended before the kernel was asked.
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="parent-watch").start()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the block ends, and Ctrl-C for good from every process that is started in it.

    A terminal sends it to all of them, and only the server itself decides when to stop.
    """
    came: list[int] = []
    # A mask is inherited, and does not keep another thread from being interrupted in place of this one.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda number, frame: came.append(number)) for number in numbers]
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def forks_end_with_this_process() -> Iterator[None]:
    """Let every process that this one forks in the block end with it, and leave Ctrl-C to it."""
    parent, inside = os.getpid(), True
    masks: list[set[int]] = []

    def hold() -> None:
        if inside:
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}))

    def release() -> None:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def watch_in_fork() -> None:
        if inside:
            # The parent's own way to end is not for its forks.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            end_with_parent(parent)

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=watch_in_fork)
    try:
        yield
    finally:
        inside = False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)
