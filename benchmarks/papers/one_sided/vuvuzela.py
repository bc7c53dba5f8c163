"""Section 6 of *One-Sided Bounded Noise*: dummy messages of the messenger Vuvuzela, and how long its rounds take.

    python benchmarks/papers/one_sided/vuvuzela.py --output runs/one_sided/vuvuzela

A round passes a chain of servers. Each opens every onion of its batch and can mix only a whole batch; all but the last
add dummies to it, for two counts (drops that one message reaches, and drops that two do), each drawn anew. Dummies are
sealed before the round and cost time at the servers behind. The time of an onion is the one at which the paper's
Laplace noise delays a round by the 18.4 seconds that it states.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from lightning_pac.mechanisms.one_sided import PositiveNoise, biased_laplace

Array = npt.NDArray[np.float64]

EPSILON, DELTA, RELEASES, LARGEST = math.log(2.0), 1e-4, 250_000, 30_000
SERVERS, COUNTS = 3, 2
PRINTED = {"laplace": 300_000, "optimized": 14_000, "delay": 18.4}
USERS = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20_000, help="simulated rounds of each noise")
    parser.add_argument("--output", type=Path, default=Path("runs/one_sided/vuvuzela"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    laws, seconds = designs()
    # An onion is opened at each server behind the one that made it.
    openings = COUNTS * SERVERS * (SERVERS - 1) / 2
    per_onion = PRINTED["delay"] / (openings * PRINTED["laplace"])
    rng = np.random.default_rng(0)
    delays = {name: per_onion * onions_opened(law, args.rounds, rng) for name, law in laws.items()}
    rows = [row(name, laws[name], delays, per_onion) for name in laws]
    result = {"seconds_per_onion": per_onion, "printed": PRINTED, "noises": rows, "design_seconds": seconds}
    (args.output / "vuvuzela.json").write_text(json.dumps(result, indent=2) + "\n")
    plot(rows, delays, per_onion, args.output / "vuvuzela.png")
    for found in rows:
        print(f"{found['noise']}: {found['mean']:,.0f} dummies, {found['delay']:.3f} s, {found['times_less']:.1f}")


def designs() -> tuple[dict[str, Array], dict[str, float]]:
    """Laws of one count's dummies, and how long it took to find them."""
    laplace = biased_laplace(EPSILON, DELTA, RELEASES)
    laws, seconds = {"Laplace": laplace}, {}
    for accounting in ("hybrid_rdp", "exact"):
        start = time.perf_counter()
        noise = PositiveNoise.for_dp(EPSILON, DELTA, RELEASES, LARGEST, accounting=accounting)
        seconds[accounting] = time.perf_counter() - start
        laws[f"optimized, {accounting.replace('_', ' ')}"] = noise.probabilities
    # The paper's means, with the shapes that its methods have.
    laws["Laplace, as printed"] = stretched(laplace, PRINTED["laplace"])
    laws["optimized, as printed"] = stretched(laws["optimized, hybrid rdp"], PRINTED["optimized"])
    return laws, seconds


def stretched(law: Array, mean: float) -> Array:
    """The law at a multiple of its values, so that its mean is another one."""
    places = np.rint(np.arange(law.size) * mean / mean_of(law)).astype(np.int64)
    return np.bincount(places, weights=law)


def mean_of(law: Array) -> float:
    return float(law @ np.arange(law.size))


def onions_opened(law: Array, rounds: int, rng: np.random.Generator) -> Array:
    """Dummies that the servers of each round open, shape (rounds,): the batches beyond what users sent."""
    cumulative = np.cumsum(law)
    drawn = np.searchsorted(cumulative, rng.random((rounds, SERVERS - 1, COUNTS)) * cumulative[-1])
    # Dummies of the second count come in pairs.
    drawn[..., 1] += drawn[..., 1] % 2
    added = drawn.sum(axis=2)
    behind = np.arange(SERVERS - 1, 0, -1)
    return np.asarray(added @ behind, dtype=np.float64)


def row(name: str, law: Array, delays: dict[str, Array], per_onion: float) -> dict[str, Any]:
    """Dummies and delay of one noise, and how many times less than the Laplace noise of its kind it delays."""
    own, base = delays[name], delays["Laplace, as printed" if "printed" in name else "Laplace"]
    errors = [values.std(ddof=1) / math.sqrt(values.size) / values.mean() for values in (own, base)]
    ratio = base.mean() / own.mean()
    # A quantile is as far off as those of the shares that a binomial law confuses with its own.
    slow, off = 0.99, math.sqrt(0.99 * 0.01 / own.size)
    return {
        "noise": name,
        "mean": mean_of(law),
        "second_moment": float(law @ np.arange(law.size, dtype=float) ** 2),
        "largest": law.size - 1,
        "delay": float(own.mean()),
        "delay_standard_error": float(errors[0] * own.mean()),
        "delay_of_one_round_in_100": float(np.quantile(own, slow)),
        "delay_of_one_round_in_100_standard_error": float(np.diff(np.quantile(own, [slow - off, slow + off]))[0] / 2),
        "round_of_a_million_users": float(own.mean() + SERVERS * USERS * per_onion),
        "round_of_a_million_users_standard_error": float(errors[0] * own.mean()),
        "times_less": float(ratio),
        "times_less_standard_error": float(ratio * math.hypot(*errors)),
    }


def plot(rows: list[dict[str, Any]], delays: dict[str, Array], per_onion: float, path: Path) -> None:
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    users = np.linspace(0, 2 * USERS, 50)
    for color, found in enumerate(rows):
        name, style = found["noise"], ":" if "printed" in found["noise"] else "-"
        heights, edges = np.histogram(np.log10(delays[name]), bins=60, density=True)
        left.stairs(heights, 10**edges, color=f"C{color}", linestyle=style, label=name)
        seconds = found["delay"] + SERVERS * users * per_onion
        right.plot(users / 1e6, seconds, color=f"C{color}", linestyle=style, label=name)
    left.set(xscale="log", xlabel="delay by dummies (s)", ylabel="density of rounds (by decade)")
    right.plot(users / 1e6, SERVERS * users * per_onion, "k--", label="no dummies")
    right.set(xlabel="users (millions)", ylabel="time of a round (s)")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
