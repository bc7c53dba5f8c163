"""The words of a report: one sentence on what was promised and what it cost, and the promise of each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_pac.cards import at_most

__all__ = ["accuracy_cost", "percent_span", "promise_in_words", "verdict"]

_SPACE = "\N{NO-BREAK SPACE}"
DROWNED = 0.25  # deviation of the noise in an accuracy that says nothing
_FEW = 3  # bounds that are told one by one


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """What to know first about all runs: how often the secret can be guessed, and a blind guess, and the accuracy.

    Args:
        rows: what `summarize` says of each run.
    """
    if refuted := [row["run"] for row in rows if row["refuted"]]:
        about = ", ".join(refuted)
        return f"An audit raised an alarm about {about}: do not rely on its promise, and treat the secret as known."
    bounded = [row for row in rows if row["success_bound"] is not None]
    if not bounded:
        promised = [row for row in rows if row["is_private"]]
        if len(promised) == 1 == len(rows):
            return promise_in_words(promised[0])
        if promised:
            return f"{len(promised)} of {len(rows)} runs make a promise, each in the words of its row below."
        subject = "This run promises" if len(rows) == 1 else f"None of these {len(rows)} runs promises"
        return f"{subject} {'nothing' if len(rows) == 1 else 'anything'}: the secret may be plain to see."
    one = "this run" if len(rows) == 1 else "one of these runs" if len(bounded) == len(rows) else "a private run"
    bounds = [row["success_bound"] for row in bounded]
    # Private metrics are charged beside the run, and its card says nothing of them.
    measures = any(row["accuracy_deviation"] or row["noised"] for row in rows)
    figures = "measured figures" if any(row["noised"] for row in rows) else "accuracies"
    apart = f", apart from the {figures} below," if measures else ""
    sentence = (
        f"Proven: an attacker who sees everything that {one} released{apart} can guess the secret correctly at most "
        f"{_listed(bounds)}. {_blind(bounded)}."
    )
    drowned = [row for row in rows if (row["accuracy_deviation"] or 0.0) > DROWNED]
    told = [row for row in bounded if row not in drowned]
    costs = [cost for row in told if (cost := accuracy_cost(row, rows)) is not None]
    noise = max((row["accuracy_deviation"] or 0.0 for row in rows if row not in drowned), default=0.0)
    noised = f" (noise of about {_points(noise)} was added to this figure)" if noise else ""
    if costs:
        lost = _span(min(costs), max(costs), _points)
        return f"{sentence} Accuracy is {lost} lower than that of the best run without privacy{noised}."
    unknown = "How much accuracy privacy cost is not known: no model was trained without it."
    accuracies = [row["accuracy"] for row in told if row["accuracy"] is not None]
    if not accuracies and any(row["noised"] for row in bounded):
        return f"{sentence} What was measured stands below. {unknown}"
    if not accuracies and drowned:
        return f"{sentence} The noise in what was measured hides the accuracy."
    if not accuracies:
        return f"{sentence} Accuracy was not measured."
    if len({row["accuracy_name"] for row in told if row["accuracy"] is not None}) > 1:
        return f"{sentence} Accuracies stand below. {unknown}"
    reached = _span(min(accuracies), max(accuracies), lambda value: _points(value, "%")) + noised
    return f"{sentence} Accuracy is {reached}. {unknown}"


def promise_in_words(row: dict[str, Any]) -> str:
    """The promise of a run without a technical name, or that there is none.

    Args:
        row: what `summarize` says of it.
    """
    if not row["is_private"]:
        return "None: the secret may be plain to see."
    if row["refuted"]:
        claimed = [entry["value"] for entry in row["guarantees"] if entry["name"].endswith("_success_bound")]
        words = (
            f"It was that a guess of the secret is correct at most {_percent(claimed[0])} of the time. "
            if claimed
            else ""
        )
        return f"{words}Do not rely on it. {row['refuted']}"
    if row["success_bound"] is None:
        return row["guarantees"][0]["meaning"] if row["guarantees"] else "See its logs: no card was saved."
    words = f"A guess of the secret is correct at most {_percent(row['success_bound'])} of the time"
    if (row["epsilon_name"] or "").startswith("ms_"):
        return f"{words}, on average over the drawn batches: an unlucky draw may tell more."
    return f"{words}."


def accuracy_cost(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> float | None:
    """Accuracy that a private run has less than the best run without a promise, if both are known; at least 0."""
    ordinary = [
        other["accuracy"]
        for other in rows
        if not other["is_private"] and other["accuracy"] is not None and other["accuracy_name"] == row["accuracy_name"]
    ]
    if not ordinary or row["accuracy"] is None or not row["is_private"]:
        return None
    return float(max(0.0, max(ordinary) - row["accuracy"]))


def _blind(rows: Sequence[dict[str, Any]]) -> str:
    """How often a guess is right before anything was released."""
    blind = [max(row["prior"], 1 - row["prior"]) for row in rows]
    if max(blind) == 0.5:
        return f"A coin gets 50{_SPACE}%"
    return f"A blind guess gets {percent_span(min(blind), max(blind))}"


def _listed(bounds: Sequence[float]) -> str:
    """How often, of which run: each of a few bounds by itself, as a range with "at most" reads like one number."""
    words = list(dict.fromkeys(_percent(bound) for bound in sorted(bounds)))
    if len(words) == 1:
        return f"{words[0]} of the time"
    numbers = [word.partition(_SPACE)[0] for word in words]
    *others, last = [*numbers[:-1], words[-1]]
    several = f"{', '.join(others)} or {last}" if len(words) <= _FEW else percent_span(min(bounds), max(bounds))
    return f"{several} of the time, depending on the run"


def percent_span(low: float, high: float) -> str:
    """Two bounds from low to high in words, or one where they read alike.

    Args:
        low: the smaller probability.
        high: the larger one.
    """
    return _span(low, high, _percent)


def _span(low: float, high: float, words: Any) -> str:
    first, last = words(low), words(high)
    if first == last:
        return str(last)
    number, _, unit = first.partition(_SPACE)
    return f"{number} to {last}" if last.endswith(unit) else f"{first} to {last}"


def _percent(value: float) -> str:
    return at_most(value).replace(" ", _SPACE)


def _points(value: float, unit: str = "percentage points") -> str:
    return f"{100 * value:.1f}{_SPACE}{unit.replace(' ', _SPACE)}"
