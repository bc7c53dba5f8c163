"""Time and memory of a private step with each engine, as ratios to the same step without privacy.

python benchmarks/engines.py --repeats 31 --output runs/engines

Times are medians over repeats in which all engines take one step each, in turns, so that what else the machine does
falls on all of them; the ratio is the median of the ratios within a repeat, by the thread's own time where there is one
thread. Peak memory is that of a fresh process in excess of what it held before its first full step. The same command
with `--device cuda` measures a GPU.
"""

import argparse
import ctypes
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from engine_models import WORKLOADS
from engine_steps import ENGINES, Step
from real_networks import REAL

MODELS = {**WORKLOADS, **REAL}
OURS = "one backward (ours)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--output", type=Path, default=Path("runs/engines"), help="folder of the JSON, table and plot")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--skip-scaling", action="store_true", help="leave out the batch sizes from 16 to 1024")
    parser.add_argument("--worker", nargs=4, metavar=("TASK", "MODEL", "ENGINE", "BATCH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        task, model, engine, batch = args.worker
        torch.set_num_threads(args.threads[0])
        print(json.dumps(WORKERS[task](model, engine, int(batch), args)))
        return
    engines = ["ordinary", *(name for name in args.engines if name != "ordinary")]
    result: dict[str, Any] = {"machine": describe_machine(args.device), "repeats": args.repeats, "models": {}}
    for model in args.models:
        batch = MODELS[model].batch_size
        rows: dict[str, Any] = {engine: {} for engine in engines}
        for threads in args.threads:
            times = fresh_process("time", model, ",".join(engines), batch, args, threads)
            for engine in engines:
                rows[engine][f"time_{threads}"] = times.get(engine)
        rows = {engine: row for engine, row in rows.items() if all(row.values())}
        for engine in rows:
            rows[engine]["memory"] = fresh_process("memory", model, engine, batch, args, args.threads[0])
        result["models"][model] = rows
        print(table({model: rows}, args.threads), flush=True)
    if not args.skip_scaling:
        result["scaling"] = scaling(args)
    save(result, args)


def scaling(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds and bytes of the perceptron's step from 16 to 1024 records."""
    found: dict[str, Any] = {}
    for batch in (16, 64, 256, 1024):
        times = fresh_process("time", "perceptron-256", f"ordinary,{OURS}", batch, args, 1)
        found[str(batch)] = {
            "ordinary": times["ordinary"],
            OURS: times[OURS],
            "memory": {
                engine: fresh_process("memory", "perceptron-256", engine, batch, args, 1)
                for engine in ("ordinary", OURS, "Opacus hooks")
            },
        }
        print(
            f"perceptron, batch {batch}: {1e3 * times[OURS]['seconds']:.2f} ms", found[str(batch)]["memory"], flush=True
        )
    return found


def fresh_process(task: str, model: str, engine: str, batch: int, args: argparse.Namespace, threads: int) -> Any:
    command = [sys.executable, __file__, "--worker", task, model, engine, str(batch)]
    command += ["--threads", str(threads), "--repeats", str(args.repeats), "--device", args.device]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Measuring {task} of {model} with {engine} failed:\n{done.stderr[-2000:]}")
    print(*(line for line in done.stderr.splitlines() if " cannot train " in line), sep="\n")
    return json.loads(done.stdout.splitlines()[-1])


def measure_times(model: str, engines: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    steps: dict[str, Step] = {}
    for engine in engines.split(","):
        try:
            step = make_step(model, engine, batch, args.device)
            for _ in range(2):
                step()
            steps[engine] = step
        except Exception as error:  # most peers cannot train every network
            if engine in ("ordinary", OURS):
                raise
            print(f"{engine} cannot train {model}: {' '.join(str(error).split())[:200]}", file=sys.stderr)
    seconds: dict[str, list[float]] = {engine: [] for engine in steps}
    order = list(steps)
    # With one thread the thread's own time leaves out what other processes took of the machine.
    clock = time.thread_time if args.device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    for repeat in range(args.repeats):
        for engine in order[repeat % len(order) :] + order[: repeat % len(order)]:
            synchronize(args.device)
            start = clock()
            steps[engine]()
            synchronize(args.device)
            seconds[engine].append(clock() - start)
    return {
        engine: {
            "seconds": statistics.median(values),
            "fastest": min(values),
            "ratio": statistics.median(a / b for a, b in zip(values, seconds["ordinary"], strict=True)),
            "ratio_of_fastest": min(values) / min(seconds["ordinary"]),
        }
        for engine, values in seconds.items()
    }


def measure_memory(model: str, engine: str, batch: int, args: argparse.Namespace) -> int:
    """Peak bytes of three full steps over what the process held before; a small step first loads the libraries."""
    make_step(model, engine, 2, args.device)()
    step = make_step(model, engine, batch, args.device)
    gc.collect()
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            step()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    for _ in range(3):
        step()
    return status_bytes("VmHWM") - before


WORKERS: dict[str, Any] = {"time": measure_times, "memory": measure_memory}


def make_step(model: str, engine: str, batch: int, device: str) -> Step:
    torch.manual_seed(0)
    workload = MODELS[model]
    module = workload.make().to(device)
    inputs, labels = (tensor.to(device) for tensor in workload.make_batch(batch))
    return ENGINES[engine](module, inputs, labels)


def status_bytes(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def describe_machine(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor() or platform.machine()
    return {"device": name, "python": platform.python_version(), "torch": torch.__version__}


def table(models: dict[str, Any], threads: list[int]) -> str:
    """Markdown: for each engine the ratio of time at each number of threads, milliseconds, and of memory."""
    head = [f"time ({count} thread{'s' * (count > 1)})" for count in threads]
    lines = [f"| model | engine | {' | '.join(head)} | ms | extra MiB | memory |", "| --- " * (5 + len(head)) + "|"]
    for model, rows in models.items():
        base = rows["ordinary"]["memory"]
        for engine, row in rows.items():
            ratios = " | ".join(f"{row[f'time_{count}']['ratio']:.2f}" for count in threads)
            milliseconds = 1e3 * row[f"time_{threads[0]}"]["seconds"]
            memory = row["memory"]
            lines.append(
                f"| {model} | {engine} | {ratios} | {milliseconds:.1f} | {memory / 2**20:.0f} | {memory / base:.2f} |"
            )
    return "\n".join(lines)


def save(result: dict[str, Any], args: argparse.Namespace) -> None:
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "engines.json").write_text(json.dumps(result, indent=2))
    (args.output / "engines.md").write_text(table(result["models"], args.threads) + "\n")
    plot(result, args.output / "engines.png", args.threads[0])
    print(f"Wrote engines.json, engines.md and engines.png to {args.output}.")


def plot(result: dict[str, Any], path: Path, threads: int) -> None:
    from matplotlib import pyplot

    models = result["models"]
    figure, axes = pyplot.subplots(1, len(models), figsize=(3.2 * len(models), 3.4), sharey=True, squeeze=False)
    for axis, (model, rows) in zip(axes[0], models.items(), strict=True):
        names = [name for name in rows if name != "ordinary"]
        bars = axis.barh(names, [rows[name][f"time_{threads}"]["ratio"] for name in names])
        axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
        axis.axvline(1.0, color="black", linewidth=0.8)
        # Most engines are within a few times; the perceptron's hooks are not.
        wide = max(bar.get_width() for bar in bars) > 8
        axis.set(title=model, xlabel="time / ordinary step", xscale="log" if wide else "linear")
        axis.margins(x=0.2)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
