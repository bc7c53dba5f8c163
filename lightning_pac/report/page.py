"""The report: what the numbers of a run, or of several beside each other, mean, on one page without outside files."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

from lightning_pac import __version__
from lightning_pac._validation import validated
from lightning_pac.cards import at_most, downwards, draw_rocs, upwards
from lightning_pac.cards.card import UNCOVERED
from lightning_pac.report.differences import differences, in_short, protects, whose
from lightning_pac.report.ledgers import beside_runs, figure_ledgers, find_ledgers, lists_figures, quoted, together
from lightning_pac.report.plots import attack_plot, cost_plot, course_plot
from lightning_pac.report.runs import EPSILON, Run, Series, find_runs
from lightning_pac.report.verdict import (
    DROWNED,
    accuracy_cost,
    alone,
    best_ordinary,
    by_noise,
    by_secret,
    percent_span,
    promise_in_words,
    verdict,
)

__all__ = ["page_environment", "summarize", "write_report"]

# The most that an attacker can guess right: training runs state the first, private answers the second.
_BOUNDS = ("world_success_bound", "membership_success_bound")

# Words of marks that are nearer to each other than this would cover each other on the scale of a phone.
_MARKS_APART = 0.08

_PROMISES = {
    "rpp_epsilon": "in the worst case, for any attacker who sees everything released",
    "srpp_joint_epsilon": "in the worst case, even for an attacker who also knows every batch",
    "srpp_ave_epsilon": "whatever the batches were, on average over the projections that an attacker sees",
    "ms_srpp_joint_epsilon": "on average over the drawn batches, so an unlucky draw may tell more",
    "ms_srpp_ave_epsilon": "on average over the drawn batches and over the projections that an attacker sees",
}


@validated
def write_report(directory: str | Path, output: str | Path | None = None, runs: Sequence[Run] | None = None) -> Path:
    """Write the HTML report of a run, or of all runs in a folder.

    One sentence says what was promised and what it cost in accuracy; promises and measured attacks are drawn on a scale
    from a coin to certainty, and the runs stand beside each other in one table. Technical names, courses over the
    run and privacy cards are folded away. Pictures are embedded, so the page can be sent or printed as it is.

    Args:
        directory: The folder that the run, or several, were logged to.
        output: The page; `report.html` in that folder by default.
        runs: The runs, where they were read already.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: The folder holds no run.
        ImportError: matplotlib is not installed.
    """
    runs = _by_secret(find_runs(directory) if runs is None else runs)
    rows = [summarize(run) for run in runs]
    ledgers, secret_of = find_ledgers(runs), whose(runs)
    for run, row, who, differing in zip(runs, rows, secret_of, differences(runs, ledgers), strict=True):
        row |= {"words": promise_in_words(row), "protects": protects(run, who), "differing": differing}
        cost = accuracy_cost(row, rows)
        row |= {"cost": cost, "is_incomparable": cost is None and best_ordinary(row, rows) is not None}
    noised = {name: None for row in rows for name in row["noised"]}
    for run, row in zip(runs, rows, strict=True):
        if not row["is_private"]:
            row["beside"] = {name: run.metrics[name].values[-1] for name in noised if name in run.metrics}
    about = {run.name: in_short(run, who) for run, who in zip(runs, secret_of, strict=True)}
    secrets = list(dict.fromkeys(row["secret"] for row in rows if row["secret"]))
    figures = figure_ledgers(runs, ledgers)
    today = date.today()
    whole = quoted(ledgers, runs)
    everything = None if whole is None or whole.limit is None else (whole.name, whole.limit)
    bounds = sorted(row["success_bound"] for row in rows if row["success_bound"] is not None)
    bounds = bounds if whole is None or not bounds else [whole.total.world_success_bound]
    page = (
        page_environment()
        .get_template("page.html.j2")
        .render(
            title=Path(directory).resolve().name,
            version=__version__,
            date=f"{today.day} {today:%B %Y}",
            verdict=verdict(rows, everything),
            together=[*together(ledgers, runs), *beside_runs(figures, runs)] if whole is None else [alone(rows)],
            ledgers=[*(find_ledgers(runs, alone=True) if figures else ledgers), *figures],
            figures=[ledger.name for ledger in figures],
            by_secret=by_secret(rows),
            is_told=all(lists_figures(run, ledgers) for run in runs if run.with_noise),
            marks=_marks(bounds) if len(secrets) < 2 else [],  # which would be on one scale
            secrets=secrets,
            rows=rows,
            groups=[(secret, list(found)) for secret, found in groupby(rows, lambda row: row["secret"])],
            broken=any(_is_broken(row) for row in rows),
            limits=list({row["num_differing"] for row in rows if row["num_differing"] is not None}),
            cards=[(run.name, run.card) for run in runs if run.card is not None],
            promises=_embedded(attack_plot(runs, _bound, about)),
            cost=_embedded(cost_plot(runs, _bound, about)),
            plots=[(caption, source) for caption, svg in _plots(runs) if (source := _embedded(svg)) is not None],
        )
    )
    path = Path(output) if output is not None else Path(directory) / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


@validated
def page_environment(folder: Path | None = None) -> Any:
    """The `jinja2.Environment` of all pages, with `style.css.j2` and the macro of `card.html.j2`.

    Args:
        folder: Where more templates are.
    """
    import jinja2

    folders = [Path(__file__).parent, *([] if folder is None else [folder])]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["at_most"] = lambda value: at_most(value).replace(" ", "\N{NO-BREAK SPACE}")
    # A bound that is not finite is a word in JSON.
    environment.filters["upwards"] = lambda value, *digits: value if isinstance(value, str) else upwards(value, *digits)
    environment.filters["downwards"] = downwards
    environment.globals["drowned"] = DROWNED
    environment.filters["by_noise"] = by_noise
    environment.filters["percent"] = lambda value: f"{100 * value:.1f}\N{NO-BREAK SPACE}%"
    environment.filters["terms"] = lambda value: value if isinstance(value, str) else json.dumps(value)
    return environment


@validated
def summarize(run: Run) -> dict[str, Any]:
    """The last figures of a run: epsilon and what it holds for, the bound on guessing, noise, accuracy, attacks.

    Args:
        run: A run, as `find_runs` reads it.
    """
    name, epsilon = _epsilon(run)
    accuracy = run.accuracy
    noise = run.metric("privacy/noise_multiplier")
    details = run.card.details if run.card else {}
    return {
        "run": run.name,
        "secret": _secret(run),
        "uncovered": [
            condition.removeprefix(UNCOVERED)
            for condition in (run.card.conditions if run.card else ())
            if condition.startswith(UNCOVERED)
        ],
        "num_differing": _num_differing(details),
        "epsilon_name": name,
        "epsilon": epsilon,
        "renyi_order": details.get("renyi_order"),
        "holds": _PROMISES.get(name, "under the conditions on its card") if name else None,
        "guarantees": [dataclasses.asdict(entry) for entry in run.card.guarantees] if run.card else [],
        "is_private": bool(run.card and run.card.guarantees)
        or run.only_figures
        or any(key.startswith("privacy/") for key in run.metrics),
        "only_figures": run.only_figures,
        "success_bound": _bound(run),
        "refuted": _refuted(run),
        "prior": details.get("prior", 0.5),
        "epsilon_at_delta": _epsilon_at_delta(run),
        "promise": _promise(run),
        "noise_multiplier": details.get("noise_multiplier", noise.values[-1] if noise else None),
        # The card of a run that was killed may be of its start.
        "steps": max([details.get("num_steps", 0), *(series.steps[-1] for series in run.metrics.values())]) or None,
        "accuracy_name": accuracy[0] if accuracy else None,
        "accuracy": accuracy[1].values[-1] if accuracy else None,
        "accuracy_deviation": run.accuracy_deviation.values[-1] if run.accuracy_deviation else None,
        "accuracy_error": run.accuracy_error.values[-1] if run.accuracy_error else None,
        "outdated": run.outdated,
        "noised": run.noised,
        "beside": {},  # what is no accuracy of a run without privacy, where others have it with noise
        "attacks": [dataclasses.asdict(estimate) for estimate in run.attacks],
    }


def _secret(run: Run) -> str | None:
    if run.card is None and run.metric("privacy/membership_success_bound"):  # answers that earlier versions logged
        return "Whether a given record was used to train the model that answers."
    return run.card.secret if run.card and run.card.guarantees else None


def _by_secret(runs: Sequence[Run]) -> list[Run]:
    """Runs with one secret beside each other, in the order of their first, and those without one behind them."""
    places = {secret: place for place, secret in enumerate(dict.fromkeys(filter(None, map(_secret, runs))))}
    return list(runs) if len(places) < 2 else sorted(runs, key=lambda run: places.get(_secret(run) or "", len(places)))


def _num_differing(details: Mapping[str, Any]) -> int | None:
    """How many records a promise about records is for."""
    scenario = details.get("scenario")
    if not isinstance(scenario, dict) or details.get("unit_of_privacy") != "record":
        return None
    number = scenario["num_differing"]
    return sum(number) if isinstance(number, list) else number


def _is_broken(row: dict[str, Any]) -> bool:
    """Whether an attack got more right than the promise allows, beyond its margin of error."""
    lowest = [(attack["interval"] or (attack["value"],))[0] for attack in row["attacks"]]
    return row["success_bound"] is not None and any(value > row["success_bound"] for value in lowest)


def _marks(bounds: Sequence[float]) -> list[tuple[float, str]]:
    """The least and the largest bound with their words, which stand together where the marks are close."""
    if not bounds:
        return []
    low, high = bounds[0], bounds[-1]
    if high - low > _MARKS_APART:
        return [(low, percent_span(low, low)), (high, percent_span(high, high))]
    return (
        [(low, "\N{NO-BREAK SPACE}"), (high, percent_span(low, high))]
        if low < high
        else [(high, percent_span(high, high))]
    )


def _epsilon(run: Run) -> tuple[str | None, float | None]:
    """Name and final value of epsilon: from the card, since a logger may have missed the last steps."""
    stated = [entry for entry in run.card.guarantees if EPSILON.fullmatch(f"privacy/{entry.name}")] if run.card else []
    if stated:
        return stated[0].name, stated[0].value
    if run.epsilon is not None:
        return run.epsilon[0].removeprefix("privacy/"), run.epsilon[1].values[-1]
    return None, None


def _promise(run: Run) -> str | None:
    """The promise, and the bound on guessing where that is another figure: a card speaks of them first."""
    entries = run.card.guarantees if run.card else ()
    names = [entry.name for entry in entries]
    last = min((names.index(name) for name in _BOUNDS if name in names), default=-1)
    told = [entry.meaning for entry in entries[: last + 1] if not EPSILON.fullmatch(f"privacy/{entry.name}")]
    return " ".join(told).replace(" %", "\N{NO-BREAK SPACE}%") or None


def _epsilon_at_delta(run: Run) -> float | None:
    stated = [entry.value for entry in run.card.guarantees if entry.name == "epsilon_at_delta"] if run.card else []
    logged = run.metric("privacy/epsilon_at_delta")  # all that a run has which was killed before its card
    return stated[0] if stated else logged.values[-1] if logged else None


def _refuted(run: Run) -> str | None:
    """The words of an audit that raised an alarm about the run."""
    estimates = run.card.estimates if run.card else ()
    return next((entry.meaning for entry in estimates if entry.name == "audit_alarms" and entry.value > 0), None)


def _bound(run: Run) -> float | None:
    if _refuted(run):
        return None  # what an audit refutes is no bound
    stated = [entry for entry in run.card.guarantees if entry.name in _BOUNDS] if run.card else []
    if stated:
        return stated[0].value
    series = _bound_course(run)
    return series.values[-1] if series else None


def _bound_course(run: Run) -> Series | None:
    return run.metric(*(f"privacy/{name}" for name in _BOUNDS))


def _plots(runs: Sequence[Run]) -> list[tuple[str, str | None]]:
    """Courses over the run. Where bounds on guessing were logged, epsilon would be the same picture twice."""

    def epsilon(run: Run) -> Series | None:
        return run.epsilon[1] if run.epsilon and _bound_course(run) is None else None

    def information(run: Run) -> Series | None:
        return run.metric("privacy/mutual_information") if _bound_course(run) is None else None

    def validated(run: Run) -> Run:
        part = Run(run.name, {name: series for name, series in run.metrics.items() if name.startswith("val")})
        return part if part.accuracy else run

    def accuracy(run: Run) -> Series | None:
        course = validated(run).accuracy
        return course[1] if course is not None and len(course[1].steps) > 1 else None

    rocs = {run.name: run.card.roc if run.card else None for run in runs[:20]}
    return [
        (
            "Accuracy on records that were not trained on. Two standard deviations of its noise are shaded."
            if any(validated(run).accuracy_deviation for run in runs)
            else "Accuracy on records that were not trained on.",
            course_plot(
                runs, accuracy, "accuracy", percent=True, deviation=lambda run: validated(run).accuracy_deviation
            ),
        ),
        (
            "The promise so far: how often a guess of the secret from everything released can be correct. It grows "
            "with every step, whether or not the step helped, and never shrinks. 50 % is a coin.",
            course_plot(runs, _bound_course, "bound on guessing", percent=True),
        ),
        (
            "Epsilon spent. It grows with every step, whether or not the step helped, and never shrinks.",
            course_plot(runs, epsilon, "epsilon"),
        ),
        (
            "Mutual information spent by private answers. It adds up over all answers and all clients.",
            course_plot(runs, information, "mutual information, nats"),
        ),
        (
            "Share of drawn records whose gradient was longer than the clipping norm, released with noise (two "
            "standard deviations are shaded). Near 100 %, all records pull equally hard; near 0 %, a smaller norm "
            "would mean less noise.",
            course_plot(
                runs,
                lambda run: run.metric("privacy/clipped_fraction"),
                "clipped fraction",
                percent=True,
                deviation=lambda run: run.metric("privacy/clipped_fraction_deviation"),
            ),
        ),
        (
            "The best possible attacker: how often the one world is found at most, for how often it is named wrongly.",
            draw_rocs(rocs) if any(rocs.values()) else None,
        ),
    ]


def _embedded(svg: str | None) -> str | None:
    return None if svg is None else "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
