"""The picture of `lightning-pac calibrate`: noise over the promise, the batch size and the epochs."""

import argparse
from collections.abc import Callable
from typing import Any

__all__ = ["draw"]

_Points = list[tuple[dict[str, Any], float]]  # changed options, and the place on the axis

# Okabe and Ito's colours, which remain apart for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_BOUNDS = (0.52, 0.55, 0.6, 0.65, 0.7, 0.8)


def draw(args: argparse.Namespace, compare: Callable[..., list[dict[str, Any]]]) -> None:
    """Draw, for every sampling that applies, the noise and the signal of the run into `args.plot`.

    Args:
        args: The options of the command.
        compare: Makes the rows of other options.

    Raises:
        ValueError: If the noise is given, so that there is none to choose.
    """
    from matplotlib.figure import Figure

    if args.noise_multiplier is not None:
        raise ValueError("--plot draws the noise that promises need, but --noise-multiplier gives it: leave one out.")
    bounds: dict[str, Any] = {"world_success_bound": None, "epsilon": None, "delta": None, "prior": 0.5}
    promises: _Points = [({**bounds, "world_success_bound": bound}, 100 * bound) for bound in _BOUNDS]
    batches: _Points = []
    for factor in _FACTORS:
        size = round(factor * args.batch_size)
        change = {"batch_size": size, "rate": None if args.rate is None else min(1.0, factor * args.rate)}
        if args.epochs is None:  # as many passes
            change["steps"] = max(1, round(args.steps / factor))
        batches.append((change, size))
    length = "epochs" if args.epochs is not None else "steps"
    numbers = [max(1, round(factor * getattr(args, length))) for factor in _FACTORS]
    lengths: _Points = [({length: number}, number) for number in numbers]

    figure = Figure(figsize=(12.6, 7.0), layout="constrained")
    rows: Any = figure.subplots(2, 3, sharex="col", sharey="row")
    panels = [(promises, "bound on guessing, %"), (batches, "batch size"), (lengths, length)]
    for column, (points, label) in enumerate(panels):
        _fill(rows[0][column], rows[1][column], _curves(args, compare, points), label, args.parameters is not None)
        rows[1][column].set_xscale("linear" if column == 0 else "log")
        if column:
            rows[1][column].set_xticks([place for _, place in points], [f"{place:g}" for _, place in points])
            rows[1][column].minorticks_off()
    rows[0][0].set_ylabel("noise multiplier")
    whole = "" if args.parameters is None else f"{args.parameters:,} parameters"
    rows[1][0].set_ylabel(f"signal of the run\n{whole or 'one parameter'}")
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False)
    figure.savefig(args.plot, dpi=120)


def _curves(
    args: argparse.Namespace, compare: Callable[..., list[dict[str, Any]]], points: _Points
) -> dict[str, list[tuple[float, float, float]]]:
    """Place, noise and signal of each point, by sampling."""
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for change, place in points:
        changed = argparse.Namespace(**{**vars(args), **change, "parameters": args.parameters or 1})
        if "world_success_bound" in change:
            changed.renyi_order = None
        try:
            rows = compare(changed, notions=("rpp",))
        except ValueError:  # a batch larger than the data, for instance
            continue
        for row in rows:
            if row["refused"] is None:
                figures = (place, row["noise_multiplier"], row["signal_of_run"])
                curves.setdefault(row["title"], []).append(figures)
    return curves


def _fill(
    noise: Any, signal: Any, curves: dict[str, list[tuple[float, float, float]]], label: str, with_limit: bool
) -> None:
    from lightning_pac.accountants import HOPELESS_SIGNAL

    for index, (name, points) in enumerate(curves.items()):
        places, multipliers, signals = zip(*points, strict=True)
        style = {"color": _COLOURS[index % len(_COLOURS)], "marker": "o", "markersize": 3.5}
        style["linestyle"] = ("-", "-", "-", "-", (0, (5, 5)))[index % 5]  # a public order lies on shuffled epochs
        noise.plot(places, multipliers, label=name, **style)
        signal.plot(places, signals, **style)
    for axes in (noise, signal):
        axes.set_yscale("log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6")
    if with_limit:
        signal.axhline(HOPELESS_SIGNAL, color="#999999", ls=":", lw=1.2)
    signal.set_xlabel(label)
