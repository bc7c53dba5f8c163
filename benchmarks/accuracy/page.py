"""Tables and picture of the page on accuracy, from the fits on record."""

import statistics
from pathlib import Path
from typing import Any

from recipes import ORDERED, PROMISES, RECIPES, WHOLE
from sets import LOADERS

__all__ = ["cell", "chosen_rate", "draw", "write_page"]

TITLES = {
    "adult": "Adult, linear", "bank": "Bank, linear", "dry_bean": "Dry Bean, 32 hidden units",
    "mnist": "10,000 of MNIST, 32 hidden units", "mnist_features": "20,480 of MNIST, random features",
    "cifar10_features": "20,000 of CIFAR-10, features of public patches",
    "cifar10": "10,000 of CIFAR-10, two convolutions",
    "ag_news": "AG News, hashed words",
}  # fmt: skip
HEADS = {"1": "(1, 1e-5)", "3": "(3, 1e-5)", "8": "(8, 1e-5)", "fact": "0.6 on 10 records"}
ORDER = ("fact", "1", "3", "8")  # from most to least noise
COLOURS = ("#d95f02", "#1b9e77", "#3f51b5")
Cells = dict[tuple[str, str, str], list[float]]


def write_page(file: Path, fits: list[dict[str, Any]]) -> None:
    """Replace what the file has between `<!-- NAME -->` and `<!-- end -->` by the tables of that name."""
    cells = _cells(fits)
    spent = sum(fit["cpu_seconds"] for fit in fits) / 3600
    commits = sorted({fit["commit"] for fit in fits})
    in_order = [row for row, recipe in RECIPES.items() if recipe.sets == ORDERED]
    alone = [row for row in RECIPES if row not in (*in_order, *WHOLE)]
    parts = {
        "summary": _promise("3", cells),
        "promises": "\n\n".join(_promise(promise, cells) for promise in PROMISES if promise != "3"),
        "alone": _table("at (3, 1e-5)", alone, [name for name in LOADERS if name not in ORDERED], TITLES, cells),
        "order": _table(TITLES[ORDERED[0]], in_order, ["1", "3", "8"], HEADS, cells, ORDERED[0]),
        "spent": f"{len(fits):,} fits, {spent:.2f} CPU hours on one core, at {', '.join(commits)}.",
    }
    text = file.read_text()
    for name, part in parts.items():
        before, opening, rest = text.partition(f"<!-- {name} -->\n")
        _, closing, after = rest.partition("<!-- end -->")
        text = f"{before}{opening}\n{part}\n\n{closing}{after}" if closing else text
    file.write_text(text)


def draw(file: Path, fits: list[dict[str, Any]]) -> None:
    """Accuracy over the promises, a panel for each data set that has all of them, an error bar for each row."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    cells = _cells(fits)
    names = [name for name in LOADERS if all((name, "all", promise) in cells for promise in PROMISES)]
    figure, panels = pyplot.subplots(-(-len(names) // 3), 3, figsize=(10, 2.9 * -(-len(names) // 3)), squeeze=False)
    for name, panel in zip(names, panels.flat, strict=False):
        open_values = cells[name, WHOLE[0], "3"]
        panel.axhline(100 * statistics.mean(open_values), color="0.5", linestyle=":", label=WHOLE[0])
        for row, colour, marker, shift in zip(WHOLE[1:], COLOURS, "sov", (-0.12, 0.0, 0.12), strict=True):
            values = [[100 * value for value in cells[name, row, promise]] for promise in ORDER]
            panel.errorbar(
                [place + shift for place in range(len(ORDER))], [statistics.mean(v) for v in values],
                [statistics.stdev(v) / len(v) ** 0.5 for v in values],
                color=colour, marker=marker, markersize=5, linewidth=1, capsize=2, label=row,
            )  # fmt: skip
        panel.set_title(TITLES[name], fontsize=9)
        panel.set_xticks(range(len(ORDER)), [HEADS[promise] for promise in ORDER], fontsize=7)
        panel.tick_params(axis="y", labelsize=7)
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=8, frameon=False)
    figure.supylabel("test accuracy in percent", fontsize=8)
    figure.tight_layout(rect=(0.01, 0.06, 1, 1))
    figure.savefig(file, metadata={"Date": None})


def cell(values: list[float]) -> str:
    """Mean and standard error in percent."""
    if len(values) < 2:
        return "".join(f"{100 * value:.2f}" for value in values)
    return f"{100 * statistics.mean(values):.2f} ± {100 * statistics.stdev(values) / len(values) ** 0.5:.2f}"


def chosen_rate(fits: list[dict[str, Any]]) -> float:
    """Of the rates with most tuning runs (seeds up to 0), the one of the highest mean accuracy on public records."""
    runs: dict[float, list[float]] = {}
    for fit in fits:
        if fit["seed"] <= 0:
            runs.setdefault(fit["rate"], []).append(fit["public"])
    return max(runs, key=lambda rate: (len(runs[rate]), statistics.mean(runs[rate])))


def _cells(fits: list[dict[str, Any]]) -> Cells:
    """Test accuracies of each data set, row and promise, at the rate that public records chose."""
    places: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for fit in fits:
        places.setdefault((fit["data"], fit["row"], fit["promise"]), []).append(fit)
    cells: Cells = {}
    for (name, row, promise), found in places.items():
        rate = chosen_rate(found)
        tested = [fit["test"] for fit in found if fit["seed"] > 0 and fit["rate"] == rate]
        # No promise is the same beside each of them.
        for column in (PROMISES if promise == "none" else [promise]) if tested else []:
            cells[name, row, column] = tested
    return cells


def _promise(promise: str, cells: Cells) -> str:
    """A line for each data set at a promise."""
    lines = [f"| at {HEADS[promise]} | " + " | ".join(WHOLE) + " |", "| --- |" + " --- |" * len(WHOLE)]
    for name in LOADERS:
        values = [cells.get((name, row, promise), []) for row in WHOLE]
        lines += [f"| {TITLES[name]} | " + " | ".join(map(cell, values)) + " |"] if values[-1] else []
    return "\n".join(lines)


def _table(
    corner: str, rows: list[str], columns: list[str], titles: dict[str, str], cells: Cells, name: str | None = None
) -> str:
    """A line for each row: its promises on the data set of that name, or each data set at (3, 1e-5)."""
    lines = [f"| {corner} | " + " | ".join(titles[c] for c in columns) + " |", "| --- |" + " --- |" * len(columns)]
    for row in rows:
        keys = [(name, row, column) if name else (column, row, "3") for column in columns]
        lines.append(f"| {row} | " + " | ".join(cell(cells.get(key, [])) for key in keys) + " |")
    return "\n".join(lines)
