"""Noise that protects one record's membership, for one release."""

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from lightning_pac._validation import validated
from lightning_pac.information import Array, check_budget
from lightning_pac.mechanisms.certified import Certificate
from lightning_pac.mechanisms.pac_noise.directions import Axes
from lightning_pac.mechanisms.pac_noise.gaussian import GaussianNoise
from lightning_pac.mechanisms.variances import linear_variances

__all__ = ["coupled_differences", "individual_noise"]


@validated
def individual_noise(outputs: npt.ArrayLike, memberships: npt.ArrayLike, budget: float) -> GaussianNoise:
    r"""Coordinate-wise noise with $I(1[u \in S]; M(S) + B) \le b$ for every single record u.

    For a record u of prior p, the law of the output given u in and the law given u out are coupled, and

    $$I \le p(1-p)\big(\mathrm{KL}(P_1 \| P_0) + \mathrm{KL}(P_0 \| P_1)\big)
    \le 2p(1-p) \sum_i \frac{\sigma_i(u)}{2 e_i}, \qquad \sigma_i(u) = E[(M(X)_i - M(X')_i)^2].$$

    The linear rule on $2p(1-p)\sigma(u)$ gives each record's noise; each coordinate gets the largest over records. At
    p = 1/2 that is half of what the paper adds.

    It protects one record against one release, and its `mutual_information` is what that tells about the membership of
    any single record: about the secret as a whole it may tell far more. It says nothing about several records at once,
    and a second release is not covered by `AdaptiveComposition`. Noise for the whole secret (`calibrate_gaussian`)
    protects every record too, and needs less power where a small table ties one record to many others.

    Args:
        outputs: One row per secret, all equally likely, shape (m, d).
        memberships: Table of shape (N, m), `SecretSpace.membership_table()`, each record in half of the subsets.
        budget: Mutual information b in nats.

    Raises:
        ValueError: If a record is not in exactly half of the subsets, or the budget is not positive.

    Source: *PAC-Private Algorithms*, Appendix A, with the coupling and the factor p(1-p) made explicit (ours).

    Example:
        >>> round(individual_noise([[0.0], [1.0]], [[True, False]], budget=0.5).power, 9)
        0.5
    """
    check_budget(budget)
    matrix = np.asarray(outputs, dtype=np.float64)
    differences = coupled_differences(matrix, memberships)
    # 2 p (1 - p) = 1/2 for balanced subsets.
    variances = linear_variances(differences / 2, np.full(len(differences), budget)).max(axis=0)
    # 2 p (1 - p) sum_i sigma_i / (2 e_i) at p = 1/2; coordinates without differences have no noise and add nothing.
    bound = max(
        float(0.25 * np.divide(row, variances, out=np.zeros_like(row), where=row > 0).sum()) for row in differences
    )
    mean = matrix.mean(axis=0)
    # A constant coordinate is released exactly; its mean may differ from it in the last bit.
    constant = (matrix == matrix[0]).all(axis=0)
    mean[constant] = matrix[0, constant]
    certificate = Certificate(bound, 1.0, "individual", about="the membership of any single record")
    return GaussianNoise(Axes(mean), variances, certificate, "individual", matrix)


@validated
def coupled_differences(outputs: npt.ArrayLike, memberships: npt.ArrayLike) -> Array:
    """Mean squared difference along each coordinate between runs with and without a record.

    For each record, the subsets with it are matched one to one with those without it, such that the outputs lie as
    close as possible. Any one coupling of the two laws, the same for all coordinates, is valid; this one is the best.

    Args:
        outputs: One row per secret, shape (m, d).
        memberships: Table of shape (N, m), each record in half of the subsets.

    Returns:
        Shape (N, d).

    Raises:
        ValueError: If the shapes do not fit, or a record is not in exactly half of the subsets.
    """
    matrix = np.asarray(outputs, dtype=np.float64)
    table = np.asarray(memberships, dtype=np.bool_)
    if matrix.ndim != 2 or not np.isfinite(matrix).all() or table.ndim != 2 or table.shape[1] != len(matrix):
        raise ValueError(f"outputs {matrix.shape} and memberships {table.shape} must hold one finite row per subset.")
    if (table.sum(axis=1) * 2 != len(matrix)).any():
        raise ValueError(
            "memberships must put every record into half of the subsets: use BalancedSubsets or ComplementaryHalves."
        )
    centred = matrix - matrix.mean(axis=0)
    squares = (centred**2).sum(axis=1)
    # All |a - b|^2 by one product. Cancellation here can only choose a worse coupling: any coupling is sound.
    distances = np.maximum(squares[:, None] + squares - 2 * centred @ centred.T, 0.0)
    differences = np.empty((len(table), matrix.shape[1]))
    for record, members in enumerate(table):
        inside, outside = np.flatnonzero(members), np.flatnonzero(~members)
        # Between uniform laws of equal size the best coupling is a permutation (Birkhoff).
        rows, columns = linear_sum_assignment(distances[np.ix_(inside, outside)])
        differences[record] = ((matrix[inside[rows]] - matrix[outside[columns]]) ** 2).mean(axis=0)
    return differences
