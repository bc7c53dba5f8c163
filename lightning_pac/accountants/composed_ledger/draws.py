"""Values of noise from finite random bits that a ledger's accounts have drawn, and what those cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_pac.accountants.correlated_noise import BandedMatrix
from lightning_pac.ledger import LedgerAccount
from lightning_pac.randomness import finite_precision, missing_tail

__all__ = ["arithmetic_of", "correlation_of", "draws_of", "taken_steps"]


def arithmetic_of(*accounts: LedgerAccount, steps: int | None = None) -> tuple[float, float]:
    """The charge for noise from finite random bits, summed over accounts: nats, and to every delta."""
    draws, values = (sum(of(account, steps) for account in accounts) for of in (draws_of, _values_of))
    return finite_precision(draws), missing_tail(values)


def draws_of(account: LedgerAccount, steps: int | None = None) -> float:
    """Values of noise from finite bits that one account has drawn; coarser ones, of correlated noise, count as more."""
    correlation, steps = correlation_of(account.declaration), taken_steps(account) if steps is None else steps
    return _values_of(account, steps) * (1.0 if correlation is None else correlation.precision(steps))


def correlation_of(declaration: Mapping[str, Any]) -> BandedMatrix | None:
    """The matrix by which the noise of a training run is correlated, None where it is not."""
    coefficients = declaration.get("correlation")
    return None if coefficients is None else BandedMatrix(tuple(coefficients))


def _values_of(account: LedgerAccount, steps: int | None = None) -> int:
    values = sum(max(0, int((charge.event or {}).get("draws", 0))) for charge in account.events())
    steps = taken_steps(account) if steps is None else steps
    return int(account.declaration.get("draws_per_step", 0)) * steps + values


def taken_steps(account: LedgerAccount) -> int:
    """Steps that a training run has started."""
    return sum(attempt.num_steps for attempt in account.attempts())
