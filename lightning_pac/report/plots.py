"""The figures of a report, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from lightning_pac.cards import at_most
from lightning_pac.report.runs import Run, Series

__all__ = ["attack_plot", "cost_plot", "course_plot"]

# Okabe and Ito's colours, which remain apart for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_ATTACK_MARKERS = ("o", "s", "D", "^", "v", "P")
# More than these have neither a colour nor a name of their own: a legend or labels would leave no room for the figure.
_MOST_NAMED = 20
# Letters of a name of which two fit beside each other below the smaller figure.
_LONGEST_OF_TWO = 26


def course_plot(
    runs: Sequence[Run],
    select: Callable[[Run], Series | None],
    label: str,
    percent: bool = False,
    deviation: Callable[[Run], Series | None] = lambda run: None,
) -> str | None:
    """One line for each run over the optimizer steps, or None where no run has the metric.

    Of many runs, lines are faint and unnamed, so that the figure shows how they spread.

    Args:
        runs: The runs; a run keeps its colour over all figures.
        select: Picks the metric of a run.
        label: Name of the vertical axis.
        percent: Whether the values are shares, shown in per cent; noise may have taken them out of 0 to 100 %, where
            they are cut.
        deviation: Picks the standard deviation of the noise in the metric; two of them are shaded.
    """
    found = [(run, series, index) for index, run in enumerate(runs) if (series := select(run)) is not None]
    if not found:
        return None
    figure, axes = _figure((6.4, 3.6), "y")
    axes.set_ylabel(f"{label}, %" if percent else label)
    are_named = len(runs) <= _MOST_NAMED

    def shown(values: list[float]) -> list[float]:
        return [min(100.0, max(0.0, value)) for value in values] if percent else values

    for run, series, index in found:
        colour = _COLOURS[index % len(_COLOURS)] if are_named else _COLOURS[0]
        marker = "o" if len(series.steps) < 3 else None
        scale = 100 if percent else 1
        values = [scale * value for value in series.values]
        alpha, width = (1.0, 1.5) if are_named else (0.4, 0.7)
        style = _LINES[index % len(_LINES)] if are_named else "-"  # lines that coincide remain apart
        axes.plot(
            series.steps, shown(values), style, color=colour, marker=marker, alpha=alpha, lw=width, label=run.name
        )
        noise = deviation(run) if are_named else None
        if noise is not None and noise.steps == series.steps:
            band = [2 * scale * value for value in noise.values]
            lower = [value - width for value, width in zip(values, band, strict=True)]
            upper = [value + width for value, width in zip(values, band, strict=True)]
            axes.fill_between(series.steps, shown(lower), shown(upper), color=colour, alpha=0.12, lw=0)
    axes.set_xlabel("optimizer step" if are_named else f"optimizer step ({len(found)} runs)")
    if len(runs) > 1 and are_named:
        axes.legend(frameon=False)
    return _svg(figure)


def attack_plot(
    runs: Sequence[Run], bound: Callable[[Run], float | None], about: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Promises and measured attacks on a scale from a coin to certainty, a row for each run that has a model.

    Args:
        runs: The runs.
        bound: The largest success of any attack on the secret that a run's guarantee allows.
        about: Whose secret it is, by the names of runs, where that is not the same in all.
    """
    runs = [run for run in runs if not run.only_figures]
    bounds = [bound(run) for run in runs]
    if not any(run.attacks for run in runs) and all(value is None for value in bounds):
        return None
    are_named = len(runs) <= _MOST_NAMED
    figure, axes = _figure((8.4, 1.6 + (0.55 * len(runs) if are_named else 4.0)), "x")
    for row, value in enumerate(bounds):
        if value is None:
            axes.barh(row, 50, left=50, height=0.6, color="none", edgecolor="#bbbbbb", hatch="///")
            if are_named:
                axes.text(
                    75, row, "no limit", ha="center", va="center", fontsize=10,
                    bbox={"color": "white", "boxstyle": "square,pad=0.3"},
                )  # fmt: skip
            continue
        axes.barh(row, 100 * value - 50, left=50, height=0.6, color="#cfe3f1")
        axes.vlines(100 * value, row - 0.3, row + 0.3, color="#0072B2", lw=3)
        if are_named:
            axes.annotate(
                f"at most {at_most(value)}", (100 * value, row), va="center", color="#0072B2", fontsize=10,
                xytext=(16, 0), textcoords="offset points",
            )  # fmt: skip
    names = list(dict.fromkeys(estimate.name for run in runs for estimate in run.attacks))
    for order, name in enumerate(names):
        found = [
            (row, estimate.value, *(estimate.interval or (estimate.value, estimate.value)))
            for row, run in enumerate(runs)
            for estimate in run.attacks
            if estimate.name == name
        ]
        rows, values, lower, upper = np.array(found).T
        axes.errorbar(
            100 * values,
            rows + 0.16 * (order - (len(names) - 1) / 2),
            xerr=100 * np.maximum(0.0, [values - lower, upper - values]),
            fmt=_ATTACK_MARKERS[order % len(_ATTACK_MARKERS)],
            color=_COLOURS[1 + order % (len(_COLOURS) - 1)],
            label=f"measured: {_words(name)}",
            **({"capsize": 3} if are_named else {"ms": 2, "lw": 0.7}),
        )
    axes.axvline(50, color="#999999", lw=1)
    if are_named:
        labels = []
        for run, value in zip(runs, bounds, strict=True):
            note = "no promise" if value is None else about.get(run.name)
            labels.append(f"{run.name}\n({note})" if note else run.name)
        axes.set_yticks(range(len(runs)), labels)
    else:
        axes.set_ylabel(f"{len(runs)} runs, in the order of the table")
    axes.set_ylim(len(runs) - 0.5, -0.5)
    lowest = min((100 * (e.interval or (e.value,))[0] for run in runs for e in run.attacks), default=50.0)
    axes.set_xlim(max(0.0, min(50.0, lowest) - 1), 101)
    axes.set_xticks([50, 60, 70, 80, 90, 100], ["50 %\na coin", "60 %", "70 %", "80 %", "90 %", "100 %\ncertainty"])
    axes.set_xlabel("guesses of the secret that are correct")
    if names:
        figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return _svg(figure)


def cost_plot(
    runs: Sequence[Run], bound: Callable[[Run], float | None], about: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Accuracy against promise, or None where fewer than two runs have both.

    Args:
        runs: The runs; those without a promise are a line at their accuracy. A noised accuracy has a bar of one
            standard deviation of its noise.
        bound: The largest success of any attack on the secret that a run's guarantee allows.
        about: Whose secret it is, by the names of runs, where that is not the same in all.
    """
    found = [
        (index, run, bound(run), 100 * run.accuracy[1].values[-1])
        for index, run in enumerate(runs)
        if run.accuracy and not run.only_figures and run.outdated is None
    ]
    bounds = [100 * value for _, _, value, _ in found if value is not None]
    if len(bounds) < 2:
        return None
    figure, axes = _figure((5.2, 4.0), "y")
    are_named = len(runs) <= _MOST_NAMED
    for index, run, value, accuracy in found:
        if value is None:
            axes.axhline(accuracy, color="#999999", ls=":", label=f"{run.name} (no promise)")
            continue
        colour = _COLOURS[index % len(_COLOURS)] if are_named else _COLOURS[0]
        marker = _ATTACK_MARKERS[index % len(_ATTACK_MARKERS)] if are_named else "o"
        noise = 100 * run.accuracy_deviation.values[-1] if run.accuracy_deviation else None
        note = about.get(run.name)
        label = f"{run.name} ({note})" if note else run.name
        axes.errorbar(
            100 * value, accuracy, noise, fmt=marker, color=colour, ms=7 if are_named else 3, label=label, capsize=3
        )
    if are_named:  # below the figure, where neighbours cannot cover each other's names
        longest = max(len(label) for label in axes.get_legend_handles_labels()[1])
        figure.legend(loc="outside lower center", ncols=2 if longest <= _LONGEST_OF_TWO else 1, frameon=False)
    axes.set_xlabel("limit on correct guesses of the secret, %")
    axes.set_ylabel("accuracy, %")
    right = max(70.0, max(bounds) + 2)
    axes.set_xticks(range(50, int(right) + 1, 5 if right <= 75 else 10))
    axes.set_xlim(49, right)
    reached = [accuracy for _, _, _, accuracy in found]
    axes.set_ylim(max(0.0, min(reached) - 5), min(100.5, max(reached) + 5))
    return _svg(figure)


def _figure(size: tuple[float, float], grid: Literal["x", "y"]) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("The report's plots need matplotlib: `pip install matplotlib`.") from None
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#e6e6e6")
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _words(name: str) -> str:
    return name.removesuffix("_success").replace("_", " ")
