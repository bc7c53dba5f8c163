"""Files that copies of code write, move and remove, kept apart from those that the code itself has."""

import builtins
import bz2
import functools
import io
import itertools
import logging
import os
import pathlib
import shutil
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

__all__ = ["files_apart"]

_LARGE = 2**26  # bytes that are not copied in order to write to a part of them
_thread = threading.local()
_lock = threading.Lock()
_replaced: list[tuple[Any, str, Any]] = []
_num_apart = 0


@contextmanager
def files_apart() -> Iterator[None]:
    """Let what this thread writes, moves and removes meanwhile be seen by it only, and only until the end.

    This is so for Python's own functions, of `io`, `os` and what builds on them, for those of torch, and for
    safetensors; other compiled libraries, processes, and files that are open already are not kept apart. What is
    logged through `logging` meanwhile, or printed to no file, is left out.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with files_apart():
        ...         _ = Path(folder, "runs.txt").write_text("1")
        ...         seen = Path(folder, "runs.txt").read_text(), len(os.listdir(folder))
        >>> seen
        ('1', 0)
    """
    global _num_apart
    outer = getattr(_thread, "files", None)
    files = _Files(outer)
    with _lock:
        if not _num_apart:
            _replace()
        _num_apart += 1
    _thread.files = files
    try:
        yield
    finally:
        _thread.files = None
        files.remove()
        _thread.files = outer
        with _lock:
            _num_apart -= 1
            while not _num_apart and _replaced:
                setattr(*_replaced.pop())


class _Files:
    _is_opening = False

    def __init__(self, outer: "_Files | None") -> None:
        self._outer, self._folder, self._numbers = outer, "", itertools.count()
        self._places: dict[str, str] = {}
        self._temporary: list[str] = []

    def remove(self) -> None:
        for path in self._temporary:
            with suppress(OSError):
                os.remove(path)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def at(self, path: Any) -> str:
        """Where the file of that name lies now."""
        name = os.path.abspath(os.fsdecode(path))
        return self._places.get(name) or (name if self._outer is None else self._outer.at(name))

    def own(self, path: Any, keeps: bool = True) -> str:
        """Where the file of that name may be written to, with what it held if that is to be kept."""
        before = self.at(path)
        folder = self.at(os.path.dirname(os.path.abspath(os.fsdecode(path))))
        is_file = os.path.isfile(before)
        if self.is_own(before) or not os.path.isdir(folder) or (os.path.exists(before) and not is_file):
            return before  # which ends in the error that it would end in, or is a device
        if keeps and is_file and os.path.getsize(before) > _LARGE:
            return before
        place = self.nowhere(path)
        if keeps and is_file:
            shutil.copyfile(before, place)
        return place

    def nowhere(self, path: Any) -> str:
        """A place for the file of that name, where there is none yet."""
        name = os.path.abspath(os.fsdecode(path))
        self._folder = self._folder or tempfile.mkdtemp()
        self._places[name] = os.path.join(self._folder, f"{next(self._numbers)}{os.path.splitext(name)[1]}")
        return self._places[name]

    def is_own(self, place: str) -> bool:
        return bool(self._folder) and os.path.dirname(place) == self._folder

    def move(self, real: Any, source: Any, target: Any, **kwargs: Any) -> None:
        before = self.at(source)
        if not os.path.isfile(before):
            if not os.path.exists(before):
                real(before, self.at(target))  # an error
            return
        self.nowhere(source)
        self._places[os.path.abspath(os.fsdecode(target))] = before

    def drop(self, real: Any, path: Any, *, dir_fd: Any = None) -> None:
        before = self.at(path)
        if dir_fd is not None:
            return
        if self.is_own(before) or not os.path.lexists(before):
            real(before)
        elif not os.path.isdir(before):
            self.nowhere(path)

    def touch(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        before = "" if isinstance(path, int) else self.at(path)
        if not before or self.is_own(before) or not os.path.exists(before):
            real(before or path, *args, **kwargs)

    def make_folder(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        real(self.own(path, keeps=False))

    def leave_out(self, real: Any, *args: Any, **kwargs: Any) -> None:
        """Make no link, and log nothing."""

    def show(self, real: Any, *values: Any, file: Any = None, **kwargs: Any) -> None:
        """Print to a file that is named, such as a debugger's, and nothing else."""
        if file is not None:
            real(*values, file=file, **kwargs)

    def look(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        is_path = not isinstance(path, int) and kwargs.get("dir_fd") is None
        return real(self.at(path) if is_path else path, *args, **kwargs)

    def open(self, real: Any, path: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        writes = not {*"wax+"}.isdisjoint(mode)
        if kwargs.get("opener") is not None:
            kwargs["opener"] = functools.partial(self._open_by, kwargs["opener"])
        elif not isinstance(path, int):
            path = self.own(path, not {*"ar"}.isdisjoint(mode)) if writes and mode[:1] != "x" else self.at(path)
            if mode[:1] == "x" and not os.path.exists(path):
                path = self.own(path)
        return real(path, mode, *args, **kwargs)

    def _open_by(self, opener: Any, *args: Any) -> Any:
        """Open by a function of others, such as that of `tempfile`, which removes its file by yet another one."""
        _thread.files, self._is_opening = self, True
        try:
            return opener(*args)
        finally:
            _thread.files, self._is_opening = None, False

    def open_flags(self, real: Any, path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is None:
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            is_new = flags & os.O_EXCL and not os.path.exists(self.at(path))
            if is_new and self._is_opening:
                self._temporary.append(path)
            else:
                path = self.own(path) if writes and (is_new or not flags & os.O_EXCL) else self.at(path)
        return real(path, flags, *args, **kwargs)

    def save(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        return real(self.own(path, keeps=False) if isinstance(path, str | os.PathLike) else path, *args, **kwargs)

    def save_second(self, real: Any, value: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        return self.save(functools.partial(real, value), path, *args, **kwargs)


def _replace() -> None:
    names: list[tuple[Any, str, Callable[..., Any]]] = [
        (builtins, "open", _Files.open),
        (builtins, "print", _Files.show),
        (io, "open", _Files.open),
        (bz2, "_builtin_open", _Files.open),  # which they have taken as they were imported
        (tarfile, "bltn_open", _Files.open),
        (os, "open", _Files.open_flags),
        (os, "stat", _Files.look),
        (os, "mkdir", _Files.make_folder),
        *((os, name, _Files.move) for name in ("rename", "replace")),
        *((os, name, _Files.drop) for name in ("remove", "unlink", "rmdir")),
        *((os, name, _Files.touch) for name in ("utime", "chmod")),
        *((os, name, _Files.leave_out) for name in ("link", "symlink")),
        (logging.Logger, "callHandlers", _Files.leave_out),
        (torch.serialization, "_open_zipfile_writer", _Files.save),
        (torch.jit.RecursiveScriptModule, "save", _Files.save_second),  # type: ignore[attr-defined]
        (sys.modules.get("safetensors.torch"), "serialize_file", _Files.save_second),
    ]
    accessor = getattr(pathlib, "_normal_accessor", None)  # the functions that pathlib of Python 3.10 has
    of_paths = [of for of in names if of[0] in (io, os) and of[2] is not _Files.open_flags]
    names += [(accessor, name, method) for _, name, method in of_paths]
    for holder, name, method in names:
        if hasattr(holder, name):
            real = getattr(holder, name)
            _replaced.append((holder, name, real))
            setattr(holder, name, _redirected(real, method))


def _redirected(real: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        files = getattr(_thread, "files", None)
        if files is None:
            return real(*args, **kwargs)
        _thread.files = None  # what follows is of the true files
        try:
            return method(files, real, *args, **kwargs)
        finally:
            _thread.files = files

    return redirected
