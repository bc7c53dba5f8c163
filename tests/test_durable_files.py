"""Files that are there whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest

from lightning_pac import _durable_files
from lightning_pac._durable_files import create_file, move_file, replace_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_is_private_and_never_overwrites(tmp_path: Path) -> None:
    create_file(tmp_path / "a", "first")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", "second")
    assert (tmp_path / "a").read_text() == "first"
    replace_file(tmp_path / "a", "second")
    assert (tmp_path / "a").read_text() == "second"
    assert names(tmp_path) == ["a"]


def test_without_links_it_is_still_exclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    create_file(tmp_path / "a", "first")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", "second")
    assert (tmp_path / "a").read_text() == "first"
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        create_file(tmp_path / "b", "never")
    assert names(tmp_path) == ["a"]


def test_a_disk_that_fails_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(tmp_path / "kept", "old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_durable_files.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        create_file(tmp_path / "a", "text")
    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "kept", "new")
    assert (tmp_path / "kept").read_text() == "old"
    assert names(tmp_path) == ["kept"]


def test_a_file_is_on_the_disk_before_it_is_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").write_text("new")
    new, done = (tmp_path / "b").stat().st_ino, []
    flush, replace = os.fsync, os.replace

    def note_flush(descriptor: int) -> None:
        done.append("file" if os.fstat(descriptor).st_ino == new else "folder")
        flush(descriptor)

    def note_replace(*paths: object) -> None:
        done.append("replaced")
        replace(*paths)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", note_flush)
    monkeypatch.setattr(os, "replace", note_replace)
    move_file(tmp_path / "b", tmp_path / "a")
    assert done == ["file", "replaced", "folder"]
    assert (tmp_path / "a").read_text() == "new"
    assert names(tmp_path) == ["a"]
