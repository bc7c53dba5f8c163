"""The columns of a table as numbers for a network: scaled, one-hot, and nothing read off the records for free."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import Confidence, Count, Exponent, validated
from lightning_pac.data.columns.cells import Column, as_word, is_date, is_range, numbers_in, places_in, table_column
from lightning_pac.data.columns.noised_columns import choose_columns
from lightning_pac.ledger import LedgerArgument
from lightning_pac.scenarios import TwoWorldScenario

__all__ = ["TableTransform"]


@validated
class TableTransform:
    """Turns the columns of a table into numbers, by ranges and vocabularies that are public.

    A scaler fitted to the records, or a vocabulary read off them, is a release without noise: the largest income is
    somebody's. Here both are declared, or found under a promise that the ledger is charged for (`private`). Each row is
    then transformed alone:

    - a number is clipped to its range and scaled to [-1, 1], with a second feature that says whether it is missing
      (empty, NaN or no number), and the number is then 0;
    - a date is one too, whose range is stated by two dates: it counts in days, and the time of the day is dropped;
    - a category is one-hot over its vocabulary, with one more feature for all others and for missing ones;
    - a category without a vocabulary is hashed, by a public function, into so many buckets.

    Categories are compared without case and spaces, so that "Pro " is "pro", and 3.0 is 3. Read whole numbers above
    2^53 as text: pandas rounds them where another row lacks its cell.

    Attributes:
        columns: The same, as lists.

    Args:
        columns: Of each column that is used, in the order of the features: ``(low, high)`` for a number, two
            dates such as ``("2020-01-01", "2025-12-31")`` for a date written in that order, a list of texts for a
            category, or a number of buckets. It is plain, so that a YAML file may hold it.

    Raises:
        ValueError: If a range is empty or not finite, or a vocabulary is empty or names one twice, in whatever case.

    Example:
        >>> transform = TableTransform({"age": (20, 60), "job": ["clerk", "cook"]})
        >>> table = {"age": ["40", "", "99"], "job": ["Cook", "poet", "clerk"]}
        >>> transform(table).tolist()
        [[0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0, 0.0]]
        >>> transform.features
        ('age', 'age is missing', 'job = clerk', 'job = cook', 'job = other')
    """

    def __init__(self, columns: Mapping[str, Sequence[float | str | date] | Count]) -> None:
        if not columns:
            raise ValueError("columns is empty, but must name at least one column of the table.")
        self.columns: dict[str, Column] = {name: _checked(name, column) for name, column in columns.items()}

    @classmethod
    def private(
        cls,
        table: Any,
        columns: Mapping[str, Sequence[float | str | date] | Count],
        *,
        ledger: LedgerArgument,
        scenario: TwoWorldScenario | None = None,
        epsilon: Exponent | None = None,
        delta: float | None = None,
        world_success_bound: float | None = None,
        prior: float = 0.5,
        coverage: Confidence = 0.98,
        bins: Count = 128,
        account: str = "table",
    ) -> "TableTransform":
        r"""Narrows generous public ranges and vocabularies to what the records need, under a promise.

        All columns are counted at once: a range in `bins` equal bins, a vocabulary by its texts. A record adds one to
        at most one count of each of K columns, a vector of norm at most :math:`\sqrt K`, just as a clipped gradient
        does; so Gaussian noise of deviation :math:`\sigma \sqrt K` on every count is one step of noise multiplier
        :math:`\sigma` in which every record takes part, and composes with training in the same ledger. Counts are
        whole numbers, exact in float64, and the noise is that of gradients, on a grid and from secure bits. Bins and
        texts are public, and what is read off the noised counts is post-processing: the range that holds `coverage`
        of the records, and the texts that were counted more often than noise alone explains (three deviations).

        Args:
            table: As for a call; it is read once.
            columns: As for the constructor, generous: the range that the column could have, and all texts that could
                matter. A number of buckets is kept, and costs nothing.
            ledger: Where it is charged; that of training, if there is one.
            scenario: The two worlds of the promise; one record by default, as for `DPSGD`.
            epsilon: Privacy loss in nats, with `delta`.
            delta: Probability, in (0, 1), with which epsilon may fail.
            world_success_bound: How often a guess of the world may be right, in place of epsilon and delta.
            prior: Probability of one of the worlds before anything is released, for `world_success_bound`.
            coverage: Share of the records that a range is to hold; the others are clipped to its ends.
            bins: Bins of a range.
            account: Name of the account in the ledger.

        Raises:
            ValueError: If no promise is stated, no column needs one, or the columns are as the constructor refuses.
            BudgetExceededError: If the ledger cannot pay; nothing was released.

        Example:
            >>> import tempfile
            >>> ages = {"age": np.random.default_rng(0).normal(40, 5, size=10_000)}
            >>> ledger = tempfile.mkdtemp() + "/study.db"
            >>> narrow = TableTransform.private(ages, {"age": (0, 128)}, ledger=ledger, epsilon=1.0, delta=1e-6)
            >>> low, high = narrow.columns["age"]
            >>> 20 < low < 35 and 45 < high < 60
            True
        """
        generous = cls(columns).columns
        worlds = TwoWorldScenario.differential_privacy() if scenario is None else scenario
        counted = {name: table_column(table, name) for name in generous if not isinstance(generous[name], int)}
        if not counted:
            raise ValueError("columns has no range and no vocabulary, so nothing has to be found: call TableTransform.")
        promise = {"epsilon": epsilon, "delta": delta, "world_success_bound": world_success_bound, "prior": prior}
        return cls(choose_columns(generous, counted, worlds, promise, ledger, coverage, bins, account))

    def __call__(self, table: Any) -> npt.NDArray[np.float32]:
        """The features of a table, shape (rows, `len(features)`).

        Args:
            table: A mapping of names to columns, such as a table of pandas, or a sequence of mappings, such as the rows
                of `csv.DictReader`.

        Raises:
            ValueError: If a column is missing, or they differ in length.
        """
        parts = [_encode(table_column(table, name), column) for name, column in self.columns.items()]
        odd = next((name for name, part in zip(self.columns, parts, strict=True) if len(part) != len(parts[0])), None)
        if odd is not None:
            # Their number stays unsaid: it may be the secret.
            raise ValueError(
                f"table has another length in its column {odd!r} than in {next(iter(self.columns))!r}: give one value "
                "for each row."
            )
        return np.concatenate(parts, axis=1)

    def invented_rows(self, number: Count, seed: Count = 0) -> list[dict[str, Any]]:
        """Rows to try settings on at no cost: made of the declared columns alone, each cell uniform and by itself.

        Args:
            number: How many rows.
            seed: Of the generator; the same one gives the same rows.

        Returns:
            A mapping of names to cells for each row: whole numbers where both ends of a range are, dates as ISO 8601
            writes them, and made-up texts where a column is hashed.

        Example:
            >>> TableTransform({"age": (20, 60), "job": ["clerk", "cook"]}).invented_rows(2)
            [{'age': 46, 'job': 'clerk'}, {'age': 31, 'job': 'clerk'}]
        """
        generator = np.random.default_rng(seed)
        cells = {name: _invented(column, number, generator) for name, column in self.columns.items()}
        return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature."""
        return tuple(feature for name, column in self.columns.items() for feature in _features(name, column))


def _checked(name: str, column: Sequence[float | str | date] | int) -> Column:
    if isinstance(column, int):
        return column
    if len(column) == 2 and all(map(is_date, column)):
        dates = [str(entry)[:10] for entry in column]
        _, low, high = numbers_in([], dates)
        if not low < high:
            raise ValueError(f"columns[{name!r}] is {column!r}, but the first date must be before the second.")
        return dates
    if all(isinstance(entry, str) for entry in column):
        words = [as_word(entry) for entry in column]
        if not column or len(set(words)) < len(words):
            raise ValueError(
                f"columns[{name!r}] must list at least one text, and each once: case, spaces, and the .0 and leading "
                "zeros of whole numbers do not count."
            )
        return [str(entry) for entry in column]
    first, last = column if len(column) == 2 else (math.nan, math.nan)
    if not (isinstance(first, int | float) and isinstance(last, int | float) and 0 < last - first < math.inf):
        raise ValueError(
            f"columns[{name!r}] is {column!r}, but must be a range (low, high), two dates, a list of texts (numbers "
            "in quotes) or a number of buckets."
        )
    return [float(first), float(last)]


def _features(name: str, column: Column) -> list[str]:
    if isinstance(column, int):
        return [f"{name} in bucket {bucket}" for bucket in range(column)]
    if is_range(column):
        return [name, f"{name} is missing"]
    return [*(f"{name} = {text}" for text in column), f"{name} = other"]


def _encode(cells: Sequence[Any], column: Column) -> npt.NDArray[np.float32]:
    if is_range(column):
        numbers, low, high = numbers_in(cells, column)
        missing = np.isnan(numbers)
        scaled = 2 * (np.clip(np.where(missing, low, numbers), low, high) - low) / (high - low) - 1
        return np.stack([np.where(missing, 0.0, scaled), missing], axis=1).astype(np.float32)
    if isinstance(column, int):
        places, width = [_bucket(as_word(cell), column) for cell in cells], column
    else:
        places, width = places_in(cells, [*map(str, column)]), len(column) + 1
    return np.eye(width, dtype=np.float32)[np.array(places, dtype=np.int64)]


def _invented(column: Column, number: int, generator: np.random.Generator) -> list[Any]:
    if isinstance(column, int):
        return [f"made up {place}" for place in generator.integers(2**32, size=number).tolist()]
    if not is_range(column):
        return [column[place] for place in generator.integers(len(column), size=number).tolist()]
    _, low, high = numbers_in([], column)
    if not (low.is_integer() and high.is_integer()):
        return list(generator.uniform(low, high, number).tolist())
    whole = [int(low) + math.floor(share * (high - low + 1)) for share in generator.random(number).tolist()]
    return [date.fromordinal(day).isoformat() for day in whole] if isinstance(column[0], str) else whole


def _bucket(text: str, buckets: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode(errors="replace")).digest()[:8], "little") % buckets
