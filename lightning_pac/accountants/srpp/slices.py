"""Several clipping blocks: the one number by which they enter an account, and the paper's per-slice figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import validated
from lightning_pac.information import log_mean_exp

__all__ = ["SliceCoefficients", "effective_noise_multiplier"]


@validated
def effective_noise_multiplier(clip_norms: Sequence[float], noise_stds: Sequence[float]) -> float:
    """The noise multiplier of one flat block that costs what these blocks cost: `(sum_b (c_b / s_b)^2)^(-1/2)`.

    Scaled by its noise, a record's gradient in block b has norm at most `c_b / s_b`, so the whole has at most
    the root of the sum of their squares. Every account takes this number, the amplified one too (ours).

    Args:
        clip_norms: clipping norm of each block, `c_b`.
        noise_stds: deviation of the noise on each block's sum, `s_b`, before the division by the batch size.

    Raises:
        ValueError: if the lengths differ or a number is not positive.

    Example:
        >>> effective_noise_multiplier([1.0], [2.0])
        2.0
        >>> print(f"{effective_noise_multiplier([1.0, 1.0], [2.0, 2.0]):.4f}")
        1.4142
    """
    if len(clip_norms) != len(noise_stds) or not len(clip_norms):
        raise ValueError(
            f"clip_norms has {len(clip_norms)} values and noise_stds {len(noise_stds)}, but every block has one of "
            "each."
        )
    for name, values in (("clip_norms", clip_norms), ("noise_stds", noise_stds)):
        if not all(0 < value < math.inf for value in values):
            raise ValueError(f"{name} is {values}, but must be positive and finite.")
    return 1 / math.sqrt(sum((clip / std) ** 2 for clip, std in zip(clip_norms, noise_stds, strict=True)))


@validated
@dataclass(frozen=True)
class SliceCoefficients:
    """Discounts for an adversary who sees one projection only, slice by slice (paper, Cor. D.1).

    Slice l of a step costs `gamma_l` times the unsliced cost, `gamma_l <= 1`, and 1 everywhere for one flat block.
    Over several adaptive steps these costs do not add, whatever Theorem 5.6 says (two equal blocks, a = 2, kappa = 2,
    sigma = 4: 0.50 claimed, the truth tends to 0.75), so an account with slices is for reproduction and uncertified.

    Args:
        coefficients: `gamma_l` of each slice, in [0, 1].
        weights: weight of each slice, summing to 1.
    """

    coefficients: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.coefficients) != len(self.weights) or not self.weights:
            raise ValueError(
                f"coefficients has {len(self.coefficients)} values and weights {len(self.weights)}, but every slice "
                "has one of each."
            )
        if not all(0 <= value <= 1 + 1e-9 for value in self.coefficients):
            raise ValueError("coefficients must lie in [0, 1]: build them with SliceCoefficients.from_blocks.")
        if not (min(self.weights) >= 0 and abs(sum(self.weights) - 1) <= 1e-9):
            raise ValueError(f"weights sum to {sum(self.weights)}, but must be nonnegative and sum to 1.")

    @classmethod
    def from_blocks(
        cls,
        projection_norms: npt.ArrayLike,
        clip_norms: Sequence[float],
        noise_stds: Sequence[float],
        weights: Sequence[float] | None = None,
    ) -> SliceCoefficients:
        """Coefficients of slices over clipping blocks, `(sum_b c_b pi_lb)^2 / sum_b (s_b pi_lb)^2` times sigma_eff^2.

        Args:
            projection_norms: norm of each unit vector within each block, `pi_lb`, shape (slices, blocks).
            clip_norms: clipping norm of each block, shape (blocks,).
            noise_stds: noise deviation on each block's sum, shape (blocks,).
            weights: weight of each slice; equal if left out.

        Raises:
            ValueError: if the shapes do not fit, or a row is not that of a unit vector.

        Example:
            >>> slices = SliceCoefficients.from_blocks([[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0], [4.0, 4.0])
            >>> [round(coefficient, 9) for coefficient in slices.coefficients]
            [0.5, 0.5]
        """
        sigma = effective_noise_multiplier(clip_norms, noise_stds)
        norms = np.atleast_2d(np.asarray(projection_norms, dtype=np.float64))
        if norms.shape[1] != len(clip_norms) or not np.allclose(np.sum(norms**2, axis=1), 1):
            raise ValueError(
                "projection_norms must hold a row per slice and a column per block, with squares summing to 1."
            )
        gains = (norms @ np.asarray(clip_norms)) ** 2 / (norms**2 @ np.square(noise_stds))
        if weights is not None and len(weights) != len(norms):
            raise ValueError(f"weights has {len(weights)} values, but projection_norms {len(norms)} slices.")
        # At most 1 by Cauchy and Schwarz; the minimum takes off rounding.
        coefficients = np.minimum(gains * sigma**2, 1.0)
        share = [1 / len(norms)] * len(norms) if weights is None else [float(weight) for weight in weights]
        return cls(tuple(coefficients.tolist()), tuple(share))

    def average(self, cost: float) -> float:
        """Ave: the weighted mean of the slice costs, where the unsliced one is `cost`."""
        total = math.fsum(c * w for c, w in zip(self.coefficients, self.weights, strict=True))
        return cost * total / math.fsum(self.weights)  # which may miss 1 a little

    def joint(self, cost: float, order: float, aggregation: Literal["logsumexp", "max"] = "logsumexp") -> float:
        """Joint: `1/(a-1) ln sum_l w_l exp((a-1) cost_l)`, or the paper's largest slice cost, which is never less."""
        costs = cost * np.asarray(self.coefficients)
        if aggregation == "max":
            return float(costs.max())
        return float(log_mean_exp((order - 1) * costs, self.weights)) / (order - 1)
