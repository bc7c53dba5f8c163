"""Runs of a black box over all subsets of a secret space, in parallel, resumable from files."""

import hashlib
import importlib
import importlib.util
import os
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac.information import Array
from lightning_pac.scenarios import SecretSpace

__all__ = ["Box", "run_box", "run_twice"]

Box = Callable[..., npt.ArrayLike]
_FINGERPRINT = re.compile(r"[\w.-]{1,100}")

# Of the worker process: the box and its data, sent once.
_worker: dict[str, Any] = {}


def run_box(
    box: Box,
    space: SecretSpace,
    data: Sequence[Any] | None,
    workers: int | None = None,
    cache: str | Path | None = None,
    fingerprint: str | None = None,
    progress: bool = True,
) -> list[Array]:
    """Outputs of the box on every subset of the space, in the order of the table.

    All subsets are run, in a public order, so neither the time it takes nor the files it leaves depend on the secret.

    Args:
        box: Called with the rows of each array of `data` that belong to a subset, or with their indices.
        space: The secret space.
        data: Arrays of N rows each; None to give the box the indices.
        workers: Processes; as many as there are processors if None. 1 runs the box in this process.
        cache: Folder for outputs, from which an interrupted run continues. They are not noised: only the owner of the
            files can read them.
        fingerprint: Name of this version of the box; the cache is named by it and the hashes of table and data.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If the data have another number of records than the space, or the cache has no fingerprint.
        RuntimeError: If the box fails, or cannot be sent to other processes.
    """
    check_data(data, space)
    folder = None if cache is None else _open_cache(Path(cache), fingerprint, space, data)
    outputs = {} if folder is None else _read_cache(folder, space.num_secrets)
    missing = [index for index in range(space.num_secrets) if index not in outputs]
    for index, output in _advance(_results(box, space, data, missing, workers), space, missing, progress):
        outputs[index] = output
        if folder is not None:
            _store(folder, index, output)
    return [outputs[index] for index in range(space.num_secrets)]


def run_twice(box: Box, arguments: Sequence[Any]) -> tuple[Array, Array]:
    """The outputs of two runs on the same input."""
    return _call(box, arguments, "the first input"), _call(box, arguments, "the first input")


def take(data: Sequence[Any] | None, subset: npt.NDArray[np.int64]) -> list[Any]:
    """Arguments of the box for one subset."""
    if data is None:
        return [subset]
    return [array.iloc[subset] if hasattr(array, "iloc") else array[subset] for array in data]


def check_data(data: Sequence[Any] | None, space: SecretSpace) -> None:
    """Raise a `ValueError` unless every array has one row per record."""
    for array in data or ():
        if not hasattr(array, "__len__") or not hasattr(array, "__getitem__"):
            raise TypeError(f"data is {array!r:.80}, but must be an array of records, or a tuple of arrays.")
        if len(array) != space.num_records:
            raise ValueError(
                f"data has {len(array)} records and the space {space.num_records}: make the space for these data."
            )


def _results(
    box: Box, space: SecretSpace, data: Sequence[Any] | None, missing: list[int], workers: int | None
) -> Iterator[tuple[int, Array]]:
    count = min(len(missing), (os.cpu_count() or 1) if workers is None else workers)
    if count <= 1:
        for index in missing:
            yield index, _call(box, take(data, space.subset(index)), f"subset {index}")
        return
    try:
        parcel = pickle.dumps((box, data))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RuntimeError(
            f"The box or its data cannot be sent to worker processes ({error}): define the box at the top level of a "
            "module, or run it in this process by workers=1."
        ) from error
    # A forked copy of a process that has used OpenMP may hang for ever; a spawned one starts clean.
    with ProcessPoolExecutor(count, get_context("spawn"), _start_worker, (parcel,)) as pool:
        futures: dict[Future[Array], int] = {}
        try:
            futures = {pool.submit(_work, space.subset(index), f"subset {index}"): index for index in missing}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "The worker processes ended: start the program below `if __name__ == '__main__':`, give them more "
                "memory, or run the box in this process by workers=1."
            ) from error
        finally:
            for future in futures:
                future.cancel()


def _start_worker(parcel: bytes) -> None:
    if importlib.util.find_spec("threadpoolctl"):
        # Else every process would start a thread for every processor.
        _worker["limits"] = importlib.import_module("threadpoolctl").threadpool_limits(1)
    _worker["box"], _worker["data"] = pickle.loads(parcel)


def _work(subset: npt.NDArray[np.int64], name: str) -> Array:
    return _call(_worker["box"], take(_worker["data"], subset), name)


def _call(box: Box, arguments: Sequence[Any], name: str) -> Array:
    try:
        output = box(*arguments)
    except Exception as error:
        # Not its message, which may hold a record: the subset is public, and its rows are not.
        raise RuntimeError(
            f"The box failed on {name} ({type(error).__name__}, as above): it must return numbers for every subset."
        ) from error
    try:
        if output is None:
            # numpy would make one NaN of it.
            raise TypeError("nothing was returned")
        if np.iscomplexobj(output):
            raise TypeError("numpy would drop imaginary parts")
        return np.array(output, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # the last of a tensor that requires gradients
        raise ValueError(
            f"The box returned {type(output).__name__} on {name}: return an array of real numbers, padded or "
            "summarized to one shape inside the box."
        ) from error


def _advance(
    results: Iterator[tuple[int, Array]], space: SecretSpace, missing: list[int], progress: bool
) -> Iterator[tuple[int, Array]]:
    with _progress_bar(space.num_secrets, space.num_secrets - len(missing), progress) as advance:
        for result in results:
            advance()
            yield result


@contextmanager
def _progress_bar(total: int, done: int, enabled: bool) -> Iterator[Callable[[], None]]:
    if not enabled:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Running the box on all subsets", total=total, completed=done)
        yield lambda: bar.advance(task)


def check_fingerprint(fingerprint: str | None) -> None:
    """Raise a `ValueError` unless it can name a folder of a cache."""
    if fingerprint is None or not _FINGERPRINT.fullmatch(fingerprint):
        raise ValueError(
            f"fingerprint is {fingerprint!r}: name this version of the box in letters, digits, dots and dashes, and "
            "another one whenever the box changes, so that the cache never mixes the two."
        )


def _open_cache(folder: Path, fingerprint: str | None, space: SecretSpace, data: Sequence[Any] | None) -> Path:
    check_fingerprint(fingerprint)
    key = hashlib.sha256(f"{space.table_hash} ".encode())
    for array in data or ():
        key.update(hashlib.sha256(pickle.dumps(array, protocol=5)).digest())
    path = folder / f"{fingerprint}-{key.hexdigest()[:16]}"
    # What lies here is not noised.
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def _read_cache(folder: Path, num_secrets: int) -> dict[int, Array]:
    outputs = {}
    for index in range(num_secrets):
        try:
            outputs[index] = np.asarray(np.load(_file(folder, index), allow_pickle=False), dtype=np.float64)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, EOFError):
            # A damaged file counts as missing, and its subset is run again.
            _file(folder, index).unlink()
    return outputs


def _store(folder: Path, index: int, output: Array) -> None:
    partial = folder / f"{index:05d}.partial"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        np.save(file, output)
    # Under its name only when complete: an interrupted run leaves no half of an output.
    os.replace(partial, _file(folder, index))


def _file(folder: Path, index: int) -> Path:
    return folder / f"{index:05d}.npy"
