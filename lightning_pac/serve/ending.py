"""Start and end of a server: it says when it listens, stops when told to, and notices what it has lost."""

import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["Ending"]

_SECONDS_BETWEEN_LOOKS = 0.05
_TO_REACH = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Ending:
    """Whether a server is to end, and why.

    Attributes:
        begun: Whether it was told to stop, or has stopped.
        lost: The process of the server that ended by itself, as the beginning of a sentence; None while there is none.
    """

    def __init__(self) -> None:
        self.begun = False
        self.lost: str | None = None

    @contextlib.contextmanager
    def handles_signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end the block by a `KeyboardInterrupt`."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.begun = True
            raise KeyboardInterrupt

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def watch(self, host: str, port: int, announce: Callable[[], None]) -> None:
        """Call `announce` once the server listens, then end it if the process that speaks HTTP ends by itself.

        LitServe looks after the worker, and not after that process: without it the port would stay bound and silent.
        """
        while not _listens(_TO_REACH.get(host, host), port):
            if self.begun:
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        with contextlib.suppress(OSError):  # a server goes on when nobody reads what it prints
            announce()
        children = multiprocessing.active_children()
        speaking = [child for child in children if child.name.startswith("LitServer")]
        multiprocessing.connection.wait([child.sentinel for child in speaking])
        if not self.begun and all(child.is_alive() for child in children if child not in speaking):
            self.lost = "The process that speaks HTTP ended"
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
