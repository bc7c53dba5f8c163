"""The most that everything charged to a ledger may release, declared before the first release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_pac._validation import validated
from lightning_pac.accountants.privacy_loss import (
    EpsilonDelta,
    GaussianRelease,
    PoissonSteps,
    PrivacyCurve,
    PrivacyEvent,
    Promise,
    event_from_dict,
    privacy_curve,
    promise_of,
)
from lightning_pac.ledger import PrivacyLedger, declare_plan, declared_plan

__all__ = ["LedgerPlan"]


@validated
@dataclass(frozen=True)
class LedgerPlan:
    """A multiset of steps and a total of `mu^2` that a ledger's releases are to stay under, and what they promise.

    Order, stopping, how `mu^2` is divided, and replacing a step by a cheaper one may then depend on what was released;
    the curve of the plan holds whatever was chosen. Each run's events count with the most steps it may take, replayed
    ones included.

    Args:
        events: the most that will be released, as `SRPPAccountant.events` gives it for each run; a noised metric is
            `GaussianRelease(mu_squared=2 * epsilon / renyi_order)` a value.
        promise: what all of it together keeps, an `EpsilonDelta` or a `SuccessBound`.

    Raises:
        ValueError: if there is no event, or together they break the promise.

    Example:
        >>> from lightning_pac.accountants import SuccessBound
        >>> plan = LedgerPlan([GaussianRelease(0.1), GaussianRelease(0.1)], SuccessBound(0.6))
        >>> print(f"{plan.curve.success_bound():.4f}")
        0.5885
    """

    events: Sequence[PrivacyEvent]
    promise: Promise | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        if not self.events:
            raise ValueError("events is empty, so that nothing might be released: name the runs to come.")
        if self.promise is not None and not self.promise.is_kept_by(self.curve):
            raise ValueError(
                f"promise {self.promise} is not kept by the plan: it comes to {self.promise.figure(self.curve):.6g}, "
                "so plan less, or promise more."
            )

    @property
    def curve(self) -> PrivacyCurve:
        """What everything planned tells apart."""
        return privacy_curve(self.events)

    def declare(self, ledger: PrivacyLedger) -> None:
        """Keep the plan with a ledger that holds no charge yet.

        Args:
            ledger: The ledger, open for writing.

        Raises:
            LedgerError: if something was charged already.
            LedgerMismatchError: if another plan was declared.
        """
        declare_plan(ledger, self.to_dict())

    @classmethod
    def of(cls, ledger: PrivacyLedger) -> LedgerPlan | None:
        """The plan that was declared with a ledger, None where there is none.

        Args:
            ledger: The ledger.
        """
        values = declared_plan(ledger)
        if values is None:
            return None
        return cls([event_from_dict(event) for event in values["events"]], promise_of(**values["promise"]))

    def covers(self, events: Sequence[PrivacyEvent]) -> bool:
        """Whether what was released stays under the plan; where that cannot be shown, the answer is no.

        Every step is set against a planned one with no more noise, no lower rate and no fewer records, dear ones first;
        steps that find none count as Gaussians.

        Args:
            events: what was released.
        """
        planned = [event for event in self.events if isinstance(event, PoissonSteps)]
        left = {index: event.num_steps for index, event in enumerate(planned)}
        allowed = math.fsum(event.mu_squared for event in self.events if isinstance(event, GaussianRelease))
        used = math.fsum(event.mu_squared for event in events if isinstance(event, GaussianRelease))
        steps = [event for event in events if isinstance(event, PoissonSteps)]
        by_noise = sorted(range(len(planned)), key=lambda index: -planned[index].noise_multiplier)
        for event in sorted(steps, key=lambda event: event.noise_multiplier):
            open_steps = event.num_steps
            for index in by_noise:  # the cheapest that is dear enough
                if open_steps and _is_dearer(planned[index], event):
                    taken = min(open_steps, left[index])
                    left[index] -= taken
                    open_steps -= taken
            if open_steps:
                used += event.mu_squared * open_steps / event.num_steps
        return used <= allowed * (1 + 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, as a ledger keeps it."""
        promise: Mapping[str, Any] = {}
        if isinstance(self.promise, EpsilonDelta):
            promise = {"epsilon": self.promise.epsilon, "delta": self.promise.delta}
        elif self.promise is not None:
            promise = {"world_success_bound": self.promise.limit, "prior": getattr(self.promise, "prior", 0.5)}
        return {"events": [event.to_dict() for event in self.events], "promise": dict(promise)}


def _is_dearer(planned: PoissonSteps, taken: PoissonSteps) -> bool:
    """Whether a planned step tells at least as much as one that was taken, about the same worlds."""
    kind = (taken.adjacency, taken.nested, taken.holder, type(taken.num_differing))
    if kind != (planned.adjacency, planned.nested, planned.holder, type(planned.num_differing)):
        return False
    most = planned.num_differing if isinstance(planned.num_differing, tuple) else (planned.num_differing,)
    counts = taken.num_differing if isinstance(taken.num_differing, tuple) else (taken.num_differing,)
    return (
        planned.noise_multiplier <= taken.noise_multiplier
        and planned.rate >= taken.rate
        and all(count <= limit for count, limit in zip(counts, most, strict=True))
    )
