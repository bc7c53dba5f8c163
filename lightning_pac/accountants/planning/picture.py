"""The picture of a plan: what every option leaves of the signal, and who gets which part of the promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_pac.accountants.composed_ledger import joint_curve
from lightning_pac.accountants.planning.option import ProjectOption
from lightning_pac.accountants.planning.releases import PlannedAnswers
from lightning_pac.accountants.signal import HOPELESS_SIGNAL

__all__ = ["draw_plan"]

# Okabe and Ito's colours, which remain apart for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def draw_plan(
    options: Sequence[ProjectOption], best: ProjectOption, answers: Mapping[str, PlannedAnswers], path: str | Path
) -> None:
    """Draw the noise and the signal of every run over its batch size, and what each share of the best option tells.

    Args:
        options: all of them.
        best: that whose shares are drawn.
        answers: what has a bound of its own.
        path: the file, whose ending names the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.4, 3.8), layout="constrained")
    noise, signal, parts = figure.subplots(1, 3)
    curves: dict[tuple[str, int], list[tuple[int, float, float | None]]] = {}
    for option in options:
        for name, run in option.runs.items():
            place = (run.batch_size, run.figures.noise_multiplier, run.figures.signal_of_run)
            curves.setdefault((name, run.epochs), []).append(place)
    known = False
    for index, ((name, epochs), points) in enumerate(curves.items()):
        ordered = sorted(set(points))
        style: dict[str, Any] = {"color": _COLOURS[index % len(_COLOURS)], "marker": "o", "markersize": 4}
        places = [size for size, _, _ in ordered]
        noise.plot(places, [multiplier for _, multiplier, _ in ordered], label=f"{name}, {epochs} epochs", **style)
        if all(value is not None for _, _, value in ordered):
            known = True
            signal.plot(places, [value for _, _, value in ordered], **style)
    sizes = sorted({size for points in curves.values() for size, _, _ in points})
    for axes, words in ((noise, "noise multiplier"), (signal, "signal of the run")):
        axes.set(xlabel="batch size", ylabel=words, xscale="log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
    if known:
        signal.axhline(HOPELESS_SIGNAL, color="#999999", ls=":", lw=1.2)
    else:
        signal.text(0.5, 0.5, "number of parameters\nnot given", ha="center", transform=signal.transAxes)
    shares = {} if best.shares is None else best.shares.by_name
    # Below a guess of 1/2 there is nothing to see: bars begin there.
    told = {name: 100 * joint_curve([share]).success_bound() - 50 for name, share in shares.items()}
    if best.shares is not None:
        told["all together"] = 100 * best.shares.curve.success_bound() - 50
    told |= {f"{name} (members)": 100 * (each.membership_success_bound - each.prior) for name, each in answers.items()}
    parts.barh(list(told), list(told.values()), color=_COLOURS[0])
    parts.invert_yaxis()
    parts.set_xlabel("points above a blind guess, at most")
    for axes in (noise, signal, parts):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6")
        axes.set_axisbelow(True)
    if curves:
        figure.legend(*noise.get_legend_handles_labels(), loc="outside upper left", ncols=4, frameon=False)
    figure.savefig(path, dpi=120)
