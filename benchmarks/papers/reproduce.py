"""Run the papers' experiments again and compare with the stored results, or store what they give.

    python benchmarks/papers/reproduce.py --data-root data                        # what fits into ten minutes
    python benchmarks/papers/reproduce.py responses/table1 one_sided/tables       # these
    python benchmarks/papers/reproduce.py responses/table1 --store                # keep what they give

Exits with 1 if a figure lies outside its spread.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import FOLDER, REPOSITORY, Result, experiments, stored, summarize

LIBRARIES = ("lightning-pac", "numpy", "scipy", "scikit-learn", "torch", "lightning")
PICTURES = REPOSITORY / "docs" / "images" / "papers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = experiments()
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; without, what fits into --minutes")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--minutes", type=float, default=10.0, help="for a run without names, by the stored times")
    parser.add_argument("--store", action="store_true", help="write results and pictures instead of comparing")
    parser.add_argument("--runs", type=int, default=1, help="of one command, for a spread (with --store)")
    parser.add_argument("--from", dest="finished", type=Path, help="outputs of a command that has ended (with --store)")
    parser.add_argument("--seconds", type=float, help="that it took")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(known)):
        parser.error(f"unknown experiments {', '.join(unknown)}; known are {', '.join(known)}.")
    if args.finished is not None and (not args.store or args.seconds is None or len(args.names) != 1):
        parser.error("--from keeps the outputs of one named experiment: give its name, --store and --seconds.")
    failed = []
    for name in args.names or within(args.minutes):
        command = f"python {FOLDER.relative_to(REPOSITORY)}/{known[name]['command']}"
        if args.list:
            print(f"{name}: {command}")
        elif args.store:
            keep(name, command, known[name], args)
        else:
            failed += compare(name, command, known[name], args.data_root)
    if failed:
        sys.exit(f"{len(failed)} figures are outside their spread.")


def within(minutes: float) -> list[str]:
    """Experiments with a result, the quickest first, as long as they fit into the time together."""
    chosen, total = [], 0.0
    for seconds, name in sorted((Result.read(name).seconds, name) for name in stored()):
        total += seconds
        if total <= 60 * minutes:
            chosen.append(name)
    return chosen


def compare(name: str, command: str, experiment: dict[str, Any], data_root: Path) -> list[str]:
    """Run one experiment and print which figures are outside their spread."""
    if "{data_root}" in command and not data_root.is_dir():
        print(f"{name}: left out, there is no folder {data_root} (--data-root)")
        return []
    with tempfile.TemporaryDirectory() as folder:
        seconds = execute(command, Path(folder), data_root)
        figures, _ = summarize([output_of(Path(folder), experiment)])
    differences = Result.read(name).differences(figures)
    print(f"{name}: {len(figures)} figures, {len(differences)} outside their spread, {seconds:.0f} s", flush=True)
    for difference in differences:
        print(f"  {difference}")
    return differences


def keep(name: str, command: str, experiment: dict[str, Any], args: argparse.Namespace) -> None:
    """Store the figures of one experiment, from new runs or from the folder of one that has ended."""
    outputs, times = [], []
    with tempfile.TemporaryDirectory() as temporary:
        for run in range(args.runs):
            folder = args.finished or Path(temporary) / str(run)
            times.append(args.seconds if args.finished else execute(command, folder, args.data_root))
            outputs.append(output_of(folder, experiment))
        for source, target in experiment.get("pictures", {}).items():
            PICTURES.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / source, PICTURES / target)
    figures, spreads = summarize(outputs)
    shown = command.format(output=f"runs/{name}", data_root="data")
    versions = {"python": platform.python_version()} | {one: importlib.metadata.version(one) for one in LIBRARIES}
    Result(shown, round(sum(times) / len(times), 1), args.runs, hardware(), versions, figures, spreads).write(name)
    print(f"{name}: {len(figures)} figures stored", flush=True)


def output_of(folder: Path, experiment: dict[str, Any]) -> Any:
    """The JSON that a command wrote; several files, given by a pattern, by their names."""
    if "*" not in experiment["file"]:
        return json.loads((folder / experiment["file"]).read_text())
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob(experiment["file"]))}


def execute(command: str, folder: Path, data_root: Path) -> float:
    """Run a command of the table; its wall time in seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    words = shlex.split(
        command.format(output=shlex.quote(str(folder)), data_root=shlex.quote(str(data_root.resolve())))
    )
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, *words[1:]], cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def hardware() -> str:
    """Processor and number of cores."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
