"""A ledger as runs are given it, with what it may hold in all."""

from __future__ import annotations

import json
from pathlib import Path

from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.accountants.composed_ledger.budget import LedgerBudget
from lightning_pac.accountants.composed_ledger.plan import LedgerPlan
from lightning_pac.ledger import LedgerArgument, LedgerHandle

__all__ = ["PlannedLedger"]


@validated
class PlannedLedger(LedgerHandle):
    """A ledger that is declared with a promise or a plan when it is first opened, and held to it ever after.

    A run that would exceed either is refused before its first step where the number of its steps is known, and ends
    before the step that would pass it where that is open.

    Args:
        given: An open ledger, or the path of one.
        witness: A file elsewhere that keeps the marks of the ledger at this path.
        share: The share of the plan that its user draws on.
        plan: A `LedgerPlan`, or a JSON file of one (`LedgerPlan.to_dict`).
        epsilon: What everything together may cost, in nats, with `delta` or `renyi_order`; see `LedgerBudget`.
        delta: Failure probability that goes with epsilon.
        world_success_bound: How often who sees everything may guess the right world.
        prior: Probability of one of the worlds before anything is released, for the bound.
        renyi_order: Order at which the ledger counts.

    Raises:
        ValueError: If not exactly one of a plan and a promise is given, or a number is out of range.

    Example:
        >>> import tempfile
        >>> with PlannedLedger(tempfile.mkdtemp() + "/study.db", epsilon=3.0, delta=1e-5) as ledger:
        ...     print(f"{ledger.budget('rpp'):.3f}")
        1.682
    """

    _declared: LedgerPlan | LedgerBudget

    def __init__(
        self,
        given: LedgerArgument,
        witness: str | Path | None = None,
        share: str | None = None,
        plan: LedgerPlan | str | Path | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        world_success_bound: float | None = None,
        prior: float = 0.5,
        renyi_order: float | None = None,
    ) -> None:
        super().__init__(given, witness, share)
        promised = [epsilon, delta, world_success_bound, renyi_order]
        if plan is None:
            declared: LedgerPlan | LedgerBudget = LedgerBudget(epsilon, delta, world_success_bound, prior, renyi_order)
        elif any(value is not None for value in promised):
            raise ValueError("plan is given beside a promise, but a plan keeps its own: state it in the plan.")
        elif isinstance(plan, LedgerPlan):
            declared = plan
        else:
            declared = LedgerPlan.from_dict(json.loads(Path(plan).read_text()))
        if isinstance(given, PlannedLedger) and given._declared != declared:
            raise ValueError(f"given keeps {given._declared} already: give its path, or state the same again.")
        self._declared = declared
        self._prepare = declared.hold if isinstance(declared, LedgerBudget) else declared.declare
        self.renyi_order = declared.renyi_order if isinstance(declared, LedgerBudget) else None

    @override
    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self._declared!r})"
