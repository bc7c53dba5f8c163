"""The part of a private selection that is kept on the disk: its draw, and how far it is."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_pac._durable_files import create_file, flush_folder, replace_file
from lightning_pac.exceptions import LedgerMismatchError

__all__ = ["MOVED", "WEIGHTS", "SealedDraw"]

_ENDED_EARLY = "ended_early"
WEIGHTS, MOVED = "weights.pt", "moved.pt"
"""Files of the weights of a run that was trained, in its folder, and of those parameters that it has moved."""


class SealedDraw:
    """A folder with mode 0700 that only its owner can read, in which a crash loses nothing of a selection.

    Everything that tells of the number of runs lies one level deeper: who may list the folder that this one is in sees
    how many folders it holds and when they changed. Runs have random names, so that nothing of the best one tells its
    place among the others.

    Args:
        folder: Where it is, or will be.
        terms: What the selection was charged for; one that goes on must have the same.

    Raises:
        LedgerMismatchError: If the folder holds another selection.
    """

    def __init__(self, folder: Path, terms: Mapping[str, Any]) -> None:
        self.folder = folder
        self._secret = folder / "secret"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._secret.mkdir(mode=0o700, exist_ok=True)
        named, stated = folder / "selection.json", json.loads(json.dumps(terms))
        if not named.exists():
            if any(self._secret.iterdir()) or {path.name for path in folder.iterdir()} != {"secret"}:
                raise LedgerMismatchError(
                    f"{folder} holds other files, so no selection can begin there: name a new one."
                )
            create_file(named, json.dumps({"name": f"selection-{secrets.token_hex(4)}", "terms": stated}))
        kept = json.loads(named.read_text())
        self.name: str = kept["name"]
        if kept["terms"] != stated:
            raise LedgerMismatchError(
                f"{folder} holds a selection under other terms, which were paid for: go on with those, or name another "
                "folder."
            )

    @property
    def best(self) -> Path:
        """The released run: settings, score and weights."""
        return self.folder / "best.pt"

    @property
    def is_drawn(self) -> bool:
        """Whether the number of runs and their settings are on the disk."""
        return (self._secret / "draw.json").exists()

    def seal(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Keep the settings of all runs, before the first of them begins."""
        runs = [{"name": secrets.token_hex(8), "settings": dict(values)} for values in settings]
        create_file(self._secret / "draw.json", json.dumps(runs))

    @staticmethod
    def check(settings: Mapping[str, Any]) -> None:
        """Refuse what could not be kept."""
        try:
            json.dumps(dict(settings))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(
                f"space draws settings that JSON does not hold ({error}): draw numbers, words, truth values and None."
            ) from None

    def pending(self) -> list[tuple[Path, dict[str, Any]]]:
        """Runs that were not begun. One that a crash ended counts with the worst score and is not begun again."""
        return [(path, settings) for path, settings in self._runs() if not path.exists()]

    def new_folder(self) -> Path:
        """A folder for a run that does not count."""
        return self.begin(self._secret / secrets.token_hex(8))

    def begin(self, path: Path) -> Path:
        """Put on record that a run begins."""
        path.mkdir(mode=0o700)
        flush_folder(self._secret)
        return path

    def finish(self, path: Path, score: float) -> None:
        """Keep the score of a run whose weights are in its folder."""
        replace_file(path / "score.json", json.dumps(score))

    def note_early_end(self, path: Path) -> None:
        """Keep that something ended a run before its last planned step."""
        (path / _ENDED_EARLY).touch()

    @property
    def has_early_end(self) -> bool:
        """Whether that was noted of any run."""
        return any(self._secret.glob(f"*/{_ENDED_EARLY}"))

    def scores(self) -> list[tuple[float, Path, dict[str, Any]]]:
        """Scores of the runs that came to an end, in the order in which they were drawn."""
        files = [(path / "score.json", path, settings) for path, settings in self._runs()]
        return [(float(json.loads(file.read_text())), path, values) for file, path, values in files if file.exists()]

    def moved(self) -> list[Path]:
        """Files of the parameters that runs have moved."""
        return list(self._secret.glob(f"*/{MOVED}"))

    def remove_runs(self) -> None:
        """Remove losing runs, their number, logs and checkpoints."""
        shutil.rmtree(self._secret, ignore_errors=True)
        if any(self._secret.glob("*")):
            raise OSError(f"{self._secret} could not be removed, which holds the losing runs: remove it by hand.")

    def _runs(self) -> list[tuple[Path, dict[str, Any]]]:
        runs = json.loads((self._secret / "draw.json").read_text())
        return [(self._secret / run["name"], run["settings"]) for run in runs]
