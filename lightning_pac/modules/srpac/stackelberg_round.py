"""One round of the game between noise and decoder, apart from the loop that runs it."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from lightning_pac.accountants import GaussianReference, reference_offset
from lightning_pac.audits import DecoderLeakage, decoder_leakage
from lightning_pac.information import Array, check_budget
from lightning_pac.mechanisms import OutputLaw, ReleasedMechanism, certify_mechanism, logdet_information
from lightning_pac.mechanisms.certified import scale_to_bound
from lightning_pac.modules.srpac.decoders import Decoder
from lightning_pac.modules.srpac.perturbations import Perturbation
from lightning_pac.modules.srpac.secret_table import SecretTable
from lightning_pac.modules.srpac.utility import SquaredNorm
from lightning_pac.randomness import SecureGenerator

__all__ = ["StackelbergPlay", "budget_penalty"]

Penalty = Literal["one_sided", "two_sided"]


def budget_penalty(cross_entropy: Tensor, target: float, penalty: Penalty = "one_sided") -> Tensor:
    r"""The leader's penalty for missing the conditional entropy asked for.

    `"two_sided"` is $(H_c - \hat\beta)^2$. `"one_sided"` is $(\hat\beta - H_c)_+^2$: as printed in the paper, with the
    sign turned, it would punish noise that meets the constraint and let noise pass that does not.

    Args:
        cross_entropy: H_c, the follower's.
        target: The conditional entropy asked for, with its margin, in the same units.
        penalty: Which.

    Source: *Residual-PAC*, Algorithms 2 and 6.

    Example:
        >>> budget_penalty(torch.tensor(1.0), 3.0).item(), budget_penalty(torch.tensor(4.0), 3.0).item()
        (4.0, 0.0)
    """
    missing = target - cross_entropy
    return missing**2 if penalty == "two_sided" else missing.clamp_min(0) ** 2


class StackelbergPlay(nn.Module):
    """A decoder and a perturbation, and what each of them minimizes.

    Args:
        decoder: The follower.
        perturbation: The leader.
        budget: Mutual information in nats that the noise should leave.
        utility: Cost of noise draws; the squared length if None.
        penalty: `"one_sided"` (Algorithm 6) or `"two_sided"` (Algorithm 2).
        penalty_weight: Of the squared miss in nats, against a utility in units of its initial value.
        margin: Nats added to the conditional entropy asked for.

    Raises:
        ValueError: If the budget or the weights are out of range.
    """

    def __init__(
        self,
        decoder: Decoder,
        perturbation: Perturbation,
        budget: float,
        utility: Callable[[Tensor], Tensor] | None = None,
        penalty: Penalty = "one_sided",
        penalty_weight: float = 100.0,
        margin: float = 0.0,
    ) -> None:
        super().__init__()
        check_budget(budget)
        if penalty not in ("one_sided", "two_sided"):
            raise ValueError(f'penalty must be "one_sided" or "two_sided", got {penalty!r}.')
        if not (penalty_weight > 0 and margin >= 0):
            raise ValueError(f"Need penalty_weight > 0 and margin >= 0, got {penalty_weight!r} and {margin!r}.")
        self.decoder, self.perturbation = decoder, perturbation
        self.utility = SquaredNorm() if utility is None else utility
        self.budget, self.penalty, self.penalty_weight, self.margin = budget, penalty, penalty_weight, margin
        self.register_buffer("entropy", torch.tensor(math.nan))
        self.register_buffer("utility_unit", torch.tensor(1.0))

    @property
    def trains_decoder(self) -> bool:
        """Whether the decoder has parameters to train."""
        return any(parameter.requires_grad for parameter in self.decoder.parameters())

    @torch.no_grad()
    def prepare(self, table: SecretTable) -> None:
        """Start from noise of the right size, in the units of the table.

        For a density over records, leakage is measured from their cross-entropy under the Gaussian with their moments.
        It is at least their entropy, so a good decoder sees too much leakage rather than too little.

        Raises:
            ValueError: If the budget reaches the entropy, the noise does not fit the outputs, or the decoder's support
                misses the data.
        """
        table.law.check_budget(self.budget)
        if self.perturbation.dimension != table.dimension:
            raise ValueError(
                f"The perturbation has {self.perturbation.dimension} coordinates and the mechanism's output "
                f"{table.dimension}: make it with dimension {table.dimension}."
            )
        candidates = table.candidates(self.decoder.decodes)
        if not self.decoder.covers(candidates):
            raise ValueError(
                f"The support of {type(self.decoder).__name__} misses the data: some secrets are outside of what it "
                "gives any probability, so its cross-entropy is infinite."
            )
        covariance = np.cov(table.law.outputs.T, aweights=table.law.weights, ddof=0).reshape(table.dimension, -1)
        shape = self.perturbation.noise()
        # The size at which the log-det formula meets the budget: a start of the right order, which nothing rests on.
        scaled = scale_to_bound(shape, self.budget, lambda noise: logdet_information(covariance, noise))
        # Power is quadratic in the noise.
        self.perturbation.scale_(math.sqrt(scaled.power / shape.power))
        deviations = torch.from_numpy(np.sqrt(np.diag(scaled.second_moment()))).float()
        outputs = table.get_buffer("outputs")
        self.decoder.standardize(outputs, candidates.float(), deviations.to(outputs))
        noise, _ = self.perturbation.rsample(4096)
        self.get_buffer("utility_unit").fill_(float(self.utility(noise).mean()))
        self.get_buffer("entropy").fill_(self._entropy(table, candidates))

    def decoder_loss(self, secrets: Tensor, outputs: Tensor) -> Tensor:
        """The follower's cross-entropy under fresh noise that it cannot change."""
        with torch.no_grad():
            noise, _ = self.perturbation.rsample(len(outputs))
        return -self.decoder.log_prob(secrets, outputs + noise).mean()

    def leader_loss(self, secrets: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The leader's objective and the follower's cross-entropy, under fresh noise."""
        noise, factors = self.perturbation.rsample(len(outputs))
        cross_entropy = -(factors * self.decoder.log_prob(secrets, outputs + noise)).mean()
        # E K(B) in units of what it was at the start, so that one `penalty_weight` fits every utility and scale.
        cost = (factors * self.utility(noise)).mean() / self.get_buffer("utility_unit")
        # H(X) - b: the mutual information is at most b if the conditional entropy is at least that.
        target = float(self.get_buffer("entropy")) - self.budget + self.margin
        missing = budget_penalty(cross_entropy, target, self.penalty)
        return cost + self.penalty_weight * missing, cross_entropy

    @torch.no_grad()
    def leakage(self, table: SecretTable, num_draws: int = 2048, confidence: float = 0.99) -> DecoderLeakage:
        """The decoder's probabilities of the table's secrets, given fresh releases."""
        drawn = table.draw(num_draws)
        noise, _ = self.perturbation.rsample(num_draws)
        candidates, log_prior = table.candidates(self.decoder.decodes), table.get_buffer("log_prior")
        posterior = self.decoder.log_posterior(table.get_buffer("outputs")[drawn] + noise, candidates, log_prior)
        scores = posterior.gather(1, drawn[:, None])[:, 0]
        return decoder_leakage(scores.cpu().numpy(), drawn.cpu().numpy(), _prior(table), confidence)

    def certify(
        self,
        law: OutputLaw,
        secret: str,
        confidence: float,
        num_draws: int,
        generator: SecureGenerator | None,
    ) -> ReleasedMechanism:
        """The noise scaled until a proven bound meets the budget; the decoder plays no part in it."""
        plain = isinstance(self.utility, SquaredNorm)

        def loss(noise: Array) -> Array:
            return np.asarray(self.utility(torch.from_numpy(noise).float()).double().cpu().numpy())

        return certify_mechanism(
            self.perturbation.noise(),
            law,
            self.budget,
            confidence,
            secret=secret,
            loss=None if plain else loss,
            num_draws=num_draws,
            generator=generator,
        )

    def _entropy(self, table: SecretTable, candidates: Tensor) -> float:
        law = self.decoder(table.get_buffer("outputs")[:1])
        if law.support is not None and law.support.is_discrete:
            prior = _prior(table)
            return float(-(prior[prior > 0] * np.log(prior[prior > 0])).sum())
        records = candidates.double().cpu().numpy()
        covariance = np.cov(records.T, ddof=0).reshape(records.shape[1], -1)
        # Coordinates in which records do not vary would make the covariance singular.
        ridge = np.diag(np.maximum(1e-3 * np.diag(covariance), 1e-6))
        return reference_offset(records, GaussianReference(records.mean(axis=0), covariance + ridge))


def _prior(table: SecretTable) -> Array:
    weights = table.law.weights
    assert weights is not None
    return weights
