"""Decoders: normalized laws of the secret given a release."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution, Independent, MixtureSameFamily, Normal
from typing_extensions import override

from lightning_pac._validation import Count, validated
from lightning_pac.modules.srpac.perturbations import Perturbation

__all__ = [
    "Decoder",
    "GaussianDecoder",
    "MembershipDecoder",
    "MixtureDecoder",
    "PosteriorDecoder",
    "SoftmaxDecoder",
]

# Pairs of a release and a possible secret, times the size of either, that are held at a time.
_CHUNK_VALUES = 2**23


@validated
class Decoder(nn.Module, ABC):
    """A follower: for each release a law of the secret.

    A subclass returns that law from `forward`. Every law is normalized, so that its cross-entropy is never below the
    conditional entropy; a score that is not a probability could report leakage that is not there.

    Attributes:
        decodes: What the law is over: the `"index"` of a finite secret, or its `"features"` (the record as a vector, or
            membership bits).
    """

    decodes: Literal["index", "features"] = "features"

    def __init__(self, release_size: Count) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(release_size))
        self.register_buffer("spread", torch.ones(release_size))

    @abstractmethod
    def forward(self, release: Tensor) -> Distribution:
        """Law of the secret given releases of shape (batch, d), with batch shape (batch,)."""

    def log_prob(self, secret: Tensor, release: Tensor) -> Tensor:
        """Log-probability (or density) of the secrets given their releases, shape (batch,)."""
        law: Distribution = self(release)
        return law.log_prob(secret)

    @torch.no_grad()
    def log_posterior(self, release: Tensor, candidates: Tensor, log_prior: Tensor) -> Tensor:
        """Log-probability of each of m possible secrets given each release, shape (batch, m), normalized over them.

        A density over records is weighed by the prior of the candidates, so that it becomes a probability that can be
        compared with their entropy.

        Args:
            release: Shape (batch, d).
            candidates: What the decoder decodes, for each possible secret: shape (m,) or (m, p).
            log_prior: Shape (m,).
        """
        # In chunks: the scores of all candidates for all releases may not fit into memory.
        width = max(1, candidates[0].numel(), release.shape[1])
        rows = max(1, _CHUNK_VALUES // (len(candidates) * width))
        parts = []
        for start in range(0, len(release), rows):
            chunk = release[start : start + rows]
            # Candidates (m, 1, ...) against releases (rows,) give (m, rows).
            scores = self(chunk).log_prob(candidates[:, None]).T
            if self.decodes == "features":
                scores = scores + log_prior
            # ln pi(x | r) + ln P(x), normalized over the candidates, in float64 since these may be many.
            parts.append(torch.log_softmax(scores.double(), dim=1))
        return torch.cat(parts)

    def covers(self, candidates: Tensor) -> bool:
        """Whether the law's support holds these secrets."""
        size = len(self.get_buffer("centre"))
        law: Distribution = self(self.get_buffer("centre").reshape(1, size))
        support = law.support
        inside = True if support is None else support.check(candidates)  # type: ignore[no-untyped-call]
        return bool(torch.as_tensor(inside).all())

    @torch.no_grad()
    def standardize(self, outputs: Tensor, secrets: Tensor, noise_deviation: Tensor) -> None:
        """Take the units in which releases arrive from the outputs (m, d) and the noise's deviations (d,)."""
        self.get_buffer("centre").copy_(outputs.mean(dim=0))
        # Output and noise are independent, so their variances add up to that of a release.
        variance = outputs.var(dim=0, correction=0) + noise_deviation**2
        self.get_buffer("spread").copy_(variance.sqrt().clamp_min(1e-12))

    def standard(self, release: Tensor) -> Tensor:
        """Releases in those units."""
        return (release - self.get_buffer("centre")) / self.get_buffer("spread")


@validated
class _RecordDecoder(Decoder):
    """A density over records, in the units of the records' own spread."""

    def __init__(self, release_size: Count, secret_size: Count) -> None:
        super().__init__(release_size)
        self.secret_size = secret_size
        self.register_buffer("secret_centre", torch.zeros(secret_size))
        self.register_buffer("secret_spread", torch.ones(secret_size))

    @override
    @torch.no_grad()
    def standardize(self, outputs: Tensor, secrets: Tensor, noise_deviation: Tensor) -> None:
        super().standardize(outputs, secrets, noise_deviation)
        self.get_buffer("secret_centre").copy_(secrets.mean(dim=0))
        self.get_buffer("secret_spread").copy_(secrets.std(dim=0, correction=0).clamp_min(1e-3))

    def normal(self, means: Tensor, log_deviations: Tensor) -> Distribution:
        """Independent normals with a floor on their deviations, shape (..., secret_size)."""
        spread = self.get_buffer("secret_spread")
        location = self.get_buffer("secret_centre") + spread * means
        # Around a single record a density has no largest value: the floor, a thousandth of the spread, bounds it.
        scale = spread * (log_deviations.clamp(-6, 6).exp() + 1e-3)
        return Independent(Normal(location, scale), 1)


@validated
class GaussianDecoder(_RecordDecoder):
    """A Gaussian over records, with mean and deviations from a network.

    Args:
        release_size: Coordinates d of a release.
        secret_size: Numbers p in a record.
        hidden_size: Width of the network.
    """

    def __init__(self, release_size: Count, secret_size: Count, hidden_size: Count = 64) -> None:
        super().__init__(release_size, secret_size)
        self.network = _network(release_size, hidden_size, 2 * secret_size)

    @override
    def forward(self, release: Tensor) -> Distribution:
        means, log_deviations = self.network(self.standard(release)).chunk(2, dim=-1)
        return self.normal(means, log_deviations)


@validated
class MixtureDecoder(_RecordDecoder):
    """A mixture density network over records.

    Args:
        release_size: Coordinates d of a release.
        secret_size: Numbers p in a record.
        num_components: Gaussians in the mixture.
        hidden_size: Width of the network.

    Source: Bishop (1994).
    """

    def __init__(
        self, release_size: Count, secret_size: Count, num_components: Count = 8, hidden_size: Count = 64
    ) -> None:
        super().__init__(release_size, secret_size)
        self.num_components = num_components
        self.network = _network(release_size, hidden_size, num_components * (2 * secret_size + 1))

    @override
    def forward(self, release: Tensor) -> Distribution:
        outputs = self.network(self.standard(release))
        logits, parameters = outputs[..., : self.num_components], outputs[..., self.num_components :]
        # (..., K) logits, and (..., K, p) means and log-deviations.
        means, log_deviations = parameters.unflatten(-1, (self.num_components, -1)).chunk(2, dim=-1)
        return MixtureSameFamily(Categorical(logits=logits), self.normal(means, log_deviations))


@validated
class SoftmaxDecoder(Decoder):
    """A probability for each value of a finite secret, from a network.

    Args:
        release_size: Coordinates d of a release.
        num_secrets: Possible secrets m.
        hidden_size: Width of the network.
    """

    decodes = "index"

    def __init__(self, release_size: Count, num_secrets: Count, hidden_size: Count = 64) -> None:
        super().__init__(release_size)
        self.network = _network(release_size, hidden_size, num_secrets)

    @override
    def forward(self, release: Tensor) -> Distribution:
        return Categorical(logits=self.network(self.standard(release)))


@validated
class MembershipDecoder(Decoder):
    """A probability for each record that it was used, all independent given the release.

    Its cross-entropy is that of the membership bits, which is never below the conditional entropy of the subset.

    Args:
        release_size: Coordinates d of a release.
        num_records: Records n, whose bits the secret's features are.
        hidden_size: Width of the network.
    """

    def __init__(self, release_size: Count, num_records: Count, hidden_size: Count = 64) -> None:
        super().__init__(release_size)
        self.network = _network(release_size, hidden_size, num_records)

    @override
    def forward(self, release: Tensor) -> Distribution:
        return Independent(Bernoulli(logits=self.network(self.standard(release))), 1)


@validated
class PosteriorDecoder(Decoder):
    """The best response itself, for a finite secret: the posterior under the noise as it is now. Nothing is trained.

    Args:
        outputs: Output of each possible secret, shape (m, d).
        perturbation: The leader's noise.
        prior: Shape (m,); uniform if None.

    Source: ours; *Residual-PAC*, Proposition 5, shows that the best response is the posterior.
    """

    decodes = "index"

    def __init__(self, outputs: Tensor, perturbation: Perturbation, prior: Tensor | None = None) -> None:
        table = torch.as_tensor(outputs, dtype=torch.float32)
        if table.ndim != 2:
            raise ValueError(f"outputs must have shape (m, d), got {tuple(table.shape)}.")
        super().__init__(table.shape[1])
        self.register_buffer("outputs", table, persistent=False)
        law = torch.full((len(table),), 1 / len(table)) if prior is None else torch.as_tensor(prior).float()
        self.register_buffer("log_prior", law.log(), persistent=False)
        # In a list, so that the leader's parameters are not the follower's too.
        self._perturbation = [perturbation]

    @override
    def forward(self, release: Tensor) -> Distribution:
        # ln f(r - y_s) + ln P(s), shape (batch, m); as logits, they are normalized to the posterior.
        differences = release[:, None] - self.get_buffer("outputs")
        return Categorical(logits=self._perturbation[0].log_prob(differences) + self.get_buffer("log_prior"))


def _network(inputs: int, hidden: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, outputs)
    )
