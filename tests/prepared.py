"""Children that fork from a process with torch and Lightning imported, which takes a new interpreter seconds."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

PRELOAD = ["lightning_pac.callbacks", "lightning_pac.serve", "lightning_pac.cli.lightning", "lightning_pac.modules"]


def prepared_context() -> ForkServerContext:
    """How `multiprocessing` starts such children."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


class Child:
    """A function in a child with a process group of its own; what it prints, errors too, is read from `stdout`.

    Args:
        function: A function of a test module; its value is the exit code.
        args: What it is called with.
    """

    def __init__(self, function: Callable[..., int | None], *args: Any) -> None:
        context = prepared_context()
        ours, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(theirs, function, *args))
        self._process.start()
        theirs.close()
        self.stdout = os.fdopen(os.dup(ours.fileno()), "rb")
        ours.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def finish(self, timeout: float = 60.0) -> bytes:
        """Wait for its end; the rest of what it printed."""
        printed = self.stdout.read()
        self.stdout.close()
        self._process.join(timeout)
        assert self.poll() is not None, "it does not end"
        return printed


def forget_package() -> None:
    """Leave a child as if nothing had imported the package yet."""
    for name in [name for name in sys.modules if name.split(".")[0] == "lightning_pac"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "lightning_pac._moved"]


def _run(output: Connection, function: Callable[..., int | None], *args: Any) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    import torch
    from checked_once import share_passed_checks

    torch.set_num_threads(1)
    share_passed_checks()
    sys.exit(function(*args))
