"""The evidence as a page without outside files, a function of the document alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_pac.cards import at_most, upwards
from lightning_pac.evidence.wording import NOT_CHECKED, RELEASED, SOURCES, STATEMENTS
from lightning_pac.report import page_environment

__all__ = ["render_page"]


def render_page(document: Mapping[str, Any]) -> str:
    """The page.

    Args:
        document: What `describe_evidence` made.
    """
    environment = page_environment(Path(__file__).parent)
    environment.filters["figure"] = _figure
    environment.filters["estimate"] = lambda value: f"{value:.6g}"
    return str(
        environment.get_template("evidence.html.j2").render(
            **_names(document),
            headings=STATEMENTS,
            verdict=_verdict(document),
            alone=_alone(document),
            answers=_answers(document),
            released=_released(document),
            unchecked=_unchecked(document),
            not_checked=NOT_CHECKED,
        )
    )


def _names(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name.lstrip("$"): value for name, value in document.items()}


def _verdict(document: Mapping[str, Any]) -> str:
    """One sentence on what holds for everything in the ledger together."""
    total = document["privacy_parameters"]["total"]
    bound = total["world_success_bound"]
    if total["renyi_order"] is None and not document["releases"]:
        return "Nothing was released."
    if total["renyi_order"] is None and total["basis"] != "none":
        return "Nothing about two worlds was released: each mechanism below says by itself what it promises."
    if answers := _answers(document):
        return _about_membership(document, answers)
    if bound >= 1 or at_most(bound) == at_most(1.0):
        return "No useful bound holds for all releases together: each mechanism below speaks of itself alone."
    prior = max(total["prior"], 1 - total["prior"])
    blind = "a coin gets 50 %" if prior == 0.5 else f"a blind guess gets {at_most(prior)}"
    epsilon = total["epsilon_at_delta"]
    first = (
        ""
        if epsilon in (None, math.inf)
        else f"epsilon is at most {upwards(epsilon, 4)} at delta {upwards(total['delta'])}: "
    )
    return (
        f"For everything that this ledger lists, {first}someone who sees all of it guesses the secret correctly at "
        f"most {at_most(bound)} of the time, where {blind}."
    )


def _released(document: Mapping[str, Any]) -> list[str]:
    """What each account paid for, in a reader's words."""
    words = {mechanism: RELEASED[kind] for kind, (mechanism, _) in SOURCES.items()}
    return [f"{words[mechanism['mechanism']]} ({mechanism['account']})" for mechanism in document["mechanisms"]]


def _unchecked(document: Mapping[str, Any]) -> list[str]:
    """Conditions of all accounts that no program checks, each once."""
    found = [
        condition
        for mechanism in document["mechanisms"]
        for condition, check in zip(mechanism["card"]["conditions"], mechanism["checks"], strict=True)
        if check == NOT_CHECKED
    ]
    return list(dict.fromkeys(found))


def _alone(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each account about two worlds reveals by itself: the figures that its run printed."""
    rows = []
    for mechanism in document["mechanisms"]:
        figures = {guarantee["name"]: guarantee["value"] for guarantee in mechanism["card"]["guarantees"]}
        if {"world_success_bound", "epsilon_at_delta"} <= figures.keys():
            rows.append({"account": mechanism["account"], **figures})
    return rows


def _answers(document: Mapping[str, Any]) -> dict[str, float]:
    """Bounds on telling a membership by account, where there is nothing in the ledger but answers; else none."""
    found = {
        mechanism["account"]: {guarantee["name"]: guarantee["value"] for guarantee in mechanism["card"]["guarantees"]}
        for mechanism in document["mechanisms"]
    }
    if any("membership_success_bound" not in figures for figures in found.values()):
        return {}
    return {account: figures["membership_success_bound"] for account, figures in found.items()}


def _about_membership(document: Mapping[str, Any], answers: Mapping[str, float]) -> str:
    """One sentence on answers alone, which promise about membership and nothing about two worlds."""
    which = "No epsilon follows from answers, which promise about membership"
    if len(answers) > 1:
        return f"{which}, and those of each account speak of themselves alone, as below."
    (mechanism,) = document["mechanisms"]
    (meaning,) = (
        guarantee["meaning"]
        for guarantee in mechanism["card"]["guarantees"]
        if guarantee["name"] == "membership_success_bound"
    )
    return f"{meaning} That holds on the conditions below. {which}."


def _figure(value: Any) -> str:
    """A number as people read it: six digits, rounded up, whole numbers in groups, nothing for none."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return upwards(value) if isinstance(value, float) else str(value)
