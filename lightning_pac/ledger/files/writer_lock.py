"""One writer a file: an operating-system lock that ends with the process that holds it."""

import errno
import json
import os
import socket
import sys
import weakref
from datetime import datetime, timezone
from pathlib import Path

from lightning_pac._mutex import Mutex
from lightning_pac.exceptions import LedgerError

__all__ = ["WriterLock"]

# What a system says of a lock that another process holds; all else means that there can be no lock.
_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}

# Locks of this process and their descriptors.
_held_here: dict[str, int] = {}
_held_here_guard = Mutex()


class WriterLock:
    """Exclusive right to write the file at `path`, taken at once or refused.

    The lock is an advisory lock on `<path>-writer`. The kernel drops it when the process ends, however it ends: forks,
    such as data loader workers, do not keep it. It survives that the process itself copies the folder. The file also
    says who holds it, for the error of the second.

    Args:
        path: The file, resolved.
        remedy: What the one who is refused can do, for the error.

    Raises:
        LedgerError: If the lock is held, by this process or another, or the lock file cannot be written.
    """

    def __init__(self, path: Path, remedy: str) -> None:
        self._path = path
        self._remedy = remedy
        self._key = str(path)
        with _held_here_guard:
            if self._key in _held_here:
                raise LedgerError(f"{path} is already open for writing in this process: {remedy}.")
            descriptor = self._acquire()
            _held_here[self._key] = descriptor
        self._finalizer = weakref.finalize(self, _release, descriptor, self._key, os.getpid())

    def _acquire(self) -> int:
        lock_path = self._path.with_name(self._path.name + "-writer")
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(
                f"{self._path} cannot be opened for writing, because {lock_path} cannot be written "
                f"({error.strerror}): choose a writable folder."
            ) from error
        try:
            _lock(descriptor)
        except OSError as error:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            if error.errno not in _HELD:
                raise LedgerError(
                    f"{lock_path} cannot be locked ({error.strerror}), so nothing would keep a second writer out: "
                    f"keep {self._path} on a local disk, or on a file system with locks."
                ) from error
            raise LedgerError(f"{self._path} has another writer{holder}: {self._remedy}.") from error
        holder_record = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        # A full disk must not keep a ledger from being opened: the record only serves an error message.
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(holder_record).encode())
        except OSError:
            pass
        return descriptor

    def release(self) -> None:
        """Gives the lock back; so does the end of the object."""
        self._finalizer()


def _release(descriptor: int, key: str, owner: int) -> None:
    # A fork inherits the object and not the lock.
    if owner != os.getpid():
        return
    with _held_here_guard:
        os.close(descriptor)
        del _held_here[key]


def _read_holder(descriptor: int) -> str:
    try:
        record = json.loads(os.read(descriptor, 4096))
        return f" (process {record['pid']} on {record['host']} since {record['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        # Far behind the record, which stays readable for the error of the second writer.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        # Not a record lock, which would be lost as soon as anything in this process closed the same file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _close_in_fork() -> None:
        for descriptor in _held_here.values():
            os.close(descriptor)
        _held_here.clear()

    os.register_at_fork(after_in_child=_close_in_fork)
