"""Time and peak memory of privatization at its largest: log-det noise for long vectors, and the exact certificate.

    python benchmarks/certificates.py

Each measurement runs in a fresh process, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from rich.progress import track

from lightning_pac.mechanisms import calibrate_gaussian, certify_finite_secret


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--secrets", type=int, default=10_000, help="outputs of the exact certificate")
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=10**6, help="numbers in an output for log-det noise")
    parser.add_argument("--device", help="torch device of the exact certificate, for instance cuda; numpy if not given")
    arguments = parser.parse_args()
    tasks: dict[str, tuple[Callable[..., tuple[float, float, str]], tuple[object, ...]]] = {
        f"log-det noise and one release, m = 128, d = {arguments.dimension:,}": (logdet, (arguments.dimension,)),
        f"exact certificate, N = {arguments.secrets:,}, d = 10, {arguments.draws:,} draws": (
            certificate,
            (arguments.secrets, arguments.draws, arguments.device),
        ),
    }
    print(f"{os.cpu_count()} processors, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}")
    for name, (task, parameters) in tasks.items():
        for _ in track(range(arguments.repeats), name, transient=True):
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                found = pool.submit(measured, task, parameters).result()
            print(f"{name}: {found}", flush=True)


def measured(task: Callable[..., tuple[float, float, str]], parameters: tuple[object, ...]) -> str:
    """Times, peak memory and result of a task in this process; making its inputs does not count as time."""
    seconds, processor, result = task(*parameters)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return f"{seconds:.1f} s wall, {processor:.1f} s of processor time, {peak:.2f} GiB peak; {result}"


def logdet(dimension: int) -> tuple[float, float, str]:
    """Calibrate and release a vector of many numbers."""
    outputs = np.random.default_rng(0).standard_normal((128, dimension))
    wall, processor = time.perf_counter(), time.process_time()
    noise = calibrate_gaussian(outputs, 0.25)
    noise.release(outputs[0])
    return time.perf_counter() - wall, time.process_time() - processor, f"{noise.mutual_information:.4g} nats"


def certificate(secrets: int, draws: int, device: str | None) -> tuple[float, float, str]:
    """Certify clusters of outputs."""
    rng = np.random.default_rng(0)
    outputs = rng.standard_normal((8, 10))[rng.integers(0, 8, secrets)] + 0.1 * rng.standard_normal((secrets, 10))
    wall, processor = time.perf_counter(), time.process_time()
    found = certify_finite_secret(outputs, num_draws=draws, device=device)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return wall, processor, f"at most {found.mutual_information:.4g} nats, {found.method}"


if __name__ == "__main__":
    main()
