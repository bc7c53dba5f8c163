"""Work that says what it is, once it takes a while."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.utilities import rank_zero_info

__all__ = ["named_if_slow"]

_SECONDS = 5.0


@contextmanager
def named_if_slow(what: str, told: set[str] | None = None) -> Iterator[None]:
    """Log what is going on once it has taken five seconds, as a fit that stands in silence looks like one that hangs.

    The log is written by another thread: what the checks of copies log in their own is left out.

    Args:
        what: Is going on.
        told: What was logged before, which is not logged again; what is logged now is added.
    """
    known: set[str] = set() if told is None else told

    def tell() -> None:
        if what not in known:
            known.add(what)
            rank_zero_info(f"{what} ...")

    timer = threading.Timer(_SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
