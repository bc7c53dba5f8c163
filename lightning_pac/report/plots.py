"""The figures of a report, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lightning_pac.report.runs import Run, Series

__all__ = ["attack_plot", "course_plot"]

# Okabe and Ito's colours, which remain apart for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_ATTACK_MARKERS = ("o", "s", "D", "^", "v", "P")
# More than these have neither a colour nor a name of their own: a legend or labels would leave no room for the figure.
_MOST_NAMED = 20


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
        percent: Whether the values are shares, shown in per cent.
        deviation: Picks the standard deviation of the noise in the metric; two of them are shaded.
    """
    found = [(run, series, index) for index, run in enumerate(runs) if (series := select(run)) is not None]
    if not found:
        return None
    figure, axes = _figure(label, percent)
    are_named = len(runs) <= _MOST_NAMED
    for run, series, index in found:
        colour = _COLOURS[index % len(_COLOURS)] if are_named else _COLOURS[0]
        marker = "o" if len(series.steps) < 3 else None
        scale = 100 if percent else 1
        values = [scale * value for value in series.values]
        alpha, width = (1.0, 1.5) if are_named else (0.4, 0.7)
        axes.plot(series.steps, values, color=colour, marker=marker, alpha=alpha, lw=width, label=run.name)
        noise = deviation(run) if are_named else None
        if noise is not None and noise.steps == series.steps:
            band = [2 * scale * value for value in noise.values]
            lower = [value - width for value, width in zip(values, band, strict=True)]
            upper = [value + width for value, width in zip(values, band, strict=True)]
            axes.fill_between(series.steps, lower, upper, color=colour, alpha=0.12, lw=0)
    axes.set_xlabel("optimizer step" if are_named else f"optimizer step ({len(found)} runs)")
    if len(runs) > 1 and are_named:
        axes.legend(frameon=False)
    return _svg(figure)


def attack_plot(runs: Sequence[Run], bound: Callable[[Run], float | None]) -> str | None:
    """Measured attack successes with their intervals, beside the proven bound of each run.

    Args:
        runs: The runs.
        bound: The largest success of any attack on the secret that a run's guarantee allows.
    """
    if not any(run.attacks for run in runs):
        return None
    figure, axes = _figure("success of the attack, %", percent=False)
    limits = [(position, value) for position, run in enumerate(runs) if (value := bound(run)) is not None]
    if limits:
        places, values = np.array(limits).T
        label = "proven bound on guessing the secret"
        axes.hlines(100 * values, places - 0.35, places + 0.35, color="#444444", lw=2, label=label)
    names = list(dict.fromkeys(estimate.name for run in runs for estimate in run.attacks))
    for order, name in enumerate(names):
        found = [
            (position, estimate.value, *(estimate.interval or (estimate.value, estimate.value)))
            for position, run in enumerate(runs)
            for estimate in run.attacks
            if estimate.name == name
        ]
        places, values, lower, upper = np.array(found).T
        axes.errorbar(
            places + 0.16 * (order - (len(names) - 1) / 2),
            100 * values,
            yerr=100 * np.maximum(0.0, [values - lower, upper - values]),
            fmt=_ATTACK_MARKERS[order % len(_ATTACK_MARKERS)],
            color=_COLOURS[order % len(_COLOURS)],
            label=_words(name),
            **({"capsize": 3} if len(runs) <= _MOST_NAMED else {"ms": 2, "lw": 0.7}),
        )
    axes.axhline(50, color="#999999", lw=1, ls=":")
    axes.text(-0.45, 50.4, "a coin", color="#777777", fontsize=8)
    if len(runs) <= _MOST_NAMED:
        axes.set_xticks(range(len(runs)), [run.name for run in runs])
    else:
        axes.set_xlabel(f"{len(runs)} runs, the oldest first")
    axes.set_xlim(-0.5, len(runs) - 0.5)
    axes.set_ylim(40, 103)
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return _svg(figure)


def _figure(label: str, percent: bool) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("The report's plots need matplotlib: `pip install matplotlib`.") from None
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_ylabel(f"{label}, %" if percent else label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _words(name: str) -> str:
    return name.removesuffix("_success").replace("_", " ")
