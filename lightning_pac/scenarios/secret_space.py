"""Finite secret spaces: which subset of a pool of records a computation was run on, and the index of the one it was."""

import dataclasses
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from lightning_pac._validation import TrueOrFalse, validated
from lightning_pac.randomness import secure_generator
from lightning_pac.scenarios.secret_file import KEY_BYTES, SecretContent, create_secret_file, read_secret_file

__all__ = ["BalancedSubsets", "ComplementaryHalves", "SecretIndex", "SecretSpace", "SubsetTable"]

MAX_SUBSETS = 2**16
CACHE_BYTES = 2**28
CHUNK_VALUES = 2**22


@validated
class SecretIndex:
    """The index of the secret subset, as read from its file; it never shows itself.

    `operator.index(secret)` gives the number to the code that needs it. `repr`, `str` and formatting do not, and it
    cannot be pickled, so it reaches no log, checkpoint or worker process by accident.

    Attributes:
        space: The public space that the index was drawn from.
        path: The file, readable by its owner only.
        key: 32 random bytes that key the chain of the ledger.
    """

    def __init__(self, index: int, space: "SecretSpace", key: bytes, path: Path) -> None:
        self._index = index
        self.space = space
        self.key = key
        self.path = path

    def __index__(self) -> int:
        return self._index

    def __repr__(self) -> str:
        return f"SecretIndex(path={str(self.path)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A SecretIndex cannot be pickled: open its file with load_secret where it is needed.")


@validated
class SecretSpace(ABC):
    """A public table of m subsets of N records, of which one, drawn from a public prior, is the secret.

    The table may be known to everyone; only the index of the drawn subset is secret. It is drawn once and never again:
    with a second index the releases together would speak of the union of two subsets, which contains almost everybody.
    """

    num_records: int

    @property
    @abstractmethod
    def num_secrets(self) -> int:
        """Number m of subsets."""

    @property
    @abstractmethod
    def prior(self) -> npt.NDArray[np.float64]:
        """Probability of each secret, shape (m,), sum 1."""

    @abstractmethod
    def membership_table(self, records: npt.ArrayLike | None = None) -> npt.NDArray[np.bool_]:
        """Membership of records in subsets: shape (n, m), row i for `records[i]` (all N records if None).

        Args:
            records: Indices, shape (n,).
        """

    def membership(self, index: int) -> npt.NDArray[np.bool_]:
        """Membership of all records in one subset, shape (N,)."""
        self._check_index(index)
        return np.concatenate([block[:, index] for block in self._blocks()])

    def subset(self, index: int) -> npt.NDArray[np.int64]:
        """Indices of the records of one subset, ascending."""
        return np.flatnonzero(self.membership(index)).astype(np.int64)

    @property
    def individual_prior(self) -> float:
        """Largest success probability of guessing one record's membership before anything is released."""
        # Record i is in with probability sum_j P(j) [i in subset j]; a blind guess takes the likelier of in and out.
        return max(float(np.maximum(rate, 1 - rate).max()) for rate in (block @ self.prior for block in self._blocks()))

    @property
    def index_guess_prior(self) -> float:
        """Success probability of guessing the index, and with it everybody's membership, before any release."""
        return float(self.prior.max())

    @functools.cached_property
    def table_hash(self) -> str:
        """SHA-256 of the table and the prior, the name under which checkpoints and ledgers know this space."""
        digest = hashlib.sha256(f"lightning-pac secret space {self.num_records} {self.num_secrets} ".encode())
        digest.update(self.prior.astype("<f8").tobytes())
        for block in self._blocks():
            digest.update(np.packbits(block, axis=1).tobytes())
        return digest.hexdigest()

    def draw_secret(self, path: str | Path) -> SecretIndex:
        """Draw the secret index from the operating system's randomness and write it to a new file.

        Args:
            path: File to create, readable by its owner only. It holds the index, the hash of the table, the key of the
                ledger's chain and the ledger's high-water mark.

        Raises:
            FileExistsError: If the file exists: a secret is drawn once, use `load_secret`.
            LedgerError: If the file cannot be written; there is then none.
        """
        generator = secure_generator()
        content = SecretContent(generator.choice(self.prior), generator.bytes(KEY_BYTES), self.table_hash)
        create_secret_file(Path(path), content, self.num_secrets)
        return SecretIndex(content.index, self, content.key, Path(path))

    def load_secret(self, path: str | Path) -> SecretIndex:
        """Open the secret that `draw_secret` wrote.

        Args:
            path: Where `draw_secret` wrote it.

        Raises:
            LedgerMismatchError: If the file belongs to another table.
            LedgerError: If the file is damaged or others may read it.
        """
        content = read_secret_file(Path(path), self.table_hash, self.num_secrets)
        return SecretIndex(content.index, self, content.key, Path(path))

    def _blocks(self) -> Iterator[npt.NDArray[np.bool_]]:
        """The table in consecutive blocks of records, so that no more than a few megabytes are unpacked at once."""
        step = max(1, CHUNK_VALUES // self.num_secrets)
        for start in range(0, self.num_records, step):
            yield self.membership_table(np.arange(start, min(start + step, self.num_records)))

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.num_secrets:
            raise ValueError(f"index is {index}, but must lie in 0 ... {self.num_secrets - 1}.")

    def _check_records(self, records: npt.ArrayLike | None) -> npt.NDArray[np.int64]:
        if records is None:
            return np.arange(self.num_records)
        selected = np.asarray(records)
        if selected.ndim != 1 or (selected.size and not np.issubdtype(selected.dtype, np.integer)):
            raise TypeError(f"records must be a one-dimensional integer array, got {selected.dtype} {selected.shape}.")
        if selected.size and not (selected.min() >= 0 and selected.max() < self.num_records):
            raise ValueError(f"Record indices must lie in 0 ... {self.num_records - 1}: index the pool's own records.")
        return selected.astype(np.int64)


@dataclasses.dataclass(frozen=True)
class _HalfOfSubsets(SecretSpace):
    """Equally likely subsets, half of which hold a record, by a public table."""

    num_records: int
    num_subsets: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        _check_sizes(self.num_records, self.num_subsets, self.seed)

    @property
    @override
    def num_secrets(self) -> int:
        return self.num_subsets

    @property
    @override
    def prior(self) -> npt.NDArray[np.float64]:
        return np.full(self.num_subsets, 1 / self.num_subsets)

    @property
    @override
    def individual_prior(self) -> float:
        return 0.5


@validated
@dataclasses.dataclass(frozen=True)
class BalancedSubsets(_HalfOfSubsets):
    """Subsets such that every record is in exactly half of them.

    For each record independently, one of the `C(m, m/2)` ways to choose m/2 of the m subsets is drawn uniformly. A
    record's membership prior is exactly 1/2 and memberships of different records are nearly independent.

    The table is a function of the public seed alone, from raw Philox output, so every process and platform computes
    the same one.

    Args:
        num_records: Number N of records in the pool.
        num_subsets: Number m of subsets, even, 2 to 65536.
        seed: Public seed of the table, not of the secret.

    Raises:
        ValueError: If m is odd or out of range, or N is not positive.

    Source: *PAC-Private Responses with Adversarial Composition*, section 4.2.1.

    Example:
        >>> pool = BalancedSubsets(num_records=1000, num_subsets=8)
        >>> pool.membership_table().sum(axis=1).tolist() == [4] * 1000
        True
        >>> pool.individual_prior, pool.index_guess_prior
        (0.5, 0.125)
    """

    @override
    def membership_table(self, records: npt.ArrayLike | None = None) -> npt.NDArray[np.bool_]:
        selected = self._check_records(records)
        # Eight memberships are kept in a byte.
        if self.num_records * self.num_subsets <= 8 * CACHE_BYTES:
            bits = np.unpackbits(self._packed[selected], axis=1, count=self.num_subsets)
            return bits.view(np.bool_)
        rows = [self._draw(start, stop) for start, stop in _runs(selected)]
        return np.concatenate(rows) if rows else np.zeros((0, self.num_subsets), dtype=np.bool_)

    @functools.cached_property
    def _packed(self) -> npt.NDArray[np.uint8]:
        packed = np.empty((self.num_records, -(-self.num_subsets // 8)), dtype=np.uint8)
        step = max(1, CHUNK_VALUES // self.num_subsets)
        for start in range(0, self.num_records, step):
            stop = min(start + step, self.num_records)
            packed[start:stop] = np.packbits(self._draw(start, stop), axis=1)
        return packed

    def _draw(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        keys = _random_keys("balanced subsets", self.seed, start, stop, self.num_subsets)
        half = self.num_subsets // 2
        # The low 16 bits become the position, so that no two keys of a record are equal and exactly half are taken.
        keys = (keys & ~np.uint64(MAX_SUBSETS - 1)) | np.arange(self.num_subsets, dtype=np.uint64)
        # The m/2 smallest of m keys.
        return keys <= np.partition(keys, half - 1, axis=1)[:, half - 1 : half]


@validated
@dataclasses.dataclass(frozen=True)
class ComplementaryHalves(_HalfOfSubsets):
    """Uniformly random halves of the pool together with their complements.

    Subset 2i is a uniformly random half (`N // 2` records) and subset 2i + 1 the rest, so every record is in
    exactly m/2 of the m subsets and all subsets have the same size (up to one record when N is odd).

    Args:
        num_records: Number N of records in the pool, at least 2.
        num_subsets: Number m of subsets, even, 2 to 65536.
        seed: Public seed of the table, not of the secret.

    Raises:
        ValueError: If m is odd or out of range, or N < 2.

    Source: *PAC-Private Algorithms*, Appendix B.

    Example:
        >>> pool = ComplementaryHalves(num_records=10, num_subsets=4)
        >>> bool((pool.membership(0) ^ pool.membership(1)).all()), len(pool.subset(2))
        (True, 5)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_records < 2:
            raise ValueError(f"num_records = {self.num_records} cannot be halved: give at least two records.")

    @override
    def membership_table(self, records: npt.ArrayLike | None = None) -> npt.NDArray[np.bool_]:
        selected = self._check_records(records)
        table = np.empty((len(selected), self.num_subsets), dtype=np.bool_)
        for pair in range(self.num_subsets // 2):
            table[:, 2 * pair] = self._half(pair)[selected]
        table[:, 1::2] = ~table[:, ::2]
        return table

    @override
    def membership(self, index: int) -> npt.NDArray[np.bool_]:
        self._check_index(index)
        half = self._half(index // 2)
        return ~half if index % 2 else half

    def _half(self, pair: int) -> npt.NDArray[np.bool_]:
        # Complements are not kept, so that a byte stands for sixteen memberships.
        if self.num_records * self.num_subsets > 16 * CACHE_BYTES:
            return self._draw(pair)
        return np.unpackbits(self._packed[pair], count=self.num_records).view(np.bool_)

    @functools.cached_property
    def _packed(self) -> npt.NDArray[np.uint8]:
        return np.stack([np.packbits(self._draw(pair)) for pair in range(self.num_subsets // 2)])

    def _draw(self, pair: int) -> npt.NDArray[np.bool_]:
        keys = _random_keys("complementary halves", self.seed, pair, pair + 1, self.num_records)[0]
        half = np.zeros(self.num_records, dtype=np.bool_)
        # Stable, so that equal keys give the same half on every platform.
        half[np.argsort(keys, kind="stable")[: self.num_records // 2]] = True
        return half


@validated
class SubsetTable(SecretSpace):
    """An explicit table of subsets with any prior.

    Args:
        table: Boolean array of shape (N, m); `table[i, j]` says whether record i is in subset j.
        weights: Prior over the m subsets, uniform if None.

    Raises:
        ValueError: If two subsets are equal (a space drawn with replacement), or the weights are no distribution.

    Example:
        >>> space = SubsetTable([[True, False], [True, True]], weights=[0.25, 0.75])
        >>> space.individual_prior
        1.0
    """

    def __init__(self, table: TrueOrFalse, weights: Sequence[float] | npt.ArrayLike | None = None) -> None:
        self._table = np.array(table, dtype=np.bool_)
        if self._table.ndim != 2 or 0 in self._table.shape:
            raise ValueError(f"table must have shape (records, subsets), got {self._table.shape}.")
        self.num_records, num_secrets = self._table.shape
        if np.unique(np.packbits(self._table, axis=0), axis=1).shape[1] < num_secrets:
            raise ValueError(
                "Two subsets of the table are equal, as happens when they are drawn with replacement: "
                "keep one of them and give it the sum of their weights."
            )
        prior = np.full(num_secrets, 1 / num_secrets) if weights is None else np.array(weights, dtype=np.float64)
        if prior.shape != (num_secrets,) or not (prior >= 0).all() or not abs(prior.sum() - 1) <= 1e-9:
            raise ValueError(f"weights must be {num_secrets} non-negative numbers with sum 1, got {weights!r}.")
        self._prior: npt.NDArray[np.float64] = prior / prior.sum()

    @property
    @override
    def num_secrets(self) -> int:
        return int(self._table.shape[1])

    @property
    @override
    def prior(self) -> npt.NDArray[np.float64]:
        return self._prior.copy()

    @override
    def membership_table(self, records: npt.ArrayLike | None = None) -> npt.NDArray[np.bool_]:
        return self._table[self._check_records(records)]


def _check_sizes(num_records: int, num_subsets: int, seed: int) -> None:
    if num_records < 1:
        raise ValueError(f"num_records = {num_records} is not a pool: give at least one record.")
    if not 2 <= num_subsets <= MAX_SUBSETS or num_subsets % 2:
        raise ValueError(f"num_subsets = {num_subsets} must be even and lie in 2 ... {MAX_SUBSETS}.")
    if seed < 0:
        raise ValueError(f"seed = {seed} must not be negative.")


def _random_keys(domain: str, seed: int, start: int, stop: int, width: int) -> npt.NDArray[np.uint64]:
    """Rows `start` to `stop` of an endless table of 64-bit random numbers, each row at its own Philox counter."""
    key = int.from_bytes(hashlib.sha256(f"lightning-pac {domain} {seed}".encode()).digest()[:16], "little")
    # A Philox counter gives four numbers, so a row takes so many counters.
    blocks = -(-width // 4)
    generator = np.random.Philox(key=key, counter=start * blocks)
    return generator.random_raw((stop - start) * blocks * 4).reshape(stop - start, blocks * 4)[:, :width]


def _runs(records: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Maximal runs of consecutive record indices, as half-open ranges."""
    for run in np.split(records, np.flatnonzero(np.diff(records) != 1) + 1):
        if run.size:
            yield int(run[0]), int(run[-1]) + 1
