"""The contract of a sampling scheme: its draws, and what they let the differing records do."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from lightning_pac._validation import Count, checks_itself, validated
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios.sampling.counts import as_stretches

__all__ = ["REGISTERED", "Sampling"]


@validated
class Sampling(ABC):
    """A way to draw the batch of every optimizer step, and its cost.

    A frozen dataclass of public numbers. `K_t` counts the differing records in the batch of step t. A scheme knows the
    largest sum of `K_t^2` that any path of batches can reach, and, where the draw is random and hidden, its
    expectation. Batches count records per optimizer step, over accumulation and ranks.

    Steps are an integer, a run without interruption, or a sequence of integers: the number of steps started in each
    *stretch*. A stretch begins at the start of a fresh pass over the data; a restart that replays a step, or that
    redraws the permutation, begins a new one, and so does the rest of an epoch that it resumes (the stretch ends with
    the epoch, since the next epoch is a pass of its own). Only pass-wise schemes tell the two forms apart.

    A scheme of one's own is a subclass with `draw_pass`, `condition` and `small_cases` that `register_sampling`
    decorates. Without them it can be priced, but not trained with.
    """

    secret_draws: bool = False
    """Whether the draws are hidden from the adversary, so that amplification by sampling holds."""
    random_draws: ClassVar[bool] = True
    """Whether the batches are drawn at random, so that an expectation over them means something."""
    independent_draws: ClassVar[bool] = False
    """Whether a record enters a batch independently of all others, which the adjacency `add_remove` needs."""
    each_record_once: ClassVar[bool] = False
    """Whether no record comes more than once in a pass."""
    amplifies_one_record: ClassVar[bool] = False
    """Whether `amplified_rate` is the price of one differing record, and several are changed one after the other."""
    needs_num_records: ClassVar[bool] = False
    """Whether the path-wise cap depends on the number of records."""
    title: ClassVar[str] = ""
    """A few words for tables; the name of the class if left out."""
    condition: ClassVar[str] = ""
    """The assumption of the price about the draws, a sentence for the privacy card."""

    @abstractmethod
    def worst_case_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> int:
        """The largest `sum_t K_t^2` over all paths of batches.

        Args:
            num_differing: records in which the two worlds differ, `d`.
            num_records: records in the dataset, `N`; None where the cap does not depend on it.
            num_steps: optimizer steps, or the steps started in each stretch (see the class).
        """

    @abstractmethod
    def expected_square_sum(
        self, num_differing: int, num_records: Count | None, num_steps: int | Sequence[int]
    ) -> float:
        """The expectation of `sum_t K_t^2` over the draw of the batches.

        Raises:
            ValueError: if the batches are not drawn at random, or their order is public.
        """

    @abstractmethod
    def expected_batch_size(self, num_records: Count | None = None) -> float:
        """The public number `B` by which the noised sum is divided."""

    @abstractmethod
    def steps_per_epoch(self, num_records: Count | None = None) -> int:
        """Optimizer steps in one pass over the data (Poisson: in one expected pass)."""

    def draw_pass(self, num_records: Count, generator: SecureGenerator) -> Iterator[npt.NDArray[np.int64]]:
        """The batches of one pass as arrays of indices below `num_records`, `steps_per_epoch` of them.

        Every call is a pass of its own: nothing of an earlier one may be remembered.

        Args:
            num_records: records to draw from.
            generator: source of all randomness of the draw.
        """
        raise TypeError(f"{type(self).__name__} does not say how it draws: let its draw_pass yield the batches.")

    def of_step(self, num_batches: int) -> Sampling | None:
        """The scheme of a step that takes several of these batches; None where they may share a record."""
        return None

    def of_passes(self, num_steps: int, num_records: int) -> Sampling | None:
        """The scheme where the Trainer makes passes of so many steps; None where it cannot be cut to them."""
        return self if num_steps == self.steps_per_epoch(num_records) else None

    @checks_itself
    def separation(self, num_records: Count | None) -> int | None:
        """The least number of steps from a batch that holds a record to the next that may hold it; None for any."""
        return None

    def inclusion_rate(self, num_records: Count | None = None) -> float:
        """Share of the records that an average batch holds."""
        return min(1.0, 1 / self.steps_per_epoch(num_records))

    @property
    def amplified_rate(self) -> float | None:
        """Rate at which our amplified price of secret, independent draws holds; None where it does not."""
        return None

    @checks_itself
    def amplified_steps(self, num_steps: int | Sequence[int]) -> int:
        """The number of these steps that may hold a given record, each paid for at `amplified_rate`.

        Args:
            num_steps: steps, or those of each stretch.
        """
        return sum(as_stretches(num_steps))

    @property
    def is_certified(self) -> bool:
        """Whether the price is proven here; that of every other scheme is declared by the user."""
        return bool(vars(type(self)).get("_certified", False))

    def check_drawable(self, num_records: Count | None = None) -> None:
        """Refuse a scheme whose batches we cannot, or must not, draw.

        Args:
            num_records: records to draw from, where they are known already.

        Raises:
            TypeError: if it is not registered.
            ValueError: if it says that others draw the batches, or needs more records.
        """
        name = type(self).__name__
        if REGISTERED.get(name) is not type(self):
            raise TypeError(
                f"{name} is not registered, so nothing has held its draws against its price: decorate the class with "
                "@register_sampling, or use one of the samplings of lightning_pac.scenarios."
            )

    def draw_counts(
        self, group_sizes: Sequence[int], num_records: Count | None, shape: tuple[int, int], rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        """The number of records of each group in the batches of simulated runs, `(*shape, num_groups)`.

        Args:
            group_sizes: records in each group of differing records, which come first in the dataset.
            num_records: records in the dataset.
            shape: independent runs, and optimizer steps of each.
            rng: source of the simulation.

        Raises:
            ValueError: if the number of records is needed and missing.
        """
        if num_records is None:
            raise ValueError(
                f"num_records is None, and {type(self).__name__} needs it: state num_records in the scenario."
            )
        # The group of each differing record; indices beyond them belong to records that both worlds share.
        group = np.repeat(np.arange(len(group_sizes)), group_sizes)
        generator = SecureGenerator.from_key(rng.bytes(48))
        counts = np.zeros((*shape, len(group_sizes)), dtype=np.int64)
        for run in counts:
            step = 0
            while step < len(run):
                for batch, _ in zip(self.draw_pass(num_records, generator), run[step:], strict=False):
                    run[step] = np.bincount(group[batch[batch < len(group)]], minlength=len(group_sizes))
                    step += 1
        return counts

    def to_dict(self) -> dict[str, Any]:
        """The scheme as plain values, for a ledger's declaration or a card; `sampling_from_dict` reads it."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"name": type(self).__name__, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The scheme of which `to_dict` wrote these values."""
        return cls(**{name: value for name, value in values.items() if name != "name"})

    @classmethod
    def of_batches(cls, batch_size: int, rate: float) -> Self | None:
        """The scheme of this class with such batches; None where they do not say enough to make one.

        Args:
            batch_size: records in a batch, or expected in one.
            rate: share of the records that a batch holds.
        """
        known = {"batch_size": batch_size, "rate": rate}
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        missing = dataclasses.MISSING
        if any(f.name not in known and f.default is missing and f.default_factory is missing for f in fields):
            return None
        return cls(**{f.name: known[f.name] for f in fields if f.name in known})

    @classmethod
    def small_cases(cls) -> Sequence[Self]:
        """Schemes of this class for at most six records, on which registration tries its price by brute force."""
        return ()


# Schemes by the name that `to_dict` writes; `register_sampling` enters them.
REGISTERED: dict[str, type[Sampling]] = {}
