"""Small files that are written whole or not at all and are on the disk when the call returns, and the way to them."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["create_file", "flush_folder", "move_file", "real_path", "replace_file"]


def create_file(path: Path, text: str) -> None:
    """Write a file that did not exist, readable by its owner only.

    It is written under another name and then linked to its own, so that a full disk or a kill leaves no half of it.

    Args:
        path: The file.
        text: Its content.

    Raises:
        FileExistsError: If there is such a file; it is left as it is.
        OSError: If it cannot be written; there is then no such file.
    """
    with _written_aside(path, text) as aside:
        try:
            os.link(aside, path)
        except FileExistsError:
            raise
        except OSError:
            # A file system without links: the name is taken first, and given up again if the content does not follow.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            try:
                os.replace(aside, path)
            except BaseException:
                path.unlink()
                raise
    flush_folder(path.parent)


def replace_file(path: Path, text: str) -> None:
    """Write a file in the place of the one that there is, readable by its owner only.

    Args:
        path: The file.
        text: Its content.

    Raises:
        OSError: If it cannot be written; the file is then as it was.
    """
    with _written_aside(path, text) as aside:
        os.replace(aside, path)
    flush_folder(path.parent)


def move_file(source: Path, path: Path) -> None:
    """Put a file that was written under another name in its place, in the same folder.

    Args:
        source: The file as it was written.
        path: Its place.

    Raises:
        OSError: If it cannot be moved; what was there before is then as it was.
    """
    with open(source, "rb") as file:
        os.fsync(file.fileno())
    os.replace(source, path)
    flush_folder(path.parent)


def real_path(path: str | Path) -> Path:
    """A path from its root, with `~` and symbolic links followed.

    Raises:
        ValueError: If it cannot be followed.
    """
    try:
        found = Path(path).expanduser().resolve()
        if os.path.islink(found):  # Python 3.13 leaves a circle of links as it is
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return found
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, nobody's home, a null character
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise ValueError(f"{str(path)!r} leads to no file ({reason}): name another one.") from error


def flush_folder(folder: Path) -> None:
    """Make a renamed or new file in the folder durable, where the system can open folders."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _written_aside(path: Path, text: str) -> Iterator[str]:
    """The content under a name that nobody else has, with mode 0600, for as long as the block lasts."""
    descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield aside
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
