"""The attribute attack of the SRPP paper: guess the secret's value from a noised answer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac._shown import shows_itself
from lightning_pac._validation import Confidence, Matrix, validated
from lightning_pac.audits.attack_result import proportion_interval
from lightning_pac.information import Array

__all__ = ["AttributeAttackResult", "gaussian_map_attack"]


@shows_itself
@dataclass(frozen=True)
class AttributeAttackResult:
    """The success of a maximum a posteriori attack.

    Attributes:
        accuracy: share of right guesses.
        interval: its lower and upper confidence limits.
        baseline: what always guessing the most frequent value achieves.
        confidence: level of the interval.
    """

    accuracy: float
    interval: tuple[float, float]
    baseline: float
    confidence: float

    @property
    def advantage(self) -> float:
        """Accuracy above the baseline."""
        return self.accuracy - self.baseline


@validated
def gaussian_map_attack(
    answers: Matrix,
    secrets: Sequence[Hashable],
    means: Mapping[Any, npt.ArrayLike],
    prior: Mapping[Any, float],
    noise_covariance: Matrix,
    law_covariances: Mapping[Any, Array] | None = None,
    confidence: Confidence = 0.95,
) -> AttributeAttackResult:
    """Guess `argmax_s ln P(s) + ln N(answer; mean_s, Sigma + C_s)` (SRPP paper, appendix O).

    Args:
        answers: noised answers, shape (num_answers, dimension).
        secrets: the true values, shape (num_answers,).
        means: mean answer of each value before noise, each of shape (dimension,).
        prior: probability of each value.
        noise_covariance: Sigma, shape (dimension, dimension).
        law_covariances: covariance `C_s` of the answers of each value before noise; left out, the attacker takes the
            noise alone for the spread, as in the paper.
        confidence: level of the exact binomial interval.

    Returns:
        Accuracy and advantage over the prior's mode.

    Raises:
        ValueError: if the shapes disagree or a secret has no mean.

    Example:
        >>> result = gaussian_map_attack(
        ...     np.array([[0.1], [0.9]]), ["a", "b"], {"a": [0.0], "b": [1.0]}, {"a": 0.5, "b": 0.5}, np.eye(1)
        ... )
        >>> result.accuracy, result.advantage
        (1.0, 0.5)
    """
    truth = list(np.asarray(secrets).tolist())
    values = list(prior)
    missing = {*truth, *values} - set(means)
    if missing:
        raise ValueError(f"means has none for the value(s) {', '.join(map(repr, missing))}: the attack needs all.")
    if not values or not {*values} <= {*(values if law_covariances is None else law_covariances)}:
        raise ValueError("prior and law_covariances must be given for the same values of the secret.")
    if len(truth) != len(answers) or not truth:
        raise ValueError(f"secrets has {len(truth)} values and answers {len(answers)}, but each answer has one secret.")
    # Columns are the values of the secret; one of prior 0 stays at -inf and is never guessed.
    scores = np.full((len(answers), len(values)), -np.inf)
    for column, value in enumerate(values):
        if prior[value] > 0:
            spread = noise_covariance if law_covariances is None else noise_covariance + law_covariances[value]
            scores[:, column] = np.log(prior[value]) + _gaussian_log_density(answers - np.asarray(means[value]), spread)
    guesses = [values[index] for index in scores.argmax(axis=1)]
    hits = sum(guess == secret for guess, secret in zip(guesses, truth, strict=True))
    return AttributeAttackResult(
        accuracy=hits / len(truth),
        interval=proportion_interval(hits, len(truth), confidence),
        # The prior's mode, not the share of the most frequent value among these answers.
        baseline=max(prior.values()),
        confidence=confidence,
    )


def _gaussian_log_density(deviations: Array, covariance: Array) -> Array:
    """Log density up to a constant that all values share."""
    # With S = L L^T the quadratic form is |L^-1 x|^2 and ln det(S) / 2 the sum of ln L_ii, which cannot underflow.
    factor = np.linalg.cholesky(covariance)
    whitened = np.linalg.solve(factor, deviations.T)
    density: Array = -0.5 * np.square(whitened).sum(axis=0) - np.log(np.diag(factor)).sum()
    return density
