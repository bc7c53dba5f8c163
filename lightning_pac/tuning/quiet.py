"""Runs of which nobody sees a sign."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from lightning.pytorch.utilities.seed import isolate_rng

__all__ = ["quiet", "showing_time"]


@contextlib.contextmanager
def quiet(path: Path) -> Iterator[None]:
    """Let everything that is printed, warned of or logged go to a file, and leave no trace in the process.

    Both Python's streams and the descriptors below them are led there, as other languages write to those; logging is
    off, since handlers may write anywhere; what a notebook would display, past the streams, is dropped. Global
    generators and the environment are put back, which a number of runs would leave in different states.

    Args:
        path: The file, in the folder of the run.
    """
    environment, level = dict(os.environ), logging.root.manager.disable
    with open(path, "a") as file, contextlib.ExitStack() as stack:
        _flush()
        for descriptor in (1, 2):
            kept = os.dup(descriptor)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, descriptor)
            os.dup2(file.fileno(), descriptor)
        stack.callback(_flush)  # while the descriptors still lead to the file
        stack.enter_context(contextlib.redirect_stdout(file))
        stack.enter_context(contextlib.redirect_stderr(file))
        if "IPython" in sys.modules:  # tables and bars of rich come as displays there, one for each run
            from IPython.utils.capture import capture_output

            stack.enter_context(capture_output(stdout=False, stderr=False))
        stack.enter_context(warnings.catch_warnings(record=True))
        stack.enter_context(isolate_rng())
        stack.callback(logging.disable, level)
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            file.flush()
            os.environ.clear()
            os.environ.update(environment)


@contextlib.contextmanager
def showing_time() -> Iterator[None]:
    """Show how long the selection has been going on, and neither how many runs there are nor what they score."""
    if not sys.stderr.isatty():
        yield
        return
    done, began = threading.Event(), time.monotonic()
    screen: TextIO = os.fdopen(os.dup(2), "w")

    def show() -> None:
        while not done.wait(1.0):
            screen.write(f"\rprivate selection {datetime.timedelta(seconds=int(time.monotonic() - began))}")
            screen.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        screen.write("\n")
        screen.close()


def _flush() -> None:
    """Write out all that Python and C hold back."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None and not stream.closed:
            stream.flush()
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)
