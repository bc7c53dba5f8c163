"""The figures of a report, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from lightning_pac.report.runs import Run, Series

__all__ = ["attack_plot", "course_plot"]

# Okabe and Ito's colours, which remain apart for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_ATTACK_MARKERS = ("o", "s", "D", "^", "v", "P")


def course_plot(
    runs: Sequence[Run],
    select: Callable[[Run], Series | None],
    label: str,
    percent: bool = False,
    deviation: Callable[[Run], Series | None] = lambda run: None,
) -> str | None:
    """One line for each run over the optimizer steps, or None where no run has the metric.

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
    for run, series, index in found:
        colour, marker = _COLOURS[index % len(_COLOURS)], "o" if len(series.steps) < 3 else None
        scale = 100 if percent else 1
        values = [scale * value for value in series.values]
        axes.plot(series.steps, values, color=colour, marker=marker, label=run.name)
        noise = deviation(run)
        if noise is not None and noise.steps == series.steps:
            band = [2 * scale * value for value in noise.values]
            lower = [value - width for value, width in zip(values, band, strict=True)]
            upper = [value + width for value, width in zip(values, band, strict=True)]
            axes.fill_between(series.steps, lower, upper, color=colour, alpha=0.12, lw=0)
    axes.set_xlabel("optimizer step")
    if len(runs) > 1:
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
    names = list(dict.fromkeys(estimate.name for run in runs for estimate in run.attacks))
    labelled: set[str] = set()
    for position, run in enumerate(runs):
        limit = bound(run)
        if limit is not None:
            label = None if "bound" in labelled else "proven bound on guessing the secret"
            axes.hlines(100 * limit, position - 0.35, position + 0.35, color="#444444", lw=2, label=label)
            labelled.add("bound")
        for estimate in run.attacks:
            order = names.index(estimate.name)
            lower, upper = estimate.interval or (estimate.value, estimate.value)
            axes.errorbar(
                position + 0.16 * (order - (len(names) - 1) / 2),
                100 * estimate.value,
                yerr=[[100 * max(0.0, estimate.value - lower)], [100 * max(0.0, upper - estimate.value)]],
                fmt=_ATTACK_MARKERS[order % len(_ATTACK_MARKERS)],
                color=_COLOURS[order % len(_COLOURS)],
                capsize=3,
                label=None if estimate.name in labelled else _words(estimate.name),
            )
            labelled.add(estimate.name)
    axes.axhline(50, color="#999999", lw=1, ls=":")
    axes.text(-0.45, 50.4, "a coin", color="#777777", fontsize=8)
    axes.set_xticks(range(len(runs)), [run.name for run in runs])
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
