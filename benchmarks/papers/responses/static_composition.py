"""Theorem A.1 (static composition), and noise for the prior against noise for the posterior.

    python benchmarks/papers/responses/static_composition.py --output runs/responses

Two comparisons. *Bounds*: what Algorithm 1 and Theorem A.1 say of T answers that have the same noise, for a query on
which some of the subsets disagree. *A game*: an attacker who follows the posterior asks each time whether the secret is
among the likeliest subsets that hold half of his belief; the answer is one noised vote. Noise for the prior lets such
answers tell more than their price; the noise of Algorithm 1 does not.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(160)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
DISSENT = (1, 4, 16, 64)
EXPONENTS = (4, 8, 16, 32)
COUNTS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=128)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--answers", type=int, default=300)
    parser.add_argument("--budget", type=float, default=2.0**-7, help="nats of an answer in the game")
    parser.add_argument("--output", type=Path, default=Path("runs/responses"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    result = {
        "bounds": bounds(args.members),
        "largest_share_of_the_theorem": tightness(),
        "game": {
            name: game(args.members, args.budget, args.trials, args.answers, follow)
            for name, follow in (("noise for the prior", False), ("noise for the posterior", True))
        },
    }
    (args.output / "static_composition.json").write_text(json.dumps(result, indent=1) + "\n")
    plot(result, args, args.output / "static_composition.png")
    for name, found in result["game"].items():
        print(f"{name}: {found['information'][-1]:.3f} nats told, {found['claimed'][-1]:.3f} claimed")


def separation(mass: Array, budget: float) -> Array:
    """Half the distance between the two noised votes, in deviations: `I <= ln(1 + 4 p q h^2) / 2 <= b`."""
    return np.sqrt(2 * budget / (4 * mass * (1 - mass)))


def information(mass: Array, half: Array) -> Array:
    """Mutual information of a binary input of that mass at `+-h` and unit noise, in nats, by quadrature."""
    total = np.zeros(np.broadcast_shapes(np.shape(mass), np.shape(half)))
    for sign, own, other in ((1.0, mass, 1 - mass), (-1.0, 1 - mass, mass)):
        ratio = np.exp(-2 * sign * np.multiply.outer(half, NODES) - 2 * np.square(half)[..., None])
        total += own * (-np.log(own[..., None] + other[..., None] * ratio) @ WEIGHTS)
    return total


def bounds(members: int) -> list[dict[str, Any]]:
    """Cumulative bounds of both theorems, by budget and by how many of the subsets disagree."""
    rows = []
    for exponent in EXPONENTS:
        for dissent in DISSENT:
            budget, mass = 2.0**-exponent, np.array(dissent / members)
            half = separation(mass, budget)
            # Equation 6: the most that this noise tells under any belief; symmetric inputs have it at equal masses.
            worst = float(information(np.array(0.5), half))
            static = static_bounds(budget, worst, max(COUNTS))
            rows.append(
                {
                    "budget": f"2^-{exponent}",
                    "dissent": dissent,
                    "worst_over_budget": worst / budget,
                    "noise_ratio": float(separation(np.array(0.5), budget) ** -2 / half**-2),
                    "algorithm_1": [count * budget for count in COUNTS],
                    "theorem_a1": [float(static[count - 1]) for count in COUNTS],
                }
            )
    return rows


def static_bounds(budget: float, worst: float, count: int) -> Array:
    """Theorem A.1: `B_t = B_(t-1) + min(b' sqrt(2 B_(t-1)) + b, b')`, up to `count` answers."""
    found = np.empty(count)
    total = budget
    for answer in range(count):
        found[answer] = total
        step = worst * (2 * total) ** 0.5 + budget
        if step >= worst:
            # From here on every answer costs the worst case.
            found[answer:] = total + worst * np.arange(count - answer)
            break
        total += step
    return found


def tightness() -> float:
    """Largest share of the step of Theorem A.1 that a change of belief uses, over two-class answers: 1 is equality."""
    masses = np.concatenate([np.geomspace(1e-6, 0.02, 25), np.linspace(0.02, 0.5, 49)])
    before, after = masses[:, None], masses[None, :]
    divergence = after * np.log(after / before) + (1 - after) * np.log((1 - after) / (1 - before))
    largest = 0.0
    for half in (0.05, 0.2, 0.5, 1.0, 2.0, 4.0):
        told = information(masses, np.full(len(masses), half))
        step = information(np.array(0.5), np.array(half)) * np.sqrt(2 * divergence)
        shares = np.divide(told[None, :] - told[:, None], step, out=np.zeros_like(step), where=step > 0)
        largest = max(largest, float(shares.max()))
    return largest


def game(members: int, budget: float, trials: int, answers: int, follow: bool) -> dict[str, Any]:
    """Information of the attacker who bisects his belief, averaged over trials, after each answer."""
    rng = np.random.default_rng(0)
    log_belief = np.full((trials, members), -np.log(members))
    secret = rng.integers(0, members, trials)
    told, errors, best = [], [], []
    for _ in range(answers):
        belief = np.exp(log_belief)
        order = np.argsort(-belief, axis=1)
        ranked = np.take_along_axis(belief, order, axis=1).cumsum(axis=1)
        # The likeliest subsets up to half of the belief: at least one, and not all.
        size = np.clip((ranked < 0.5).sum(axis=1), 1, members - 1)
        inside = np.zeros_like(belief, dtype=bool)
        np.put_along_axis(inside, order, np.arange(members) < size[:, None], axis=1)
        mass = (belief * inside).sum(axis=1) if follow else size / members
        half = separation(np.clip(mass, 1e-12, 1 - 1e-12), budget)
        side = np.where(inside, 1.0, -1.0)
        released = side[np.arange(trials), secret] * half + rng.standard_normal(trials)
        log_belief += side * (half * released)[:, None]
        log_belief -= np.logaddexp.reduce(log_belief, axis=1)[:, None]
        gained = np.log(members) + (np.exp(log_belief) * log_belief).sum(axis=1)
        told.append(float(gained.mean()))
        errors.append(float(gained.std(ddof=1) / np.sqrt(trials)))
        best.append(float((log_belief.argmax(axis=1) == secret).mean()))
    claimed = [budget * (answer + 1) for answer in range(answers)]
    # Every tenth answer is enough to draw.
    kept = slice(9, None, 10)
    return {
        "answers": list(range(10, answers + 1, 10)),
        "claimed": claimed[kept],
        "information": told[kept],
        "information_standard_error": errors[kept],
        "guessed": best[kept],
        "guessed_standard_error": [(p * (1 - p) / trials) ** 0.5 for p in best[kept]],
    }


def plot(result: dict[str, Any], args: argparse.Namespace, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, found in result["game"].items():
        left.plot(found["answers"], found["information"], label=name)
    left.plot(found["answers"], found["claimed"], color="black", linestyle="--", label="sum of the budgets")
    left.axhline(np.log(args.members), color="grey", linestyle=":", label="the whole secret")
    left.set(xlabel="answers", ylabel="mutual information (nats)", title="An attacker who follows the posterior")
    for color, row in enumerate(row for row in result["bounds"] if row["budget"] == "2^-16"):
        right.loglog(
            COUNTS, row["theorem_a1"], color=f"C{color}", label=f"Theorem A.1, {row['dissent']} of {args.members}"
        )
    right.loglog(COUNTS, row["algorithm_1"], color="black", linestyle="--", label="Algorithm 1")
    right.set(xlabel="answers of $2^{-16}$ nats", ylabel="bound (nats)", title="Bounds at the same noise")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
