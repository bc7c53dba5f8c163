"""A lower bound on leakage from a decoder: it can refute a claim and never prove one."""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from lightning_pac._shown import shows_itself
from lightning_pac._validation import Confidence, OpenProbability, VectorLike, validated
from lightning_pac.audits.given_numbers import whole_numbers
from lightning_pac.cards import Estimate
from lightning_pac.information import entropy
from lightning_pac.mechanisms.certified import empirical_bernstein_margin

__all__ = ["DecoderLeakage", "decoder_leakage"]


@shows_itself
@dataclasses.dataclass(frozen=True)
class DecoderLeakage:
    """The information that a decoder found in releases of a finite secret.

    Attributes:
        cross_entropy: Mean of `-ln pi(secret | release)`, an upper estimate of the conditional entropy.
        estimate: Entropy minus cross-entropy, in nats.
        lower_bound: The estimate minus its margin; the mutual information is above it with the confidence.
        confidence: Of the lower bound.
    """

    cross_entropy: float
    estimate: float
    lower_bound: float
    confidence: float

    def to_estimate(self) -> Estimate:
        """For the measurements of a privacy card."""
        return Estimate(
            name="decoder_leakage",
            value=self.estimate,
            unit="nats",
            meaning="The best decoder that was trained found this much of the secret in a release; a better one may "
            "find more.",
            method="a decoder's log score on fresh releases",
            interval=(self.lower_bound, math.inf),
            confidence=self.confidence,
        )


@validated
def decoder_leakage(
    log_posteriors: npt.ArrayLike,
    secrets: VectorLike,
    prior: VectorLike,
    confidence: Confidence = 0.99,
    smoothing: OpenProbability = 0.01,
) -> DecoderLeakage:
    r"""Lower bound $H(X) - E[-\ln \pi(X | Y)]$ on the mutual information, on fresh releases of a finite secret.

    The decoder must be a probability over the possible secrets: the density of a record in R^d is not, and rescaling
    the record moves its score by any amount. It is mixed with the prior, $\pi' = (1 - \epsilon) \pi + \epsilon P$, so
    that the score is bounded. Cutting the score off instead would leave no probability and overstate leakage.

    Args:
        log_posteriors: ln pi of the true secret at independent releases, shape (n,); the decoder was fixed before.
        secrets: Index of the true secret of the same releases, drawn from the prior, shape (n,).
        prior: P, the whole law of the secret, shape (m,).
        confidence: Of the lower bound.
        smoothing: epsilon.

    Raises:
        ValueError: If the decoder gives more than probability 1, the shapes differ, the prior is none, or a secret is
            no number of one that has a prior.

    Source: ours; *Residual-PAC*, Lemma 1, truncates the score.

    Example:
        >>> guess = np.full(1000, math.log(0.25))
        >>> abs(decoder_leakage(guess, np.arange(1000) % 4, np.full(4, 0.25)).estimate) < 1e-12
        True
    """
    scores, law = np.asarray(log_posteriors, np.float64), np.asarray(prior, np.float64)
    drawn = whole_numbers("secrets", secrets, len(law), 1, "release: the number of the secret that was drawn")
    if scores.ndim != 1 or scores.shape != drawn.shape or len(scores) < 2:
        raise ValueError(f"log_posteriors {scores.shape} and secrets {drawn.shape} must be rows of one length above 1.")
    # A log softmax in single precision may end about 1e-6 above ln 1 = 0.
    if np.isnan(scores).any() or (scores > 1e-6).any():
        raise ValueError(
            "log_posteriors has a probability above 1, or an undefined one: normalize it over the possible secrets."
        )
    total = entropy(law)  # refuses what is no law
    if not (law[drawn] > 0).all():
        raise ValueError("secrets has one of prior 0, which is never drawn: give the prior that they were drawn from.")
    # ln((1 - eps) pi + eps P) without leaving log space: pi underflows where the decoder was sure of another secret.
    mixed = np.logaddexp(math.log1p(-smoothing) + scores, math.log(smoothing) + np.log(law[drawn]))
    # pi' lies between eps min P and 1, and -ln pi' between 0 and this.
    value_range = -math.log(smoothing * float(law[law > 0].min()))
    margin = empirical_bernstein_margin(float(mixed.var(ddof=1)), len(mixed), value_range, 1 - confidence)
    cross_entropy = float(-mixed.mean())
    # The cross-entropy of any decoder is at least H(X | Y), so H(X) minus it is at most I(X; Y).
    found = float(total) - cross_entropy
    return DecoderLeakage(cross_entropy, found, found - margin, confidence)
