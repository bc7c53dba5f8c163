"""The Gaussian sliced Wasserstein mechanism: release a query's answer so that an attribute stays hidden."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import numpy as np

from lightning_pac._mutex import Mutex
from lightning_pac._validation import validated
from lightning_pac.cards import Estimate, Guarantee, PrivacyCard
from lightning_pac.exceptions import PrivacyError
from lightning_pac.information import Array
from lightning_pac.ledger import LedgerArgument, LedgerHandle, PrivacyLedger
from lightning_pac.mechanisms.drowned import warn_if_drowned
from lightning_pac.mechanisms.sliced_wasserstein.calibration import (
    SlicedNotion,
    isotropic_covariance,
    optimized_covariance,
    sliced_cost,
    unsliced_cost,
)
from lightning_pac.mechanisms.sliced_wasserstein.distances import quantile_differences, slice_sensitivities
from lightning_pac.randomness import SecureGenerator, release_grid, round_to_grid, secure_generator
from lightning_pac.scenarios.attribute import AttributeScenario, Query
from lightning_pac.scenarios.slice_profile import SliceProfile

__all__ = ["SlicedWassersteinMechanism"]

STATIC_CURRENCY = "static_pufferfish"
"""One joint release a ledger: costs that rest on W-infinity distances do not add."""

_one_release = Mutex()

# Slices of the profile along which couplings are tried, beside the axes.
_COUPLING_DIRECTIONS = 16


@validated
class SlicedWassersteinMechanism:
    """Adds Gaussian noise that hides which value an attribute has (SRPP paper, Theorems 4.7 and 4.8).

    For every pair of values and every slice, the projected answers of the two conditional laws differ by at most their
    W-infinity distance; the noise makes the Rényi divergence between the projections at most epsilon, on average over
    the slices (`ave`) or jointly (`joint`).

    A sliced guarantee speaks of adversaries who see one projection. It is not closed under post-processing that mixes
    directions, so the card gives the unsliced cost beside it: what an adversary who sees the whole answer can learn at
    most.

    Args:
        scenario: the secret, its pairs, and the world the noise is calibrated on, which is public.
        query: function of the data of one value, returning one row a record; None where data are outputs already.
        profile: the slices.
        epsilon: sliced Rényi budget in nats.
        renyi_order: order of the divergence, above 1.
        notion: `joint` or `ave`.
        covariance: `isotropic`, or `optimized` for the shape of least noise power.
        joint: `logsumexp` (ours, tighter), or `max` as in the paper's Theorem 4.8.
        ledger: where the release is charged before it is made.
        generator: source of the noise; a seeded one is for tests.

    Raises:
        ValueError: if a budget or an order is out of range, or the query's outputs do not fit the profile.

    Example:
        >>> scenario = AttributeScenario.from_shifts({"a": [0.0, 0.0], "b": [1.0, 0.0]})
        >>> mechanism = SlicedWassersteinMechanism(
        ...     scenario, None, SliceProfile.coordinate(2), epsilon=1.0, renyi_order=4, notion="joint"
        ... )
        >>> mechanism.release([1.0, 0.0]).shape
        (2,)
    """

    def __init__(
        self,
        scenario: AttributeScenario,
        query: Query | None,
        profile: SliceProfile,
        epsilon: float,
        renyi_order: float = 4.0,
        notion: SlicedNotion = "joint",
        covariance: Literal["isotropic", "optimized"] = "isotropic",
        joint: Literal["logsumexp", "max"] = "logsumexp",
        ledger: LedgerArgument | None = None,
        generator: SecureGenerator | None = None,
    ) -> None:
        if covariance not in ("isotropic", "optimized"):
            raise ValueError(f'covariance is {covariance!r}, but must be "isotropic" or "optimized".')
        self.scenario, self.query, self.profile = scenario, query, profile
        self.epsilon, self.renyi_order, self.notion, self.joint = epsilon, renyi_order, notion, joint
        self._outputs = scenario.outputs(query)
        self.sensitivities = slice_sensitivities(scenario, self._outputs, profile)
        calibrate = isotropic_covariance if covariance == "isotropic" else optimized_covariance
        self.covariance: Array = calibrate(self.sensitivities, profile, epsilon, renyi_order, notion, joint)
        self._factor = np.linalg.cholesky(self.covariance)
        self._generator = generator
        self._ledger = ledger

    @property
    def power(self) -> float:
        """Expected squared norm of the noise, the trace of its covariance."""
        return float(np.trace(self.covariance))

    @property
    def cost(self) -> float:
        """The sliced Rényi cost that was reached, in nats: epsilon unless all laws are equal."""
        return sliced_cost(
            self.sensitivities, self.profile, self.covariance, self.renyi_order, self.notion, joint=self.joint
        )

    @property
    def unsliced_epsilon(self) -> float:
        """Rényi Pufferfish cost of the whole answer, in nats: the best of several couplings, so an upper bound."""
        assert self.scenario.pairs is not None
        directions = [*self.profile.directions[:_COUPLING_DIRECTIONS], *np.eye(self.profile.dimension)]
        costs = []
        for pair in self.scenario.pairs:
            first, second = (self._outputs[value] for value in pair)
            # Any coupling bounds the cost; sorting along a direction gives one that is nearly optimal
            # along it.
            couplings = (quantile_differences(first, second, direction) for direction in directions)
            costs.append(min(unsliced_cost([matches], self.covariance, self.renyi_order) for matches in couplings))
        return max(costs)

    def release(self, data: Any) -> Array:
        """Answer the query on the private data, with noise.

        Rows of an answer with several records are noised independently: each record's own secret has the guarantee.

        Args:
            data: what the query takes.

        Returns:
            The noised answer, of the answer's shape, rounded to a public grid.

        Raises:
            ValueError: if the answer is not finite or has another dimension than the calibration.
            PrivacyError: if the ledger already has a static release; put both queries into one vector instead.
        """
        given = data if self.query is None else self.query(data)
        try:
            answer = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError):
            # NumPy names the cell, which is private.
            raise ValueError("The answer holds something that is no number: let the query return numbers.") from None
        if answer.ndim not in (1, 2) or answer.shape[-1] != self.profile.dimension:
            raise ValueError(
                f"The answer has shape {answer.shape}, but the noise is for dimension {self.profile.dimension}."
            )
        if not np.isfinite(answer).all():
            raise ValueError(
                "The query returned NaN or infinity on the private data: make it finite before its release."
            )
        if self._ledger is not None:
            with LedgerHandle(self._ledger) as ledger:
                self._charge(ledger)
        generator = self._generator or secure_generator()
        # The grid follows the smallest deviation of the noise in any direction.
        noise = generator.normal(answer.shape) @ self._factor.T
        step = release_grid(float(np.sqrt(np.linalg.eigvalsh(self.covariance)[0])))
        released = np.asarray(round_to_grid(answer + noise, step), dtype=np.float64)
        rows = released.size / self.profile.dimension
        warn_if_drowned(
            released,
            rows * self.power,
            "ask for fewer numbers, narrow the values that the query may take, or give a larger epsilon",
        )
        return released

    def card(self) -> PrivacyCard:
        """The promise of a release by this mechanism, and its limits."""
        kind = "joint over the slices" if self.notion == "joint" else "on average over the slices"
        name = f"srpp_{self.notion}_epsilon"
        meaning = (
            f"Seen along the profile's slices, {kind}, the answers for any two protected values differ by at most this "
            f"Rényi divergence of order {self.renyi_order:g}."
        )
        unsliced = (
            f"Seen as a whole, the answers for any two protected values differ by at most this Rényi divergence of "
            f"order {self.renyi_order:g}; compare releases by this figure."
        )
        figures = [(name, self.cost, meaning), ("rpp_epsilon", self.unsliced_epsilon, unsliced)]
        exact = self.scenario.exact
        note = "distances between samples of laws that are not known" if not exact else ""
        return PrivacyCard(
            title="Sliced Wasserstein release",
            secret=f"Which of {len(self.scenario.values)} values a record's secret attribute has.",
            guarantees=tuple(Guarantee(key, value, "nats", text) for key, value, text in figures if exact),
            estimates=tuple(
                Estimate(key, value, "nats", text, method=note) for key, value, text in figures if not exact
            ),
            conditions=(
                "The adversary believes the world that the noise was calibrated on; that world is public and not "
                "the released table.",
                "The sliced figure protects against adversaries who see one projection; mixing directions afterwards "
                "is not covered by it, only by the unsliced one.",
                "This is the only static release about these data: such costs do not add up, not even when each is 0.",
                "Records are independent given their secrets, and each appears in one row of the answer.",
            ),
            details={
                "renyi_order": self.renyi_order,
                "notion": self.notion,
                "noise_power": self.power,
                **self.profile.to_dict(),
            },
        )

    def _charge(self, ledger: PrivacyLedger) -> None:
        with _one_release:  # no second release between the look and the charge of a first
            self._charge_once(ledger)

    def _charge_once(self, ledger: PrivacyLedger) -> None:
        if ledger.spent(STATIC_CURRENCY) > 0:
            raise PrivacyError(
                f"{ledger.path} already has a static release, and costs that rest on W-infinity distances do not add "
                "(for fair bits X1, X2 and the secret X1 xor X2, each bit alone costs nothing and both reveal it): put "
                "all queries into one vector and release that once."
            )
        declaration = {
            "renyi_order": self.renyi_order,
            "notion": self.notion,
            "noise": hashlib.sha256(self.covariance.tobytes()).hexdigest(),
        }
        # Never 0, not even for equal laws: what is spent shows that the one release was made.
        ledger.account("static release", STATIC_CURRENCY, declaration).charge(max(self.cost, self.epsilon))
