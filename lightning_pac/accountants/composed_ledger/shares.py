"""A share of a plan: what it holds, how much of it, and what may draw on it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning_pac.accountants.privacy_loss import (
    GaussianRelease,
    PoissonSteps,
    PrivacyCurve,
    PrivacyEvent,
    event_from_dict,
    privacy_curve,
)
from lightning_pac.accountants.private_selection import SelectionPrice

__all__ = [
    "Share",
    "ShareUnit",
    "amount_of",
    "covers",
    "joint_curve",
    "merged_shares",
    "share_from_dict",
    "share_to_dict",
    "share_unit",
]

Share = PrivacyEvent | SelectionPrice
"""Steps of one kind, a total of `mu^2`, or one private selection."""

ShareUnit = Literal["steps", "mu^2", "selections"]


def share_unit(share: Share) -> ShareUnit:
    """The unit that a share is counted in."""
    if isinstance(share, SelectionPrice):
        return "selections"
    return "steps" if isinstance(share, PoissonSteps) else "mu^2"


def amount_of(share: Share, releases: Sequence[Share]) -> float:
    """The part of a share that releases take, in its unit."""
    if isinstance(share, SelectionPrice):
        return float(len(releases))
    if isinstance(share, PoissonSteps):
        return math.fsum(release.num_steps for release in releases if isinstance(release, PoissonSteps))
    return math.fsum(release.mu_squared for release in releases if not isinstance(release, SelectionPrice))


def covers(planned: Share, taken: Share) -> bool:
    """Whether one planned release tells at least as much as one that is taken, about the same worlds."""
    if isinstance(planned, SelectionPrice) or isinstance(taken, SelectionPrice):
        return (
            isinstance(planned, SelectionPrice)
            and isinstance(taken, SelectionPrice)
            and (planned.runs.gamma, planned.runs.eta) == (taken.runs.gamma, taken.runs.eta)
            and planned.draws >= taken.draws
            and len(planned.one_run) == len(taken.one_run)
            # A run that tells less has a curve below, by which the price of the whole never rises.
            and all(
                type(most) is type(one) and covers(most, one) and amount_of(most, [one]) <= amount_of(most, [most])
                for most, one in zip(planned.one_run, taken.one_run, strict=True)
            )
        )
    if isinstance(planned, GaussianRelease):
        return True
    if type(planned) is not type(taken):  # steps that records share, and steps of each, are priced by no one rule
        return False
    assert isinstance(taken, PoissonSteps)
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


def joint_curve(shares: Sequence[Share]) -> PrivacyCurve:
    """The curve of all shares together."""
    events = [share for share in shares if not isinstance(share, SelectionPrice)]
    return privacy_curve(events, [share.curve for share in shares if isinstance(share, SelectionPrice)])


def merged_shares(events: Sequence[Share]) -> dict[str, Share]:
    """Equal kinds of events as one share each, numbered; every selection is a share of its own."""
    merged: dict[Share, float] = {}
    for event in events:
        if isinstance(event, PoissonSteps):
            kind: Share = dataclasses.replace(event, num_steps=0)
            merged[kind] = merged.get(kind, 0) + event.num_steps
        elif isinstance(event, GaussianRelease):
            merged[GaussianRelease(0.0)] = merged.get(GaussianRelease(0.0), 0.0) + event.mu_squared
    shares: list[Share] = [
        dataclasses.replace(kind, num_steps=int(amount)) if isinstance(kind, PoissonSteps) else GaussianRelease(amount)
        for kind, amount in merged.items()
    ]
    shares += [event for event in events if isinstance(event, SelectionPrice)]
    return {str(number): share for number, share in enumerate(shares, 1)}


def share_to_dict(share: Share) -> dict[str, Any]:
    """A share as plain values, for `share_from_dict`."""
    return {"kind": "selection", **share.to_dict()} if isinstance(share, SelectionPrice) else share.to_dict()


def share_from_dict(values: Mapping[str, Any]) -> Share:
    """The share that `share_to_dict` wrote.

    Raises:
        ValueError: If the values are no share.
    """
    if values.get("kind") != "selection":
        return event_from_dict(values)
    try:
        return SelectionPrice.from_dict(values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"values is not a selection: {error}") from error
