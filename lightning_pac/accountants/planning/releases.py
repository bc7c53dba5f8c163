"""The things that a project is going to release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_pac._validation import Count, OpenProbability, Positive, validated
from lightning_pac.accountants.bounds import membership_success_bound
from lightning_pac.accountants.private_selection import NumberOfRuns
from lightning_pac.information import binary_kl

__all__ = ["PlannedAnswers", "PlannedTraining", "PlannedValues"]

# Of the prior: a gain that a bound states in three digits and more.
_LEAST_GAIN = 1e-12


@validated
@dataclass(frozen=True)
class PlannedTraining:
    """A model, trained on batches that are drawn in secret by Poisson sampling.

    Args:
        batch_size: records expected in a batch; several are compared.
        epochs: passes over the data; several are compared.
        parameters: trainable parameters, which say how far the noise drowns a step.
        weight: share of the privacy that it gets, beside the weights of the other releases (values: 1).
        runs: the number of runs, if the model is the best of a secret number of them (`PrivateSelection`).
        score_share: share of a run's privacy that its score gets, if there are several runs.

    Raises:
        ValueError: if nothing is left to compare.
    """

    batch_size: Count | Sequence[Count]
    epochs: Count | Sequence[Count]
    parameters: Count | None = None
    weight: Positive = 9.0
    runs: NumberOfRuns | None = None
    score_share: OpenProbability = 0.05

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs"):
            given = getattr(self, name)
            if not isinstance(given, int) and not given:
                raise ValueError(f"{name} is empty, but a run has one: give a number, or several to compare.")

    @property
    def settings(self) -> list[tuple[int, int]]:
        """Batch sizes and epochs to compare."""
        sizes = [self.batch_size] if isinstance(self.batch_size, int) else self.batch_size
        lengths = [self.epochs] if isinstance(self.epochs, int) else self.epochs
        return [(size, length) for size in sizes for length in lengths]


@validated
@dataclass(frozen=True)
class PlannedValues:
    """Noised values: metrics of `PrivateMetrics`, or cells of a table to which each record adds at most once.

    Args:
        number: of values; a table whose cells share no record is one.
        weight: share of the privacy that they get together, beside the weights of the other releases.
    """

    number: Count
    weight: Positive = 1.0


@validated
@dataclass(frozen=True)
class PlannedAnswers:
    """Answers of a `PACResponder`, whose cost is mutual information and adds to nothing about two worlds.

    Args:
        number: of answers.
        membership_success_bound: the most often that anyone who sees all of them may tell a member from others.
        prior: how often a guess is right without them.

    Raises:
        ValueError: if the bound is not between the prior and 1.

    Example:
        >>> answers = PlannedAnswers(1_000_000, membership_success_bound=0.6)
        >>> print(f"{answers.mutual_information:.5f} {answers.budget_per_response:.2e}")
        0.02014 2.01e-08
    """

    number: Count
    membership_success_bound: OpenProbability
    prior: OpenProbability = 0.5

    def __post_init__(self) -> None:
        if not self.prior < self.membership_success_bound:
            raise ValueError(
                f"membership_success_bound is {self.membership_success_bound:g}, but a guess is right with probability "
                f"{self.prior:g} before any answer: allow more."
            )
        if self.membership_success_bound - self.prior < _LEAST_GAIN * self.prior:
            raise ValueError(
                f"membership_success_bound is {self.membership_success_bound!r}, so close to the prior of "
                f"{self.prior:g} that its digits cannot tell them apart: allow more."
            )

    @property
    def mutual_information(self) -> float:
        """The most that all answers may tell, in nats: `kl(bound, prior)`, rounded downwards."""
        bound, prior = self.membership_success_bound, self.prior
        nats, too_much = float(binary_kl(bound, prior)), 1e-12
        # Near the prior a bound has few digits that count, so the share that is taken off is doubled.
        while membership_success_bound(nats * (1 - too_much), prior) > bound:
            too_much *= 2
        return nats * (1 - too_much)

    @property
    def budget_per_response(self) -> float:
        """The part of each answer, in nats."""
        return self.mutual_information / self.number
