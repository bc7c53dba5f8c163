"""Run a function on several gloo ranks, forked from one process that has torch and Lightning imported."""

import os
import pickle
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from prepared import prepared_context


class RankProcesses:
    """The processes of one group. A rank that raises exits with code 1, as a script would.

    Args:
        function: Called on each rank as `function(rank, size, *args)`; its value is sent back.
        size: Number of ranks.
        args: Further arguments.
    """

    def __init__(self, function: Callable[..., Any], size: int, *args: Any) -> None:
        context = prepared_context()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._ends: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(theirs, port, function, rank, size, *args))
            process.start()
            theirs.close()
            self._ends.append(ours)
            self.processes.append(process)

    def results(self, timeout: float = 180.0) -> list[Any]:
        """What each rank returned, or the error it ended with as text, None if it was killed."""
        found: list[Any] = []
        try:
            for end, process in zip(self._ends, self.processes, strict=True):
                assert end.poll(timeout), "a rank hangs"
                try:
                    found.append(pickle.loads(end.recv_bytes()))
                except EOFError:
                    found.append(None)
                process.join(timeout)
        finally:
            for process in self.processes:
                process.kill()
        return found


def on_ranks(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """Run a function on all ranks and return what each returned."""
    results = RankProcesses(function, size, *args).results()
    for rank, result in enumerate(results):
        assert not isinstance(result, str), f"rank {rank}: {result}"
    return results


def _run(end: Connection, port: int, function: Callable[..., Any], rank: int, size: int, *args: Any) -> None:
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": 0, "LOCAL_RANK": rank, "WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in names.items()})
    import torch
    from checked_once import share_passed_checks

    torch.set_num_threads(1)
    share_passed_checks()
    try:
        # Bytes: a pipe would pass tensors as handles that end with the process.
        end.send_bytes(pickle.dumps(function(rank, size, *args)))
    except BaseException:
        end.send_bytes(pickle.dumps(traceback.format_exc()))
        end.close()
        os._exit(1)
    end.close()
    os._exit(0)  # a rank that was left alone must not wait for the others
