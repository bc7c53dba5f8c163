"""Whether a dataset lists a file twice."""

from pathlib import Path
from typing import Any

from lightning_pac.data.records.copied_dataset import apart
from lightning_pac.data.records.record_digest import FIRST_SEED, load_alone, own_generators
from lightning_pac.data.records.repeated_records import TWICE
from lightning_pac.data.records.shared_contents.arrays import largest_array
from lightning_pac.data.value_digest import digest

__all__ = ["check_file_names", "folders", "is_file"]

_NAMES = 64  # of files, that are looked for
_LABELLED = 2  # parts of an entry that is a file and its class


def check_file_names(dataset: Any) -> None:
    """Refuse a dataset that lists a file twice, by itself or first in an entry.

    Entries that differ may name several records of one file, such as frames of a video: then these are loaded.

    Raises:
        ValueError: If it does.
    """
    named = folders(dataset)
    for value in vars(dataset).values():
        if not isinstance(value, list | tuple) or len(value) != len(dataset):
            continue
        listed: dict[str, list[int]] = {}
        for index, entry in enumerate(value):
            name = entry[0] if isinstance(entry, list | tuple) and entry else entry
            if isinstance(name, str | Path):
                listed.setdefault(str(name), []).append(index)
        again = [name for name, indices in listed.items() if len(indices) > 1][:_NAMES]
        for first, second, *_ in (listed[name] for name in again if any(is_file(folder / name) for folder in named)):
            entry, other = value[first], value[second]
            has_more = isinstance(entry, tuple | list) and len(entry) > _LABELLED  # as of questions on one picture
            if _is_same(entry, other) or _load_alike(dataset, first, second, in_all=has_more):
                raise ValueError(f"{type(dataset).__name__} {TWICE}")


def _is_same(entry: Any, other: Any) -> bool:
    return digest(entry) == digest(other)


def _load_alike(dataset: Any, first: int, second: int, in_all: bool) -> bool:
    """Whether the records at two indices are equal, in all or in their largest array, or cannot be loaded."""
    try:
        with apart(dataset) as fresh, own_generators():
            records = [load_alone(fresh, index, FIRST_SEED) for index in (first, second)]
            return _is_same(*(records if in_all else map(largest_array, records)))
    except Exception:
        return True


def is_file(path: Path) -> bool:
    """Whether there is such a file, also of a text that is no name.

    Args:
        path: What may be a name.
    """
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that is no name
        return False


def folders(dataset: Any) -> list[Path]:
    """The working folder, and those that a dataset names.

    Args:
        dataset: Of any kind.
    """
    values = getattr(dataset, "__dict__", {}).values()
    return [Path(), *(Path(value) for value in values if isinstance(value, str | Path))]
