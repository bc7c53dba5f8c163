"""The names of private metrics, and which of them an evaluation logs, so that an absent one is told of."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

__all__ = ["LoggedNames", "check_names", "names_in"]


def check_names(names: Sequence[str]) -> None:
    """Refuse names under which no model logs.

    Raises:
        ValueError: Says which.
    """
    if not names:
        raise ValueError(f'names is {names!r}, but must list the metrics to make private, as ["val/accuracy"].')
    for name in names:
        stem, of_loader, _ = name.partition("/dataloader_idx_")
        if of_loader:
            raise ValueError(
                f"names has {name!r}, but Lightning adds the number of the loader by itself: name {stem!r}, for the "
                "values of all loaders."
            )


def names_in(names: Sequence[str], testing: bool) -> list[str]:
    """Those that a test may log, or a validation: names that begin as those of the other are the other's.

    Args:
        names: Of metrics.
        testing: Whether a test is meant.
    """
    return [name for name in names if not name.startswith("val" if testing else "test")]


class LoggedNames:
    """Notes what evaluations log, and warns once of each declared name that is still absent after one that counts.

    Args:
        declared: The names of the metrics.

    Attributes:
        declared: These names.
        releases: Metrics that the last evaluation logged under these names, each with the loaders whose records it had
            then: Lightning shows its value after each loader.
    """

    def __init__(self, declared: Sequence[str]) -> None:
        self.declared = declared
        self._ever: set[str] = set()
        self._told: set[str] = set()
        self._now: dict[str, None] = {}
        self.releases: set[tuple[int, frozenset[int]]] = set()

    def forget(self) -> None:
        """Forget all: another fit begins, perhaps of another model."""
        self._ever, self._told = set(), set()
        self.begin()

    def begin(self) -> None:
        """An evaluation begins."""
        self._now, self.releases = {}, set()

    def note(self, name: str, value: Any, loaders: frozenset[int]) -> None:
        """A value of these loaders is logged."""
        self._now[name] = None
        if name in self.declared:
            self.releases.add((id(value), loaders))

    def num_values(self, testing: bool = False) -> int:
        """Values that an evaluation releases: those of the last one, or one of each name where nothing was logged yet.

        Args:
            testing: Whether it is a test.
        """
        return len(self.releases) or len(names_in(self.declared, testing))

    def end(self, testing: bool) -> bool:
        """Whether all names were logged, at the end of an evaluation that is not Lightning's check before training.

        Args:
            testing: Whether it is a test.
        """
        self._ever |= self._now.keys()
        absent = [name for name in names_in(self.declared, testing) if name not in self._ever]
        untold = [name for name in absent if name not in self._told]
        self._told |= set(absent)
        if untold:
            stage, logged = "test" if testing else "validation", ", ".join(self._now) or "nothing at all"
            rank_zero_warn(
                f"PrivateMetrics: nothing was logged as {', '.join(untold)} in this {stage}, which logged {logged}: "
                f"unless later ones do, log the metric under that name in {stage}_step (within a fit, "
                "trainer.validating is True as well), or take it out of the names of PrivateMetrics."
            )
        return not absent
