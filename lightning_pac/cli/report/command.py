"""`lightning-pac report`: an HTML page with plots and words for a run, or for several beside each other."""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_pac.cli.common import Bound, add_command, print_json, print_table

if TYPE_CHECKING:
    from lightning_pac.report import Run

__all__ = ["add_parser", "run"]

_MOST_NAMED = 5  # folders without metrics


def add_parser(subparsers: Any) -> None:
    """Declare `report`."""
    parser = add_command(
        subparsers,
        "report",
        run,
        "write an HTML report of a run, with plots",
        description="""
        Reads the metrics (CSV or TensorBoard logger) and privacy cards under RUN_DIR, and writes one self-contained
        page: one sentence on what was promised and what it cost, promises and attacks on a scale from a coin to
        certainty, a table of the runs, and technical figures in a fold.
        """,
        examples="""
        lightning-pac report runs/demo
        lightning-pac report lightning_logs/version_0 --output report.html
        lightning-pac report lightning_logs runs/demo --output report.html
        lightning-pac report runs/demo --record "household's readings"
        lightning-pac report runs/demo --json
        """,
    )
    parser.add_argument("directories", type=Path, nargs="+", metavar="RUN_DIR", help="folders that runs were logged to")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the page (default: report.html in RUN_DIR, or here for several)"
    )
    parser.add_argument(
        "--record",
        metavar="NAME",
        help="what a record (or person) is, in the reader's words",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page; print its path and the last figures."""
    from lightning_pac.cards import at_most
    from lightning_pac.report import find_runs, left_out, summarize, write_report

    directory, *more = args.directories
    runs = find_runs(args.directories if more else directory)
    if args.record is not None:
        secrets = [entry.card.secret for entry in runs if entry.card is not None]
        unit = next((u for u in ("record", "person") if any(f"any one {u}" in secret for secret in secrets)), None)
        if unit is None:
            raise ValueError("--record says what a record or person is, but no run here is about one: leave it out.")
        runs = [_in_words(entry, unit, args.record) for entry in runs]
    path = write_report(Path.cwd() if more else directory, args.output, runs)
    rows = [summarize(entry) for entry in runs]
    if args.json:
        print_json({"report": str(path), "runs": rows})
        return 0
    cells: list[list[object]] = [
        [
            row["run"],
            None if row["success_bound"] is None else at_most(row["success_bound"]),
            None if row["epsilon_at_delta"] is None else Bound(row["epsilon_at_delta"]),
            _accuracy(row),
        ]
        for row in rows
    ]
    columns = ["run", "guess correct at most", "epsilon at delta", "accuracy"]
    if any(row["noised"] for row in rows):
        columns.append("measured")
        for cell, row in zip(cells, rows, strict=True):
            cell.append(
                ", ".join(
                    f"{name} {value:.4g} ± {error or noise:.2g}{'' if error else ' of noise'}"
                    for name, (value, noise, error) in row["noised"].items()
                )
            )
    if len({row["secret"] for row in rows} - {None}) > 1:
        columns.append("secret")
        for cell, row in zip(cells, rows, strict=True):
            cell.append(row["secret"])
    caption = f"The report is {path}."
    reasons = (
        "no metric was logged there",
        "only another run's model was evaluated there (log that to the run's folder)",
    )
    for reason, folders in zip(reasons, left_out(args.directories, runs), strict=True):
        if folders:
            named = ", ".join(str(folder) for folder in folders[:_MOST_NAMED]) + ", ..." * (len(folders) > _MOST_NAMED)
            caption += f" Left out, since {reason}: {named}."
    print_table("", columns, cells, caption=caption)
    return 0


def _in_words(run: "Run", unit: str, name: str) -> "Run":
    """The run, whose secret says by a name what a record, or a person, is."""
    if run.card is None:
        return run
    secret = run.card.secret.replace(f"any one {unit}", f"any one {name}")
    return dataclasses.replace(run, card=dataclasses.replace(run.card, secret=secret))


def _accuracy(row: dict[str, Any]) -> str | None:
    """The accuracy in percent, with its standard error, or the deviation of its noise, where it is noised."""
    from lightning_pac.report.verdict import DROWNED

    if row["accuracy"] is None:
        return None
    noise = row["accuracy_deviation"]
    if noise is not None and noise > DROWNED:
        return "hidden by its noise"
    error = row["accuracy_error"]
    of_noise = "" if noise is None else f" ± {100 * (error or noise):.1f} %{'' if error else ' of noise'}"
    of_step = "" if row["outdated"] is None else f", of step {row['outdated']}"
    return f"{100 * row['accuracy']:.1f} %{of_noise}{of_step}"
