"""The membership attack that needs nothing but losses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import Confidence, Seed, validated
from lightning_pac.audits.attack_result import AttackResult, proportion_interval

__all__ = ["loss_threshold_attack"]


@validated
def loss_threshold_attack(
    member_losses: npt.ArrayLike,
    nonmember_losses: npt.ArrayLike,
    confidence: Confidence = 0.95,
    rng: np.random.Generator | Seed | None = None,
) -> AttackResult:
    """Guess that a record was trained on when the model's loss on it is low (Yeom et al. 2018).

    The threshold is chosen on one random half of the records and the guesses are counted on the other, so the figure is
    not flattered by the choice. Members and non-members count equally, whatever their numbers; each rate gets an exact
    interval at half the error probability, so the interval of their mean holds jointly.

    Args:
        member_losses: Losses of records that were trained on, shape (num_members,).
        nonmember_losses: Losses of records of the same population that were not, shape (num_nonmembers,).
        confidence: Probability that the interval covers.
        rng: Generator or seed of the split.

    Returns:
        The success probability at prior 1/2.

    Raises:
        ValueError: There are fewer than two losses on a side, or one is not a number.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> result = loss_threshold_attack(rng.exponential(0.1, 1000), rng.exponential(1.0, 1000), rng=0)
        >>> result.success > 0.8
        True
    """
    generator = np.random.default_rng(rng)
    chosen, counted = zip(
        *(
            _split(losses, name, generator)
            for losses, name in ((member_losses, "member_losses"), (nonmember_losses, "nonmember_losses"))
        ),
        strict=True,
    )
    threshold = _best_threshold(*chosen)
    hits = int(np.count_nonzero(counted[0] <= threshold)), int(np.count_nonzero(counted[1] > threshold))
    rates = [right / len(losses) for right, losses in zip(hits, counted, strict=True)]
    limits = [
        proportion_interval(right, len(losses), 1 - (1 - confidence) / 2)
        for right, losses in zip(hits, counted, strict=True)
    ]
    return AttackResult(
        name="loss_threshold",
        success=sum(rates) / 2,
        interval=(sum(lower for lower, _ in limits) / 2, sum(upper for _, upper in limits) / 2),
        confidence=confidence,
        num_trials=sum(len(losses) for losses in counted),
        method="a threshold on the loss, chosen on half of the records and counted on the other half",
    )


def _split(
    losses: npt.ArrayLike, name: str, generator: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    values = np.asarray(losses, dtype=np.float64).ravel()
    if len(values) < 2:
        raise ValueError(f"{name} has {len(values)} values, but the attack needs at least two on each side.")
    if np.isnan(values).any():
        raise ValueError(f"{name} has {np.isnan(values).sum()} that are not numbers: leave those records out.")
    # Records often come sorted by class or time, in which the two halves must not differ.
    shuffled = generator.permutation(values)
    return shuffled[: len(values) // 2], shuffled[len(values) // 2 :]


def _best_threshold(members: npt.NDArray[np.float64], nonmembers: npt.NDArray[np.float64]) -> float:
    """The threshold with the highest mean of the two rates, among all losses that occur."""
    # At -inf nobody is called a member.
    candidates = np.unique(np.concatenate([[-np.inf], members, nonmembers]))
    # `side="right"` counts losses up to and including the threshold, as the guess `<=` does.
    caught = np.searchsorted(np.sort(members), candidates, side="right") / len(members)
    cleared = 1 - np.searchsorted(np.sort(nonmembers), candidates, side="right") / len(nonmembers)
    return float(candidates[np.argmax(caught + cleared)])
