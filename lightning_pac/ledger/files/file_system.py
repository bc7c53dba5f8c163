"""The files of a ledger as the system has them: where they are, whose they are, whether they are still the same."""

import json
import os
import shlex
import shutil
import stat
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

from lightning_pac.exceptions import LedgerError

__all__ = [
    "FileSet",
    "check_kind",
    "check_place",
    "create_private",
    "find_move",
    "is_full",
    "is_on_network",
    "make_private",
    "prepare_place",
    "write_home",
]

_NETWORK_TYPES = {"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
_NETWORK_TYPES |= {f"fuse.{name}" for name in ("ceph", "glusterfs", "s3fs", "sshfs")}


# These stamp a folder whenever a name in it comes, goes or changes its file.
_STAMPING_TYPES = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
# Two changes this close may leave the same stamp.
_NANOSECONDS_UNTIL_SETTLED = 1_000_000_000

_MOUNTS = Path("/proc/self/mounts")


def is_on_network(path: Path, mounts: Path = _MOUNTS) -> bool:
    """Whether Linux says that a file is on a network file system; False where the system does not tell.

    A write-ahead log needs memory that all its readers share, and some network file systems accept one without it.

    Args:
        path: An absolute path without symbolic links.
        mounts: The system's list of mounted file systems.
    """
    return _type_of(path, mounts) in _NETWORK_TYPES


def _type_of(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of file system that Linux says a file is on, empty where the system does not tell."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    # A later mount hides an earlier one on the same folder.
    best, kind = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        folder = Path(fields[1].replace("\\040", " "))
        if path.is_relative_to(folder) and len(folder.parts) >= best:
            best, kind = len(folder.parts), fields[2]
    return kind


class FileSet:
    """The files of an open ledger, remembered by device and inode.

    SQLite goes on in a file that was deleted or renamed while it was open, and what it writes there is lost. As long as
    the folder's own stamp stands, no name in it has changed: then one look at the folder stands for a look at each.

    Args:
        path: The ledger, open for writing.
        others: Files that belong to it beside those that SQLite makes.
    """

    def __init__(self, path: Path, others: Iterable[Path]) -> None:
        self._path = path
        beside = [path.with_name(path.name + suffix) for suffix in ("-wal", "-writer")]
        # Plain strings, since this is asked twice for every charge; the two files that hold it come first.
        files = [str(file) for file in (path, *beside, *others)]
        self._known = [(file, found) for file in files if (found := _identity(file)) is not None]
        self._holding = self._known[: 2 if beside[0].exists() else 1]
        self._folder = str(path.parent) if _type_of(path) in _STAMPING_TYPES else None
        self._elsewhere = [entry for entry in self._known if Path(entry[0]).parent != path.parent]
        self._seen: tuple[int, ...] | None = None

    def check(self, consequence: str, written: bool = False) -> None:
        """Refuse if a file is another, or none, by now.

        Args:
            consequence: What it means for the charge, for the error.
            written: Whether to ask for those alone that hold what was just written.

        Raises:
            LedgerError: If it is.
        """
        stamp = None if self._folder is None else _stamp(self._folder)
        is_quiet = stamp is not None and stamp == self._seen
        if is_quiet and (written or not self._elsewhere):
            return
        asked = self._elsewhere if is_quiet else self._holding if written else self._known
        for file, known in asked:
            if _identity(file) != known:
                raise LedgerError(
                    f"{file} was deleted, moved or replaced while {self._path} was open, so {consequence}: put the "
                    "files back where they were and open the ledger again, or see `lightning-pac account restore`."
                )
        if not (written or is_quiet):
            # Taken before the files were looked at, and long enough after the last change that another would show.
            settled = stamp is not None and time.time_ns() - stamp[2] > _NANOSECONDS_UNTIL_SETTLED
            self._seen = stamp if settled else None


def check_kind(path: Path) -> None:
    """Refuse what cannot be reached, and what is no file: opening a pipe waits for ever, and a device is for everybody.

    Raises:
        LedgerError: If so.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise LedgerError(f"{path} cannot be reached ({error.strerror}): get the right to enter its folder.") from error
    if stat.S_ISDIR(mode):
        raise LedgerError(f"{path} is a folder: name a file for the ledger, for instance {path}/ledger.db.")
    if not stat.S_ISREG(mode):
        raise LedgerError(f"{path} is a device or a pipe: name a file for the ledger.")


def check_place(path: Path) -> None:
    """Refuse a ledger of which a part is gone, or that has a second name.

    Raises:
        LedgerError: If so.
    """
    try:
        status = path.stat()
    except OSError:
        status = None
    if status is not None and status.st_nlink > 1:
        raise LedgerError(
            f"{path} has {status.st_nlink} names, and who opens it by another would not know of this writer: remove "
            "the other hard links, or make them symbolic links."
        )
    log = path.with_name(path.name + "-wal")
    if (status is None or status.st_size == 0) and log.exists() and log.stat().st_size > 0:
        raise LedgerError(
            f"{path} holds nothing, but {log} holds charges that belong to it: put the ledger back beside it."
        )


def prepare_place(path: Path) -> None:
    """Make the folder of a ledger, and see whether what is there can be written.

    Raises:
        LedgerError: If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        raise _unwritable(path, error) from error


def create_private(path: Path) -> None:
    """Create a ledger's file, readable by its owner only.

    Raises:
        LedgerError: If that cannot be done.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        raise _unwritable(path, error) from error


def make_private(path: Path) -> None:
    """Take the right to read the files of a ledger from other users, and say so; warn where that cannot be done."""
    if os.name != "posix":
        return
    for file in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-mark"))):
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
        except FileNotFoundError:
            continue
        if mode & 0o077:
            try:
                file.chmod(0o600)
            except OSError:
                text = f"{file} may be read by other users (mode {mode:o}): run `chmod 600 {file}`."
            else:
                text = f"{file} could be read by other users (mode {mode:o}) and is private now."
            warnings.warn(text, stacklevel=2)


def write_home(path: Path) -> str:
    """The ledger's own record of its path, by which a copy is told."""
    status = path.stat()
    return json.dumps({"path": str(path), "inode": status.st_ino, "device": status.st_dev})


def find_move(path: Path, home: str | None) -> LedgerError | None:
    """The complaint if the ledger is not where it was; a file that was renamed is the same, and a copy is another."""
    try:
        known = json.loads(home or "")
        origin, inode, device = str(known["path"]), int(known["inode"]), int(known["device"])
    except (ValueError, KeyError, TypeError):
        origin, inode, device = "a place that it does not know", -1, -1
    status = path.stat()
    # Devices are numbered anew when a system starts, and some network file systems number files anew.
    same_file = status.st_ino == inode or is_on_network(path)
    if same_file and (str(path) == origin or status.st_dev == device):
        return None
    return LedgerError(
        f"{path} was copied, restored or moved from {origin}: if this is the one to go on with, run `lightning-pac "
        f"account adopt {shlex.quote(str(path))}`."
    )


def is_full(path: Path) -> bool:
    """Whether the disk has no room for a transaction; SQLite calls that an I/O error if it meets it in the index."""
    try:
        return shutil.disk_usage(path.parent).free < 1 << 16
    except OSError:
        return False


def _unwritable(path: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"{path} cannot be opened for writing ({error.strerror}): choose a writable path, or open it with "
        "PrivacyLedger.read_only."
    )


def _stamp(folder: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _identity(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino
