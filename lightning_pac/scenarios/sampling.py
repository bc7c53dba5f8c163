"""How batches are drawn: frozen, public-only descriptors and what each lets the differing records do."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

__all__ = [
    "EpochShuffle",
    "FixedSize",
    "Poisson",
    "Sampling",
    "Sequential",
    "WithReplacement",
    "as_stretches",
    "sampling_from_dict",
]


class Sampling(ABC):
    """How the batch of every optimizer step is drawn.

    `K_t` counts the differing records in the batch of step t. A descriptor knows the largest sum of `K_t^2` that any
    path of batches can reach, and, where the draw is random and hidden, its expectation. Batches count records per
    optimizer step, over accumulation and ranks.

    Steps are an integer, a run without interruption, or a sequence of integers: the number of steps started in each
    *stretch*. A stretch begins at the start of a fresh pass over the data; a restart that replays a step, or that
    redraws the permutation, begins a new one, and so does the rest of an epoch that it resumes (the stretch ends with
    the epoch, since the next epoch is a pass of its own). Only pass-wise samplers tell the two forms apart.
    """

    secret_draws: bool = False
    """Whether the draws are hidden from the adversary, so that amplification by sampling holds."""
    random_draws: ClassVar[bool] = True
    """Whether the batches are drawn at random, so that an expectation over them means something."""
    needs_num_records: ClassVar[bool] = False
    """Whether the path-wise cap depends on the number of records."""

    @abstractmethod
    def worst_case_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> int:
        """The largest `sum_t K_t^2` over all paths of batches.

        Args:
            num_differing: records in which the two worlds differ, `d`.
            num_records: records in the dataset, `N`; None where the cap does not depend on it.
            num_steps: optimizer steps, or the steps started in each stretch (see the class).
        """

    @abstractmethod
    def expected_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> float:
        """The expectation of `sum_t K_t^2` over the draw of the batches.

        Raises:
            ValueError: if the batches are not drawn at random, or their order is public.
        """

    @abstractmethod
    def expected_batch_size(self, num_records: int | None = None) -> float:
        """The public number `B` by which the noised sum is divided."""

    @abstractmethod
    def steps_per_epoch(self, num_records: int | None = None) -> int:
        """Optimizer steps in one pass over the data (Poisson: in one expected pass)."""

    def to_dict(self) -> dict[str, Any]:
        """The descriptor as plain values, for a ledger's declaration or a card; `sampling_from_dict` reads it."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"name": type(self).__name__, **values}


@dataclass(frozen=True)
class FixedSize(Sampling):
    """Batches of `batch_size` distinct records, drawn afresh for every step.

    The cap is `T min(d, B)^2`; `K_t` is hypergeometric, `E[K_t^2] = mu^2 + B (d/N)(1 - d/N)(N - B)/(N - 1)` with
    `mu = B d / N`.

    Args:
        batch_size: records in each batch, `B`.

    Example:
        >>> FixedSize(batch_size=512).worst_case_square_sum(num_differing=10, num_records=50_000, num_steps=98)
        9800
    """

    batch_size: int

    def __post_init__(self) -> None:
        _check_count("batch_size", self.batch_size)

    @override
    def worst_case_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> int:
        _check_differing(num_differing, num_records)
        return sum(as_stretches(num_steps)) * min(num_differing, self.batch_size) ** 2

    @override
    def expected_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> float:
        records = _require_records(self, num_records)
        _check_differing(num_differing, records)
        _check_batch_fits(self.batch_size, records)
        return sum(as_stretches(num_steps)) * _hypergeometric_square(num_differing, records, self.batch_size)

    @override
    def expected_batch_size(self, num_records: int | None = None) -> float:
        return float(self.batch_size)

    @override
    def steps_per_epoch(self, num_records: int | None = None) -> int:
        return math.ceil(_require_records(self, num_records) / self.batch_size)


@dataclass(frozen=True)
class WithReplacement(Sampling):
    """Batches of `batch_size` independent draws from all records, the same record possibly several times.

    The cap is `T B^2` for any number of differing records; `E[K_t^2] = mu^2 + B (d/N)(1 - d/N)` with `mu = B d / N`.

    Args:
        batch_size: draws in each batch, `B`.

    Example:
        >>> WithReplacement(batch_size=4).worst_case_square_sum(num_differing=1, num_records=100, num_steps=10)
        160
    """

    batch_size: int

    def __post_init__(self) -> None:
        _check_count("batch_size", self.batch_size)

    @override
    def worst_case_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> int:
        _check_differing(num_differing, num_records)
        return sum(as_stretches(num_steps)) * self.batch_size**2

    @override
    def expected_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> float:
        records = _require_records(self, num_records)
        _check_differing(num_differing, records)
        share = num_differing / records
        square = (self.batch_size * share) ** 2 + self.batch_size * share * (1 - share)
        return sum(as_stretches(num_steps)) * square

    @override
    def expected_batch_size(self, num_records: int | None = None) -> float:
        return float(self.batch_size)

    @override
    def steps_per_epoch(self, num_records: int | None = None) -> int:
        return math.ceil(_require_records(self, num_records) / self.batch_size)


@dataclass(frozen=True)
class Poisson(Sampling):
    """Every record enters every batch independently with probability `rate`.

    The cap is `T d^2`; `E[K_t^2] = d q (1 - q) + d^2 q^2`. With secret draws this is the sampling that is amplified.

    Args:
        rate: probability `q` that a record enters a batch, in (0, 1].
        batch_size: the public constant `B` by which the noised sum is divided. Left out, it is `q N`, which only a
            public number of records allows.
        secret_draws: False for a sampler that draws from a generator the adversary may know (anything but our own);
            the account is then the unamplified one.

    Example:
        >>> Poisson(rate=0.01).expected_batch_size(num_records=50_000)
        500.0
    """

    rate: float
    batch_size: int | None = None
    secret_draws: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate is {self.rate}, but a sampling rate lies in (0, 1].")
        if self.batch_size is not None:
            _check_count("batch_size", self.batch_size)

    @override
    def worst_case_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> int:
        _check_differing(num_differing, num_records)
        return sum(as_stretches(num_steps)) * num_differing**2

    @override
    def expected_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> float:
        if not self.secret_draws:
            raise ValueError(
                "These Poisson draws are not secret, so an average over them protects nobody: "
                'use our own Poisson sampler, or the notion "ave", "joint" or "rpp".'
            )
        _check_differing(num_differing, num_records)
        mean = num_differing * self.rate
        return sum(as_stretches(num_steps)) * (mean * (1 - self.rate) + mean**2)

    @override
    def expected_batch_size(self, num_records: int | None = None) -> float:
        if self.batch_size is not None:
            return float(self.batch_size)
        if num_records is None:
            raise ValueError(
                "The number of records is not public here, so state the divisor yourself: "
                f"Poisson(rate={self.rate}, batch_size=...)."
            )
        return self.rate * num_records

    @override
    def steps_per_epoch(self, num_records: int | None = None) -> int:
        return math.ceil(1 / self.rate)


@dataclass(frozen=True)
class _Passes(Sampling):
    """Every record at most once a pass, in batches of `batch_size`, the last one smaller unless it is dropped."""

    batch_size: int
    drop_last: bool = False
    steps_per_pass: int | None = None

    needs_num_records: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_count("batch_size", self.batch_size)
        if self.steps_per_pass is not None:
            _check_count("steps_per_pass", self.steps_per_pass)

    @override
    def worst_case_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> int:
        records = _require_records(self, num_records)
        _check_differing(num_differing, records)
        full, rest = divmod(num_differing, self.batch_size)

        def square(steps: int) -> int:
            return min(steps, full) * self.batch_size**2 + (rest**2 if steps > full else 0)

        per_pass = self.steps_per_epoch(records)
        complete, partial = _count_passes(num_steps, per_pass)
        return complete * square(per_pass) + sum(square(steps) for steps in partial)

    @override
    def expected_batch_size(self, num_records: int | None = None) -> float:
        return float(self.batch_size)

    @override
    def steps_per_epoch(self, num_records: int | None = None) -> int:
        records = _require_records(self, num_records)
        full, batches = records // self.batch_size, math.ceil(records / self.batch_size)
        if self.steps_per_pass is not None:
            if self.steps_per_pass > batches:
                raise ValueError(f"steps_per_pass is {self.steps_per_pass}, but a pass has {batches} batches.")
            return self.steps_per_pass
        if self.drop_last and not full:
            raise ValueError(
                f"drop_last drops the only batch: batch_size is {self.batch_size} and there are {records} records."
            )
        return full if self.drop_last else batches


@dataclass(frozen=True)
class EpochShuffle(_Passes):
    """A fresh, hidden permutation of all records every epoch, cut into batches: an ordinary shuffled DataLoader.

    `sum_t K_t = d` within a pass on every path, so a pass costs at most `floor(d/B) B^2 + (d mod B)^2` and a partial
    pass of n steps at most `min(n, floor(d/B)) B^2`, plus `(d mod B)^2` if `n > floor(d/B)`. `E[K_t^2]` is that of
    `FixedSize`, the last batch with its own size.

    Args:
        batch_size: records in each batch, `B`; a smaller last batch is still divided by `B`.
        drop_last: whether a smaller last batch is left out.
        steps_per_pass: optimizer steps in a pass where they are not `N / B` rounded: fewer where the Trainer's
            `limit_train_batches` cuts passes short.

    Example:
        >>> EpochShuffle(batch_size=512).worst_case_square_sum(num_differing=10, num_records=50_000, num_steps=98)
        100
    """

    @override
    def expected_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> float:
        records = _require_records(self, num_records)
        _check_differing(num_differing, records)
        per_pass = self.steps_per_epoch(records)
        size = min(self.batch_size, records)
        last = records % self.batch_size
        complete, partial = _count_passes(num_steps, per_pass)
        square = _hypergeometric_square(num_differing, records, size)
        total = (complete * per_pass + sum(partial)) * square
        if last and per_pass > records // self.batch_size:
            total -= complete * (square - _hypergeometric_square(num_differing, records, last))
        return total


@dataclass(frozen=True)
class Sequential(_Passes):
    """Every record once an epoch in a public order: no shuffling, or shuffling from a public seed.

    The path-wise cap is that of `EpochShuffle`. There is no expectation over a draw that the adversary knows, so the
    mean-square notions are refused.

    Args:
        batch_size: records in each batch, `B`.
        drop_last: whether a smaller last batch is left out.
        steps_per_pass: as for `EpochShuffle`.

    Example:
        >>> Sequential(batch_size=8).worst_case_square_sum(num_differing=10, num_records=100, num_steps=13)
        68
    """

    random_draws: ClassVar[bool] = False

    @override
    def expected_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> float:
        raise ValueError(
            "The order of the records is public, so there is no draw to average over: "
            'use the notion "ave", "joint" or "rpp".'
        )


def sampling_from_dict(values: Mapping[str, Any]) -> Sampling:
    """Rebuild the descriptor that `Sampling.to_dict` wrote.

    Args:
        values: what `to_dict` returned.

    Raises:
        ValueError: if the name is not that of a descriptor.

    Example:
        >>> sampling_from_dict(Poisson(rate=0.01).to_dict())
        Poisson(rate=0.01, batch_size=None, secret_draws=True)
    """
    fields = dict(values)
    name = fields.pop("name", None)
    for descriptor in (EpochShuffle, FixedSize, Poisson, WithReplacement, Sequential):
        if descriptor.__name__ == name:
            return descriptor(**fields)
    raise ValueError(f"{name!r} is no sampling descriptor: it must be one of the names in lightning_pac.scenarios.")


def as_stretches(num_steps: int | Sequence[int]) -> list[int]:
    """Steps of each stretch of a run (see `Sampling`): one stretch where a single number is given.

    Args:
        num_steps: steps, or those of each stretch.

    Raises:
        ValueError: if a number is negative.

    Example:
        >>> as_stretches(98), as_stretches([50, 60])
        ([98], [50, 60])
    """
    stretches = [int(steps) for steps in (num_steps if isinstance(num_steps, Sequence) else [num_steps])]
    if any(steps < 0 for steps in stretches):
        raise ValueError(f"num_steps is {num_steps}, but a number of steps is not negative.")
    return stretches


def _hypergeometric_square(num_differing: int, num_records: int, batch_size: int) -> float:
    share = num_differing / num_records
    mean = batch_size * share
    correction = (num_records - batch_size) / (num_records - 1) if num_records > 1 else 0.0
    return mean**2 + mean * (1 - share) * correction


def _count_passes(num_steps: int | Sequence[int], steps_per_pass: int) -> tuple[int, list[int]]:
    """Complete passes, and the lengths of the partial ones."""
    stretches = as_stretches(num_steps)
    partial = [steps % steps_per_pass for steps in stretches]
    return sum(steps // steps_per_pass for steps in stretches), [steps for steps in partial if steps]


def _require_records(sampling: Sampling, num_records: int | None) -> int:
    if num_records is None:
        raise ValueError(f"{type(sampling).__name__} needs the number of records: state num_records in the scenario.")
    _check_count("num_records", num_records)
    return num_records


def _check_batch_fits(batch_size: int, num_records: int) -> None:
    if batch_size > num_records:
        raise ValueError(f"batch_size is {batch_size}, but there are only {num_records} records to draw from.")


def _check_differing(num_differing: int, num_records: int | None) -> None:
    _check_count("num_differing", num_differing)
    if num_records is not None and num_differing > num_records:
        raise ValueError(f"num_differing is {num_differing}, but there are only {num_records} records.")


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, but it must be a whole number.")
    if value < 1:
        raise ValueError(f"{name} is {value}, but it must be at least 1.")
