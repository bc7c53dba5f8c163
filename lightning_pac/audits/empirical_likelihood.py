"""LiRA for black boxes: membership from scores of a release, with likelihoods taken from runs instead of a model."""

import math

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import Confidence, MatrixLike, Numbers, TrueOrFalse, validated
from lightning_pac.audits.attack_result import AttackResult, hoeffding_interval
from lightning_pac.information import Array

__all__ = ["cluster_confidence", "empirical_likelihood_attack", "margin_confidence"]


@validated
def empirical_likelihood_attack(
    scores: npt.ArrayLike, memberships: TrueOrFalse, confidence: Confidence = 0.95
) -> AttackResult:
    """Guess each record's membership from how the releases of many runs score it.

    For each record the empirical distribution functions of its score with and without it are compared on the first half
    of the runs, and the threshold, with the better of the two directions, that separates them best is taken. Success is
    counted on the second half. (Counted on the runs that chose the threshold, as the papers do, the success of an
    attack on pure noise lies above 1/2.)

    Args:
        scores: Score of each record under the release of each run, shape (runs, N).
        memberships: Whether the record was in the subset of the run, shape (runs, N), half of the runs for each record.
        confidence: Level of the interval. It treats runs, not records, as independent (Hoeffding).

    Raises:
        ValueError: If the shapes differ, a score is not finite, or there are fewer than four runs.

    Source: *PAC-Private Algorithms*, Appendix D, after Carlini et al. (2022).

    Example:
        >>> members = np.random.default_rng(0).random((400, 5)) < 0.5
        >>> empirical_likelihood_attack(members + 0.0, members).success
        1.0
    """
    values, inside = np.asarray(scores, dtype=np.float64), np.asarray(memberships, dtype=np.bool_)
    if values.shape != inside.shape or values.ndim != 2 or len(values) < 4:
        raise ValueError(f"scores {values.shape} and memberships {inside.shape} must hold at least four runs each.")
    if not np.isfinite(values).all():
        raise ValueError("scores has one that is not finite: map failures to a finite score.")
    half = len(values) // 2
    right = np.empty((len(values) - half, values.shape[1]), dtype=np.bool_)
    for record in range(values.shape[1]):
        threshold, above = _best_threshold(values[:half, record], inside[:half, record])
        # The guess is "member" where (score >= threshold) == above; it is right where it agrees with the membership.
        right[:, record] = ((values[half:, record] >= threshold) == above) == inside[half:, record]
    success = float(right.mean())
    return AttackResult(
        name="empirical_likelihood",
        success=success,
        interval=hoeffding_interval(success, len(right), confidence),
        confidence=confidence,
        num_trials=len(right),
        method="a threshold for each record on the score that a release gives it, chosen on "
        f"{half} runs and counted on {len(right)} others",
    )


@validated
def cluster_confidence(centers: Numbers, records: MatrixLike) -> Array:
    """The confidence of cluster centres in a record: 1 minus its share of the distances that is to the nearest centre.

    Args:
        centers: Shape (..., k, d).
        records: Shape (N, d).

    Returns:
        Shape (..., N).

    Source: *PAC-Private Algorithms*, Appendix D.
    """
    if np.ndim(centers) < 2 or np.shape(centers)[-1] != np.shape(records)[1]:
        raise ValueError(f"centers has shape {np.shape(centers)}, but records {np.shape(records)} need (k, d).")
    places, rows = np.asarray(centers, dtype=np.float64), np.asarray(records, dtype=np.float64)
    distances = np.linalg.norm(rows[:, None, :] - places[..., None, :, :], axis=-1)  # (..., N, k)
    # A record that lies on every centre has distances of sum 0; the floor gives it confidence 1 instead of NaN.
    return np.asarray(1 - distances.min(axis=-1) / np.maximum(distances.sum(axis=-1), 1e-300))


@validated
def margin_confidence(hyperplanes: Numbers, records: MatrixLike) -> Array:
    """The confidence of hyperplanes in a record: the logistic function of the largest signed distance.

    Args:
        hyperplanes: Weights and intercept of each class, shape (..., k, d + 1); k = 1 stands for two classes.
        records: Shape (N, d).

    Returns:
        Shape (..., N).

    Source: *PAC-Private Algorithms*, Appendix D.
    """
    if np.ndim(hyperplanes) < 2 or np.shape(hyperplanes)[-1] != np.shape(records)[1] + 1:
        raise ValueError(
            f"hyperplanes has shape {np.shape(hyperplanes)}, but records {np.shape(records)} need (k, d + 1)."
        )
    planes, rows = np.asarray(hyperplanes, dtype=np.float64), np.asarray(records, dtype=np.float64)
    weights, intercepts = planes[..., :-1], planes[..., -1]
    # The floor keeps a class without weights from a division by 0.
    lengths = np.maximum(np.linalg.norm(weights, axis=-1), 1e-300)
    # (w_k^T x_n + b_k) / |w_k|, shape (..., N, k).
    distances = (np.einsum("...kd,nd->...nk", weights, rows) + intercepts[..., None, :]) / lengths[..., None, :]
    # One hyperplane stands for two classes, and the record is inside one or the other.
    largest = np.abs(distances[..., 0]) if planes.shape[-2] == 1 else distances.max(axis=-1)
    return np.asarray(1 / (1 + np.exp(-largest)))


def _best_threshold(scores: Array, members: npt.NDArray[np.bool_]) -> tuple[float, bool]:
    """The threshold and whether members score above it, by the largest gap of the two distribution functions."""
    # Only one side was seen: everything is above -inf, so that every guess is that side.
    if members.all() or not members.any():
        return -math.inf, bool(members.any())
    # Kolmogorov-Smirnov: the largest gap between the shares below the threshold. `searchsorted` counts scores strictly
    # below it, which is the complement of the guess's `>=`.
    candidates = np.unique(scores)
    below_in = np.searchsorted(np.sort(scores[members]), candidates) / members.sum()
    below_out = np.searchsorted(np.sort(scores[~members]), candidates) / (~members).sum()
    best = int(np.argmax(np.abs(below_out - below_in)))
    return float(candidates[best]), bool(below_out[best] >= below_in[best])
