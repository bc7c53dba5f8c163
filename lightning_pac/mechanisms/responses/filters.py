"""Filters that decide which noised labels a student is trained on."""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax
from scipy.stats import norm

from lightning_pac._shown import shows_itself
from lightning_pac._validation import validated
from lightning_pac.information import Array
from lightning_pac.mechanisms.responses.answer import BatchRelease
from lightning_pac.mechanisms.responses.votes import vote_channel

__all__ = ["FilteredLabels", "bayes_filter", "hypothesis_filter"]


@shows_itself
@dataclasses.dataclass(frozen=True, eq=False)
class FilteredLabels:
    """Labels and which of them to keep.

    Attributes:
        labels: One label per answer, shape (n,).
        keep: Whether the label is to be trusted, shape (n,).
        confidence: Posterior probability of the label (Bayes filter) or the smallest test statistic, shape (n,);
            infinite where the answer was unanimous.
    """

    labels: npt.NDArray[np.int64]
    keep: npt.NDArray[np.bool_]
    confidence: Array


@validated
def bayes_filter(answers: BatchRelease, alpha: float = 0.01) -> FilteredLabels:
    r"""Keep an answer whose most probable class has posterior mass at least $1 - \alpha$, and label it with that class.

    With $p_c$ the belief mass of class c *before* the release R, the posterior of the secret model's vote is
    proportional to $p_c \, \mathcal{N}(R; e_c, \Sigma)$, which is the updated belief summed over the models that voted
    c. Given the history and that it is kept, a label differs from the secret model's vote with probability at most
    $\alpha$, on average over the secret. It is computed from public quantities, so it costs nothing.

    Args:
        answers: Votes answered by `AdaptiveComposition.release_batch`.
        alpha: Largest probability of a wrong label among the kept ones.

    Raises:
        ValueError: If alpha is not in (0, 1), or the answers are scores.

    Source: ours.

    Example:
        >>> from lightning_pac.mechanisms import AdaptiveComposition
        >>> composition = AdaptiveComposition([0.999, 0.001], secret=0)
        >>> answers = composition.release_batch([[3, 3], [3, 5]], 1e-9)
        >>> bayes_filter(answers, alpha=0.01).labels.tolist()
        [3, 3]
    """

    def decide(masses: Array, whitened: Array, coordinates: Array) -> tuple[npt.NDArray[np.int64], Array]:
        # ln N(R; e_c, Sigma) = w_c.x - |w_c|^2/2 and a part that all classes share.
        evidence = np.einsum("nkr,nr->nk", whitened, coordinates) - 0.5 * (whitened**2).sum(axis=2)
        with np.errstate(divide="ignore"):
            posterior = np.exp(log_softmax(np.log(masses) + evidence, axis=1))
        return posterior.argmax(axis=1), posterior.max(axis=1)

    labels, confidence, _ = _apply(answers, alpha, decide)
    return FilteredLabels(labels, confidence >= 1 - alpha, confidence)


@validated
def hypothesis_filter(answers: BatchRelease, alpha: float = 0.01, paper_level: bool = False) -> FilteredLabels:
    r"""Keep an answer if a test rejects every other class that was voted for.

    With $\tilde y = \mathrm{argmax}\,R$, keep iff for all voted $j \ne \tilde y$

    $$T_j = \frac{(e_{\tilde y} - e_j)^T \Sigma^+ (R - e_j)}{\sqrt{(e_{\tilde y} - e_j)^T \Sigma^+ (e_{\tilde y} -
    e_j)}} \ge z_{1 - \alpha / (k - 1)}.$$

    Whatever the secret, an answer is kept *and* wrong with probability at most $\alpha$. That is no bound on the
    fraction of wrong labels among the kept ones, which at small budgets may exceed one half.

    Args:
        answers: Votes answered by `AdaptiveComposition.release_batch`.
        alpha: Largest probability that an answer is kept and wrong.
        paper_level: Test at level alpha instead of alpha / (k - 1), as the paper does. Its proof fixes the label before
            the answer is seen; the true level is (k - 1) alpha.

    Raises:
        ValueError: If alpha is not in (0, 1), or the answers are scores.

    Source: *PAC-Private Responses*, Proposition 5.1, at its rigorous level.
    """

    def decide(masses: Array, whitened: Array, coordinates: Array) -> tuple[npt.NDArray[np.int64], Array]:
        # The columns of W have squared norms 1/e, so that this is R less its mean.
        values = np.einsum("nkr,nr->nk", whitened, coordinates / (whitened**2).sum(axis=1))
        label = values.argmax(axis=1)
        chosen = np.take_along_axis(whitened, label[:, None, None], axis=1)
        difference = chosen - whitened
        length = np.linalg.norm(difference, axis=2)
        # The label is not tested against itself: no 0 / 0 here, and no part in the minimum below.
        np.put_along_axis(length, label[:, None], 1.0, axis=1)
        # Sigma^+ = W W^T makes T_j a product of whitened coordinates.
        statistic = np.einsum("nkr,nkr->nk", difference, coordinates[:, None] - whitened) / length
        np.put_along_axis(statistic, label[:, None], np.inf, axis=1)
        return label, statistic.min(axis=1)

    labels, statistic, num_classes = _apply(answers, alpha, decide)
    # Bonferroni over the k - 1 other classes.
    level = alpha / np.maximum(num_classes - 1, 1) if not paper_level else np.full(len(labels), alpha)
    return FilteredLabels(labels, statistic >= norm.isf(level), statistic)


def _apply(
    answers: BatchRelease, alpha: float, decide: Callable[[Array, Array, Array], tuple[npt.NDArray[np.int64], Array]]
) -> tuple[npt.NDArray[np.int64], Array, npt.NDArray[np.int64]]:
    """Decide on all answers with equally many voted classes at once."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha!r}.")
    if answers.masses is None:
        raise ValueError("Scores have no classes to choose between: filter answers that were given as votes.")
    num_classes = (answers.classes >= 0).sum(axis=1)
    labels, confidence = answers.labels.copy(), np.full(len(answers), np.inf)
    for k in np.unique(num_classes[num_classes > 1]).tolist():
        rows = np.flatnonzero(num_classes == k)
        masses = answers.masses[rows, :k]
        whitened, _ = vote_channel(masses, answers.costs[rows], answers.rule)
        coordinates = np.einsum("nk,nkr->nr", answers.values[rows, :k], whitened)
        position, confidence[rows] = decide(masses, whitened, coordinates)
        labels[rows] = answers.classes[rows, position]
    return labels, confidence, num_classes
