"""The words of a report: one sentence on what was promised and what it cost, and the promise of each run."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from lightning_pac.cards import at_most

__all__ = [
    "accuracy_cost",
    "alone",
    "best_ordinary",
    "by_noise",
    "by_secret",
    "percent_span",
    "promise_in_words",
    "verdict",
]

_SPACE = "\N{NO-BREAK SPACE}"
DROWNED = 0.25  # deviation of the noise in an accuracy that says nothing
_FEW = 3  # bounds that are told one by one
_FEW_SECRETS = 8  # that are listed before the rows
# A private run with so much more accuracy than the best ordinary one, beyond noise, is of another model or data.
_BETTER = 0.02
_SHARES = re.compile(r"acc|recall|precision|specificity|sensitivity|f1|auroc|jaccard|iou|dice", re.IGNORECASE)
_MOST_NOISE = 5  # deviations that noise explains
_NO_OTHER = "no run without it is here, whose figures on private data would have to be withheld"


def verdict(rows: Sequence[dict[str, Any]], everything: tuple[str, str] | None = None) -> str:
    """What to know first about all runs: how often the secret can be guessed, and a blind guess, and the accuracy.

    Args:
        rows: what `summarize` says of each run.
        everything: name and limit of the ledger that lists all runs and their noised figures, if there is one: that
            is the limit to quote.
    """
    if refuted := [row["run"] for row in rows if row["refuted"]]:
        about = ", ".join(refuted)
        return f"An audit raised an alarm about {about}: do not rely on its promise, and treat the secret as known."
    bounded = [row for row in rows if row["success_bound"] is not None]
    models = [row for row in rows if not row["only_figures"]]
    if rows and not models:
        return promise_in_words(rows[0])
    if not bounded:
        promised = [row for row in models if row["is_private"]]
        if len(promised) == 1 == len(models):
            return promise_in_words(promised[0])
        if promised:
            return f"{len(promised)} of {len(models)} runs make a promise, each in the words of its row below."
        if len(models) != 1:
            return f"None of these {len(models)} runs promises anything: the secret may be plain to see."
        subject = "This run" if len(rows) == 1 else f"Run {models[0]['run']}"
        return f"{subject} promises nothing: the secret may be plain to see."
    one = _one_of(rows)
    bounds = [row["success_bound"] for row in bounded]
    # Private metrics are charged beside the run, and its card says nothing of them.
    measures = any(row["accuracy_deviation"] or row["noised"] for row in rows)
    apart = f", apart from the {_figures(rows)} below," if measures else ""
    sees = f"Proven: an attacker who sees everything that {one} released{apart} can guess"
    sentence = f"{sees} the secret correctly at most {_listed(bounds)}. {_blind(bounded)}."
    if everything is not None:
        ledger, limit = everything
        sees = (
            f"Proven: an attacker who sees everything that ledger {ledger} lists, the {_figures(rows)} below included,"
        )
        sentence = f"{sees} can guess the secret correctly at most {limit}. {_blind(bounded)}."
    if len({row["secret"] for row in bounded}) > 1:  # one sentence about several would promise of each what another has
        where = "the list below" if by_secret(rows) else "its row"
        sentence = f"{sees} the secret of that run correctly at most as often as {where} says. {_blind(bounded)}."
    drowned = [row for row in rows if (row["accuracy_deviation"] or 0.0) > DROWNED]
    told = [row for row in bounded if row not in drowned and row["outdated"] is None]
    compared = [(accuracy_cost(row, rows), best) for row in told if (best := best_ordinary(row, rows)) is not None]
    costs = [cost for cost, _ in compared if cost is not None]
    pairs = [(row, best_ordinary(row, rows)) for row in told]
    meant = [one for row, best in pairs if best is not None for one in (row, best)] if costs else rows
    measured = [row for row in meant if row not in drowned and row["accuracy_deviation"]]
    what, key = "noise", "accuracy_deviation"
    if all(row["accuracy_error"] for row in measured):
        what, key = "a standard error", "accuracy_error"
    noise = max((row[key] for row in measured), default=0.0)
    noised = f" (measured with {what} of about {_points(noise)})" if noise else ""
    if costs:
        lost = _span(min(costs), max(costs), _points)
        name = _named([best for cost, best in compared if cost is not None])
        above = sum(cost is None for cost, _ in compared)
        others = "the run that reached" if above == 1 else f"the {above} runs that reached"
        unclear = f" What privacy cost {others} more than that is not known." if above else ""
        whose = ""
        if len(compared) < len(bounded):
            known = [row["run"] for row in told if best_ordinary(row, rows) is not None]
            whose = f" of run {known[0]}" if len(known) == 1 else f" of the {len(known)} private runs that logged it"
        return f"{sentence} Accuracy{whose} is {lost} lower than that of {name}{noised}.{unclear}"
    ordinary = any(not row["is_private"] for row in rows)
    lacking = "none of the runs without it logged one under the same name" if ordinary else _NO_OTHER
    unknown = f"How much accuracy privacy cost is not known: {lacking}."
    if compared:
        name = _named([best for _, best in compared])
        unknown = f"How much accuracy privacy cost is not known: {name}, reached less and cannot be compared."
    accuracies = [row["accuracy"] for row in told if row["accuracy"] is not None]
    if not accuracies and any(row["noised"] for row in bounded):
        if beside := [row["run"] for row in rows if row["beside"]]:
            whose = f"run{'s' * (len(beside) > 1)} {' and '.join(beside)}"
            return f"{sentence} What was measured stands below, beside that of {whose} without privacy."
        return f"{sentence} What was measured stands below. {unknown}"
    if not accuracies and drowned:
        return f"{sentence} The noise in what was measured hides the accuracy."
    if not accuracies and len(bounded) > len(told):
        return f"{sentence} The accuracy of the final model was not measured."
    if not accuracies:
        return f"{sentence} Accuracy was not measured."
    if len({row["accuracy_name"] for row in told if row["accuracy"] is not None}) > 1:
        return f"{sentence} Accuracies stand below. {unknown}"
    reached = _span(min(accuracies), max(accuracies), lambda value: _points(value, "%")) + noised
    return f"{sentence} Accuracy is {reached}. {unknown}"


def alone(rows: Sequence[dict[str, Any]]) -> str:
    """What holds of one run without the figures that the verdict includes; empty where no run states a bound.

    Args:
        rows: what `summarize` says of each run.
    """
    bounds = [row["success_bound"] for row in rows if row["success_bound"] is not None]
    if not bounds:
        return ""
    return f"From {_one_of(rows)} alone, without those {_figures(rows)}, a guess is correct at most {_listed(bounds)}."


def by_secret(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """Where runs have different secrets, but not many: how often each is guessed at most, it, and of how many runs.

    Args:
        rows: what `summarize` says of each run.
    """
    bounds: dict[str, list[float]] = {}
    for row in rows:
        if row["success_bound"] is not None:
            bounds.setdefault(row["secret"] or "A secret that no card states.", []).append(row["success_bound"])
    several = 1 < len(bounds) <= _FEW_SECRETS
    return [(_listed(found), secret, len(found)) for secret, found in bounds.items()] if several else []


def by_noise(value: float, name: str, noise: float | None, unit: str = "") -> str:
    """That noise alone has put a share outside of 0 to 1, such as a recall of 1.06; empty where it has not.

    Args:
        value: the figure.
        name: the metric's, by which it is known to be a share.
        noise: the deviation of the noise in it, None where there is none.
        unit: "%" where the figure is shown in percent.
    """
    beyond = max(-value, value - 1)
    if not _SHARES.search(name) or noise is None or not 0 < beyond <= _MOST_NOISE * noise:
        return ""
    edge = f"{100 if unit else 1}" if value > 1 else "0"
    return f" ({'above' if value > 1 else 'below'} {edge}{_SPACE * bool(unit)}{unit} by noise)"


def promise_in_words(row: dict[str, Any]) -> str:
    """The promise of a run without a technical name, or that there is none.

    Args:
        row: what `summarize` says of it.
    """
    if row["only_figures"]:
        return (
            "Figures with noise, charged to a ledger; no model was trained. What they tell is part of that ledger's "
            "total."
        )
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
    """Accuracy that a private run has less than the best run without a promise, if that is known; at least 0.

    It is not known where the private run is better by more than noise explains: then the other is no such run without
    privacy, but of another network, or of other data.
    """
    best = best_ordinary(row, rows)
    if best is None:
        return None
    noise = math.hypot(*(one["accuracy_deviation"] or 0.0 for one in (row, best)))
    lost = best["accuracy"] - row["accuracy"]
    return None if -lost > max(_BETTER, 2 * noise) else float(max(0.0, lost))


def best_ordinary(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The run without a promise that a private run's accuracy is held against, if there is one."""
    ordinary = [
        other
        for other in rows
        if not other["is_private"] and other["accuracy"] is not None and other["accuracy_name"] == row["accuracy_name"]
    ]
    is_measured = row["accuracy"] is not None and row["outdated"] is None
    if not ordinary or not is_measured or not row["is_private"] or row["only_figures"]:
        return None
    return max(ordinary, key=lambda other: float(other["accuracy"]))


def _one_of(rows: Sequence[dict[str, Any]]) -> str:
    models = [row for row in rows if not row["only_figures"]]
    is_all = all(row["success_bound"] is not None for row in models)
    return "this run" if len(models) == 1 else "one of these runs" if is_all else "a private run"


def _figures(rows: Sequence[dict[str, Any]]) -> str:
    return "measured figures" if any(row["noised"] for row in rows) else "accuracies"


def _named(best: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["run"] for row in best))
    return f"run{'s' * (len(names) > 1)} {' and '.join(names)}, the best without privacy"


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
