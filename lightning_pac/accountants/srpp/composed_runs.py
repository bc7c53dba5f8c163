"""Several private runs on one dataset under one declared coupling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_pac._validation import validated
from lightning_pac.accountants import bounds
from lightning_pac.accountants.privacy_loss import PrivacyCurve, PrivacyEvent, privacy_curve
from lightning_pac.accountants.srpp.accountant import Notion, SRPPAccountant
from lightning_pac.scenarios import TwoWorldScenario

__all__ = ["ComposedRuns", "SRPPRun", "compose"]


@validated
@dataclass(frozen=True)
class SRPPRun:
    """One run to be composed: its account, its noise, and the steps it started.

    Args:
        accountant: terms of the run's account.
        noise_multiplier: noise deviation on the sum, in clipping norms.
        num_steps: steps, or those of each stretch.
    """

    accountant: SRPPAccountant
    noise_multiplier: float
    num_steps: int | tuple[int, ...]

    @property
    def epsilon(self) -> float:
        """Cost of this run alone, in nats."""
        return self.accountant.epsilon(self.noise_multiplier, self.num_steps)

    @property
    def divergence(self) -> float:
        """Kullback-Leibler divergence of this run alone, in nats."""
        return self.accountant.unsliced_epsilon(self.noise_multiplier, self.num_steps, 1.0)

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Everything this run releases."""
        return self.accountant.events(self.noise_multiplier, self.num_steps)


@validated
@dataclass(frozen=True)
class ComposedRuns:
    """Runs whose costs add; `compose` makes and checks it.

    Args:
        runs: at least one run, all under one declaration.

    Example:
        >>> from lightning_pac.scenarios import Poisson
        >>> accountant = SRPPAccountant(TwoWorldScenario.differential_privacy(), Poisson(0.01))
        >>> both = compose([SRPPRun(accountant, 1.3, 1000), SRPPRun(accountant, 2.0, 500)])
        >>> print(f"{both.epsilon:.3f}")
        6.433
    """

    runs: tuple[SRPPRun, ...]

    @property
    def epsilon(self) -> float:
        """Cost of all runs together, in nats, at their common order."""
        return sum(run.epsilon for run in self.runs)

    def world_success_bound(self, prior: float = 0.5) -> float:
        """Largest success of an adversary who sees the releases of every run, if all were declared beforehand.

        Args:
            prior: probability of the first world before anything is released, in (0, 1).
        """
        if self.runs[0].accountant.is_mean_square:
            return bounds.world_success_bound([1.0], [sum(run.divergence for run in self.runs)], prior)
        return self.curve.success_bound(prior)

    def epsilon_at_delta(self, delta: float = 1e-5) -> tuple[float, float]:
        """The (epsilon, delta) of all runs, if all were declared beforehand: the least epsilon, and delta.

        Args:
            delta: failure probability, in (0, 1).

        Raises:
            ValueError: if delta is not in (0, 1), or the notion is an average over batches.
        """
        return self.curve.epsilon(delta), delta

    @property
    def curve(self) -> PrivacyCurve:
        """The curve of everything that all runs release.

        Raises:
            ValueError: if the notion is an average over batches.
        """
        return privacy_curve([event for run in self.runs for event in run.events])


@validated
def compose(runs: Sequence[SRPPRun]) -> ComposedRuns:
    """Compose runs on one dataset.

    Epsilon at the Rényi order adds. What is read from the curve holds for runs whose noise and numbers of steps were
    declared before the first release, whatever their order: a run that is chosen after an earlier outcome can make
    both together tell more.

    Costs add when each holds for every coupled pair of datasets under *one common coupling* of the two worlds, as the
    path-wise, mean-square and amplified costs of one scenario do. They do not add in general, whatever Theorem 5.8 of
    the paper says: with two fair bits and their exclusive or as the secret, releasing either bit reveals nothing and
    releasing both reveals everything.

    Args:
        runs: at least one run; noise, sampling and steps may differ.

    Raises:
        ValueError: if scenarios, orders, notions or slices differ, or several steps are priced slice by slice.
    """
    if not runs:
        raise ValueError("runs is empty, but there must be a run to compose: pass at least one.")
    first = runs[0].accountant
    for run in runs[1:]:
        _check_same("scenarios", first.scenario, run.accountant.scenario)
        _check_same("Rényi orders", first.renyi_order, run.accountant.renyi_order)
        _check_same("notions", first.notion, run.accountant.notion)
    if any(run.accountant.slices is not None for run in runs):
        raise ValueError(
            "Per-slice costs of several clipping blocks do not add over runs: leave slices out to compose "
            "unsliced costs."
        )
    return ComposedRuns(tuple(runs))


def _check_same(what: str, first: TwoWorldScenario | float | Notion, other: TwoWorldScenario | float | Notion) -> None:
    if first != other:
        raise ValueError(
            f"Runs with different {what} do not compose, {first} and {other}: two releases that each reveal nothing of "
            "an exclusive or of two bits reveal it together, so account all runs under one declaration."
        )
