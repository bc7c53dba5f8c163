"""Results of the papers' experiments as data: figures by name, how far a new run may be from them, and what made them.

A result is `benchmarks/papers/PAPER/results/NAME.json`; `reproduce.py` writes and compares them, `index.py` and the
tests of the documentation read them. `experiments.json` holds the command of each.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parent.parent
# What a busy machine changes is kept and not compared.
TIMINGS = re.compile(r"seconds|mebibytes")
# Chance that a figure which is drawn anew falls outside its spread.
FALSE_ALARM = 1e-6
MEASURED = "_standard_error"
DIGITS = 10
# Two machines agree to so much where nothing is drawn.
RELATIVE = 1e-5


@dataclass(frozen=True)
class Result:
    """What one experiment gave.

    Attributes:
        command: The command line, from the root of the repository.
        seconds: Wall time of one run.
        runs: Number of runs that the figures are means of.
        hardware: The machine.
        versions: Versions of the libraries.
        figures: Value of each figure by its dotted name.
        spreads: Standard error of those that are not the same in every run.
    """

    command: str
    seconds: float
    runs: int
    hardware: str
    versions: dict[str, str]
    figures: dict[str, float]
    spreads: dict[str, float]

    @classmethod
    def read(cls, name: str) -> "Result":
        """The stored result of an experiment; `FileNotFoundError` if there is none."""
        return cls(**json.loads(path_of(name).read_text()))

    def write(self, name: str) -> None:
        """Store it, one figure a line."""
        path_of(name).parent.mkdir(exist_ok=True)
        path_of(name).write_text(json.dumps(vars(self), indent=1) + "\n")

    def differences(self, again: dict[str, float]) -> list[str]:
        """Figures of a new run that are missing or outside the spread of the stored ones, one sentence each."""
        found = []
        for name, value in self.figures.items():
            if name not in again:
                found.append(f"{name} is missing")
            elif not TIMINGS.search(name) and abs(again[name] - value) > self.tolerance(name):
                found.append(f"{name} is {again[name]:.6g}, stored {value:.6g} +- {self.tolerance(name):.2g}")
        return found

    def tolerance(self, name: str) -> float:
        """Largest distance of a new run's figure: a prediction interval, or rounding where nothing is drawn."""
        # The spread is a standard error of the stored mean; one new run deviates by sqrt(runs) of it.
        factor = stats.norm.isf(FALSE_ALARM / 2) if self.runs == 1 else stats.t.isf(FALSE_ALARM / 2, self.runs - 1)
        rounding = RELATIVE * abs(self.figures[name]) + 1e-12
        return float(factor * self.spreads.get(name, 0.0) * math.sqrt(1 + self.runs) + rounding)


def experiments() -> dict[str, dict[str, Any]]:
    """Command, output file and pictures of each experiment, by `PAPER/NAME`."""
    found: dict[str, dict[str, Any]] = json.loads((FOLDER / "experiments.json").read_text())
    return found


def path_of(name: str) -> Path:
    """File of a result."""
    paper, _, rest = name.partition("/")
    return FOLDER / paper / "results" / f"{rest}.json"


def stored() -> list[str]:
    """Names of the experiments that have a result."""
    return [name for name in experiments() if path_of(name).exists()]


def summarize(outputs: list[Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Figures and their standard errors from the JSON outputs of one run or several of one command.

    A program that states `NAME_standard_error` beside `NAME` has measured the spread itself; otherwise it is that of
    the runs.
    """
    runs = [dict(leaves(output)) for output in outputs]
    measured = {name.replace(MEASURED, ""): value for name, value in runs[0].items() if MEASURED in name}
    figures, spreads = {}, {}
    for name in runs[0]:
        if MEASURED in name:
            continue
        values = [run[name] for run in runs]
        figures[name] = _rounded(sum(values) / len(values))
        if len(runs) > 1:
            spread = math.sqrt(sum((value - figures[name]) ** 2 for value in values) / (len(runs) - 1) / len(runs))
        else:
            spread = measured.get(name, 0.0)
        if spread > 1e-9 * abs(figures[name]):
            spreads[name] = _rounded(spread)
    return figures, spreads


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of a JSON document by dotted name; truths count as 0 and 1, strings are left out."""
    if isinstance(value, bool | int | float):
        yield name, float(value)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for key, part in zip(_labels(value), value, strict=True):
            yield from leaves(part, f"{name}.{key}" if name else key)


def _labels(rows: list[Any]) -> list[str]:
    """Names of list entries: the least of their first fields that tell rows apart, or their numbers."""
    if rows and all(isinstance(row, dict) for row in rows):
        fields = [key for key, value in rows[0].items() if isinstance(value, str | int | float)]
        for count in range(1, min(4, len(fields)) + 1):
            labels = [",".join(str(row.get(field)) for field in fields[:count]) for row in rows]
            if len(set(labels)) == len(rows):
                return labels
    return [str(number) for number in range(len(rows))]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
