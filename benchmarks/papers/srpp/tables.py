"""The three tables of the SRPP paper, read from plain files, with the features its queries need."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SecretTable:
    """One table under one prior.

    Attributes:
        name: for instance `adult-0.86`.
        secret: the secret's value for each record, shape (num_records,).
        statistics: columns whose mean and deviation the summary query takes, shape (num_records, 3).
        rates: indicator columns whose mean it takes, shape (num_records, 3).
        features: what the learned queries are trained on, shape (num_records, num_features), standardized.
        target: what they predict, 0 or 1, shape (num_records,).
    """

    name: str
    secret: npt.NDArray[np.int64]
    statistics: Array
    rates: Array
    features: Array
    target: npt.NDArray[np.int64]

    def select(self, rows: npt.NDArray[np.int64], name: str) -> SecretTable:
        """The same table with only these records."""
        parts = (self.secret, self.statistics, self.rates, self.features, self.target)
        return SecretTable(name, *(part[rows] for part in parts))


def load(root: Path) -> list[SecretTable]:
    """Adult, Cleveland and Student, each with its natural and its balanced prior."""
    (adult, adult_hashed), heart, student = _adult(root), _cleveland(root), _student(root)
    return [
        adult,
        adult_hashed,
        heart,
        _balanced(heart, "cleveland-0.50"),
        student,
        _balanced(student, "student-0.20"),
    ]


def _adult(root: Path) -> tuple[SecretTable, SecretTable]:
    with (root / "adult" / "adult.data").open() as lines:
        rows = [row for row in csv.reader(lines, skipinitialspace=True) if row and "?" not in row]
    columns = list(zip(*rows, strict=True))
    age, education, gain, loss, hours = (np.array(columns[index], dtype=float) for index in (0, 4, 10, 11, 12))
    income = np.array([label.startswith(">50K") for label in columns[14]], dtype=np.int64)
    flags = [
        np.array(columns[column]) == value
        for column, value in ((9, "Male"), (5, "Married-civ-spouse"), (1, "Private"), (13, "United-States"))
    ]
    _, race = np.unique(columns[8], return_inverse=True)
    natural = SecretTable(
        name="adult-0.86",
        secret=race.astype(np.int64),
        statistics=np.stack([age, education, hours], axis=1),
        rates=np.stack([gain > 0, loss > 0, income], axis=1).astype(float),
        features=_standardize(np.stack([age, education, hours, gain > 0, loss > 0, *flags], axis=1)),
        target=income,
    )
    # The paper's balanced Adult: five synthetic groups by a hash of the record.
    digests = [hashlib.sha256(",".join(row).encode()).digest() for row in rows]
    group = np.array([int.from_bytes(digest[:8], "big") % 5 for digest in digests], dtype=np.int64)
    return natural, replace(natural, name="adult-0.20", secret=group)


def _cleveland(root: Path) -> SecretTable:
    with (root / "heart_cleveland" / "processed.cleveland.data").open() as lines:
        rows = np.array([[float(cell.replace("?", "nan")) for cell in row] for row in csv.reader(lines) if row])
    age, sex, pressure, cholesterol, disease = rows[:, 0], rows[:, 1], rows[:, 3], rows[:, 4], rows[:, 13] > 0
    others = np.delete(rows, [1, 11, 12, 13], axis=1)
    return SecretTable(
        name="cleveland-0.68",
        secret=sex.astype(np.int64),
        statistics=np.stack([age, pressure, cholesterol], axis=1),
        rates=np.stack([cholesterol > 240, pressure > 140, disease], axis=1).astype(float),
        features=_standardize(others),
        target=disease.astype(np.int64),
    )


def _student(root: Path) -> SecretTable:
    with (root / "student" / "student-mat.csv").open() as lines:
        rows = list(csv.DictReader(lines, delimiter=";"))
    column = {key: np.array([float(row[key]) for row in rows]) for key in _STUDENT_NUMBERS}
    grade = column["G3"]
    groups = np.searchsorted(np.quantile(grade, [0.2, 0.4, 0.6, 0.8]), grade, side="left")
    # The secret is the final grade's quintile, so the learned queries predict what every quintile has both of.
    features = [column[key] for key in _STUDENT_NUMBERS if key not in ("G1", "G2", "G3")]
    return SecretTable(
        name="student-full",
        secret=groups.astype(np.int64),
        statistics=np.stack([column["G1"], column["G2"], grade], axis=1),
        rates=np.stack([column["studytime"] > 2, column["failures"] > 0, column["absences"] > 10], axis=1).astype(
            float
        ),
        features=_standardize(np.stack(features, axis=1)),
        target=np.array([row["romantic"] == "yes" for row in rows], dtype=np.int64),
    )


_STUDENT_NUMBERS = (
    "age",
    "Medu",
    "Fedu",
    "traveltime",
    "studytime",
    "failures",
    "famrel",
    "freetime",
    "goout",
    "health",
    "absences",
    "G1",
    "G2",
    "G3",
)


def _balanced(table: SecretTable, name: str) -> SecretTable:
    rng = np.random.default_rng(0)
    size = np.bincount(table.secret).min()
    rows = [rng.choice(np.flatnonzero(table.secret == value), size, replace=False) for value in np.unique(table.secret)]
    return table.select(np.concatenate(rows), name)


def _standardize(columns: npt.ArrayLike) -> Array:
    values = np.asarray(columns, dtype=np.float64)
    standardized: Array = (values - values.mean(axis=0)) / values.std(axis=0)
    return standardized
