"""The most that everything charged to a ledger may release, declared before the first release."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_pac._validation import validated
from lightning_pac.accountants.composed_ledger.shares import (
    Share,
    amount_of,
    covers,
    joint_curve,
    merged_shares,
    share_from_dict,
    share_to_dict,
)
from lightning_pac.accountants.privacy_loss import GaussianRelease, PrivacyCurve, Promise, promise_of
from lightning_pac.ledger import PrivacyLedger, declare_plan, declared_plan
from lightning_pac.randomness import finite_precision, missing_tail

__all__ = ["NUM_DRAWS", "LedgerPlan", "check_draws", "promise_terms"]

NUM_DRAWS = 2.0**32
"""Values of noise for whose finite bits a plan or a budget pays, unless it says otherwise."""

# Of a share of mu^2, which runs use up exactly but for the rounding of a sum; the curve includes it.
_ROUNDING = 1 + 1e-9


@validated
@dataclass(frozen=True)
class LedgerPlan:
    r"""Shares that the releases of a ledger draw on, and what all of them together promise.

    A share is a number of equal steps, a total of $\mu^2$, or a private selection. An account draws on one share, which
    it names before its first charge (`LedgerHandle(path, share="fit")`): a step on a step of its share that has no more
    noise, no lower rate and no fewer records, or as a Gaussian on a share of $\mu^2$; a selection on a whole share,
    whose runs may tell at least as much and whose number has the same law. In which order shares are used, how far, by
    how many runs and with how much more noise may then depend on what was released: whatever is chosen tells no more
    than all shares together, since every release stands in the place of one that was counted. (That the place is fixed
    beforehand matters: were it found afterwards, a step could be chosen by an outcome and set against either of two
    that differ in kind.) No charge passes its share; replayed steps count.

    Args:
        shares: the most that will be released, by name: what `SRPPAccountant.events` gives for a run, and
            `GaussianRelease(mu_squared=2 * epsilon / renyi_order)` for each noised value, and the `SelectionPrice` of a
            selection. A list is merged by kind and numbered from "1".
        promise: what all of it together keeps, an `EpsilonDelta` or a `SuccessBound`.
        num_draws: the most values of noise that everything draws, whose finite bits count in every figure.

    Raises:
        ValueError: if there is no share, or together they break the promise.

    Example:
        >>> from lightning_pac.accountants import SuccessBound
        >>> plan = LedgerPlan({"fit": GaussianRelease(0.1), "metrics": GaussianRelease(0.1)}, SuccessBound(0.6))
        >>> print(f"{plan.curve.success_bound():.4f}")
        0.5885
    """

    shares: Mapping[str, Share] | Sequence[Share]
    promise: Promise | None = None
    num_draws: float = NUM_DRAWS

    def __post_init__(self) -> None:
        check_draws(self.num_draws)
        if not isinstance(self.shares, Mapping):
            object.__setattr__(self, "shares", merged_shares(self.shares))
        if not self.shares:
            raise ValueError("shares is empty, so nothing might be released: name the runs to come.")
        nats, tail = self.arithmetic
        if self.promise is not None and not self.promise.less(nats, tail).is_kept_by(self.curve):
            raise ValueError(
                f"promise {self.promise} is not kept by the plan: its shares come to "
                f"{self.promise.figure(self.curve):.6g}, and finite random bits to {nats:.2g} and {tail:.2g} of delta, "
                "so plan less, or promise more."
            )

    @property
    def by_name(self) -> Mapping[str, Share]:
        """The shares by their names."""
        assert isinstance(self.shares, Mapping)
        return self.shares

    @property
    def curve(self) -> PrivacyCurve:
        """The curve of everything planned, without the charge for finite random bits."""
        return joint_curve(
            [
                GaussianRelease(share.mu_squared * _ROUNDING) if isinstance(share, GaussianRelease) else share
                for share in self.by_name.values()
            ]
        )

    @property
    def arithmetic(self) -> tuple[float, float]:
        """The charge of finite random bits to every figure, in nats, and to every delta."""
        return finite_precision(self.num_draws), missing_tail(self.num_draws)

    def share_for(self, kind: Share, name: str | None = None) -> str:
        """The share that releases of one kind draw on: the named one, or the only one that they can.

        Args:
            kind: one release, whose number does not matter.
            name: as the account names it; left out, releases never draw on a share of another kind where one of theirs
                is planned.

        Raises:
            ValueError: if there is no such share, the releases cannot draw on it, or several would do.
        """
        fitting = [share for share, planned in self.by_name.items() if covers(planned, kind)]
        # A Gaussian pays for anything, and for what is amplified far too much.
        alike = [share for share, planned in self.by_name.items() if type(planned) is type(kind)]
        fitting = [share for share in fitting if share in alike] or fitting
        if name is None and len(alike) == 1 and alike != fitting:  # it was meant, and a refusal says what it lacks
            (name,) = alike
        if name is not None and name not in self.by_name:
            raise ValueError(f"share is {name!r}, but the plan has {', '.join(map(repr, self.by_name))}.")
        if name is not None and not covers(self.by_name[name], kind):
            raise ValueError(
                f"share {name!r} is {self.by_name[name]}, which does not cover {kind}: take more noise, a lower rate "
                "or fewer records, or name another share."
            )
        if name is None and len(fitting) != 1:
            cure = "name one, as in ledger=LedgerHandle(path, share=...)" if fitting else "plan it, or take more noise"
            raise ValueError(
                f"{len(fitting) or 'None'} of the shares {', '.join(map(repr, self.by_name))} could pay for {kind}: "
                f"{cure}."
            )
        return fitting[0] if name is None else name

    def amount(self, share: str, events: Sequence[Share]) -> float:
        """The part of a share that releases take: steps of it, `mu^2`, or selections.

        Args:
            share: name of the share.
            events: what draws on it.
        """
        return amount_of(self.by_name[share], events)

    def holds(self, share: str, amount: float) -> bool:
        """Whether a share has so much, up to the rounding that the curve includes.

        Args:
            share: name of the share.
            amount: steps, `mu^2`, or selections.
        """
        return amount <= self.size(share) * _ROUNDING

    def size(self, share: str) -> float:
        """All of a share: steps, `mu^2`, or one selection."""
        return amount_of(self.by_name[share], [self.by_name[share]])

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
        return None if values is None else cls.from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, as a ledger and a file keep it."""
        return {
            "shares": {name: share_to_dict(share) for name, share in self.by_name.items()},
            "promise": promise_terms(self.promise),
            "num_draws": self.num_draws,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LedgerPlan:
        """The plan that `to_dict` wrote.

        Args:
            values: plain values.

        Raises:
            ValueError: if they are no plan, or one that breaks its promise.
        """
        shares, promise = values.get("shares"), values.get("promise", {})
        if (
            set(values) - {"shares", "promise", "num_draws"}
            or not isinstance(shares, Mapping)
            or not isinstance(promise, Mapping)
            or not all(isinstance(event, Mapping) for event in shares.values())
        ):
            raise ValueError(
                f"values is not a plan, which has shares, and may have a promise and num_draws: it has "
                f"{', '.join(map(str, values)) or 'nothing'}."
            )
        events = {name: share_from_dict(event) for name, event in shares.items()}
        return cls(events, promise_of(**promise), values.get("num_draws", NUM_DRAWS))


def check_draws(num_draws: float) -> None:
    """Refuse a number of values of noise that no promise leaves room for.

    Raises:
        ValueError: if it is negative, or above 2^48.
    """
    if not 0 <= num_draws <= 2.0**48:
        raise ValueError(f"num_draws is {num_draws}, but must lie between 0 and 2^48.")


def promise_terms(promise: Promise | None) -> dict[str, float]:
    """A promise as plain values, for `promise_of`."""
    if promise is None:
        return {}
    values: dict[str, float] = dataclasses.asdict(promise)  # type: ignore[call-overload]
    return {{"bound": "world_success_bound"}.get(name, name): value for name, value in values.items()}
