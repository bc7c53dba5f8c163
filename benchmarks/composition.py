"""Speed of adaptive composition against the paper's algorithm done plainly, in one process.

The plain algorithm takes one-hot outputs (m x d) and, for every query, a full singular value decomposition, the linear
rule, and Bayes' rule. *As written*: the d x d covariance is decomposed, the noise drawn from its d x d covariance and
the belief updated with the pseudo-inverse. *Reusing*: one decomposition of the centred outputs serves all three.

    python benchmarks/composition.py --output runs/composition.json
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from lightning_pac.mechanisms import AdaptiveComposition


class ReusingComposition:
    """Algorithm 1 of the paper with one decomposition per query."""

    def __init__(self, num_secrets: int, secret: int, num_classes: int) -> None:
        self.belief = np.full(num_secrets, 1 / num_secrets)
        self.secret = secret
        self.num_classes = num_classes
        self.generator = np.random.default_rng()

    def release(self, votes: np.ndarray, budget: float) -> int:
        """One response."""
        outputs = np.eye(self.num_classes)[votes]
        mean = self.belief @ outputs
        centred = np.sqrt(self.belief)[:, None] * (outputs - mean)
        _, singular, vectors = np.linalg.svd(centred, full_matrices=True)
        roots = np.zeros(self.num_classes)
        roots[: len(singular)] = np.where(singular > 1e-9, singular, 0.0)
        variances = roots * roots.sum() / (2 * budget)
        noise = vectors.T @ (np.sqrt(variances) * self.generator.standard_normal(self.num_classes))
        released = outputs[self.secret] + noise
        precision = np.divide(1.0, variances, out=np.zeros_like(variances), where=variances > 0)
        scores = (released - outputs) @ vectors.T
        log_belief = np.log(np.maximum(self.belief, 1e-300)) - 0.5 * (scores**2 * precision).sum(axis=1)
        belief = np.exp(log_belief - log_belief.max())
        self.belief = belief / belief.sum()
        return int(released.argmax())


class WrittenComposition(ReusingComposition):
    """Algorithm 1 of the paper, as written."""

    def release(self, votes: np.ndarray, budget: float) -> int:
        """One response."""
        outputs = np.eye(self.num_classes)[votes]
        centred = outputs - self.belief @ outputs
        vectors, eigenvalues, _ = np.linalg.svd((self.belief[:, None] * centred).T @ centred)
        roots = np.sqrt(np.where(eigenvalues > 1e-15, eigenvalues, 0.0))
        covariance = vectors @ np.diag(roots * roots.sum() / (2 * budget)) @ vectors.T
        noise = self.generator.multivariate_normal(np.zeros(self.num_classes), covariance, check_valid="ignore")
        released = outputs[self.secret] + noise
        deviations = released - outputs
        precision = np.linalg.pinv(covariance, hermitian=True)
        log_belief = np.log(np.maximum(self.belief, 1e-300))
        log_belief -= 0.5 * np.einsum("ij,jk,ik->i", deviations, precision, deviations)
        belief = np.exp(log_belief - log_belief.max())
        self.belief = belief / belief.sum()
        return int(released.argmax())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument(
        "--queries", type=int, default=20_000, help="queries for our engine; the plain one gets a tenth"
    )
    parser.add_argument("--responses", type=int, default=1_000_000, help="responses of the batch audit; 0 to skip it")
    arguments = parser.parse_args()
    results = []
    for num_classes in (10, 100):
        for budget in (2.0**-8, 2.0**-32):
            for scattered in (0.0, 0.15):
                results.append(compare(128, num_classes, budget, arguments.queries, scattered))
                print(json.dumps(results[-1]))
    if arguments.responses:
        votes = make_votes(arguments.responses, 128, 10)
        start = time.process_time()
        AdaptiveComposition(np.full(128, 1 / 128), secret=3).release_batch(votes, 2.0**-32)
        results.append({"responses": arguments.responses, "seconds": time.process_time() - start})
        print(json.dumps(results[-1]))
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(results, indent=1))


def compare(num_secrets: int, num_classes: int, budget: float, num_queries: int, scattered: float) -> dict[str, float]:
    votes = make_votes(num_queries, num_secrets, num_classes, scattered)
    few = votes[: max(1, num_queries // 10)]

    def ours() -> None:
        AdaptiveComposition(np.full(num_secrets, 1 / num_secrets), secret=3).release_batch(votes, budget)

    fast = seconds(ours) / len(votes)
    result = {"num_classes": num_classes, "budget": budget, "scattered": scattered, "microseconds": 1e6 * fast}
    for name, plain_class in (("written", WrittenComposition), ("reusing", ReusingComposition)):

        def plain(plain_class: type[ReusingComposition] = plain_class) -> None:
            composition = plain_class(num_secrets, 3, num_classes)
            for row in few:
                composition.release(row, budget)

        slow = seconds(plain) / len(few)
        result |= {f"{name}_microseconds": 1e6 * slow, f"{name}_ratio": slow / fast}
    return result


def seconds(run: Callable[[], None], repeats: int = 5) -> float:
    """Least processor time of a few runs on one thread, so that a busy machine distorts no side.

    Processor time counts the threads of a decomposition that wait for each other: with two of them the plain algorithm
    took ten times as much over 100 classes.
    """
    times = []
    with threadpool_limits(1):
        for _ in range(repeats):
            start = time.process_time()
            run()
            times.append(time.process_time() - start)
    return min(times)


def make_votes(num_queries: int, num_secrets: int, num_classes: int, scattered: float = 0.0) -> np.ndarray:
    """Votes of which 35 % are not unanimous: two to four classes, or a share of the secrets scattered over all."""
    rng = np.random.default_rng(0)
    votes = np.repeat(rng.integers(0, num_classes, (num_queries, 1)), num_secrets, axis=1)
    mixed = rng.random(num_queries) < 0.35
    others = rng.integers(1, 4, num_queries)
    for row in np.flatnonzero(mixed):
        if scattered:
            dissenters = rng.choice(num_secrets, round(scattered * num_secrets), replace=False)
            votes[row, dissenters] = rng.integers(0, num_classes, len(dissenters))
            continue
        dissenters = rng.choice(num_secrets, rng.integers(3, num_secrets // 3), replace=False)
        dissent = 1 + np.arange(len(dissenters)) % others[row]
        votes[row, dissenters] = (votes[row, dissenters] + dissent) % num_classes
    return votes


if __name__ == "__main__":
    main()
