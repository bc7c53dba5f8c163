"""scikit-learn estimators as boxes for `privatize`."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FittedEstimator"]


class FittedEstimator:
    """Fits a scikit-learn estimator to a subset and returns what it learned.

    Attributes that are matrices or vectors of one length are put side by side: `coef_` (k x d) and `intercept_` (k,)
    give k x (d + 1). A single attribute keeps its shape. Needs scikit-learn, for instance by the extra `examples`.

    Args:
        estimator: Not fitted; each run fits a clone. Its `random_state`, if it has one, must be a number.
        attributes: Names of fitted attributes, for instance `"cluster_centers_"`.

    Raises:
        ValueError: If `random_state` is left open, or no attribute is named.

    Example:
        >>> from sklearn.decomposition import PCA
        >>> box = FittedEstimator(PCA(1, random_state=0), "components_")
        >>> box(np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])).round(3).tolist()
        [[0.707, 0.707]]
    """

    def __init__(self, estimator: Any, *attributes: str) -> None:
        if not attributes:
            raise ValueError("No fitted attribute is named: say what to release, for instance 'cluster_centers_'.")
        for name, value in estimator.get_params(deep=True).items():
            if name.split("__")[-1] == "random_state" and not isinstance(value, int | np.integer):
                raise ValueError(
                    f"{name} of {type(estimator).__name__} is {value!r}: give a number, since a box must be "
                    "deterministic."
                )
        self.estimator = estimator
        self.attributes = attributes

    def __call__(self, *arrays: Any) -> npt.NDArray[np.float64]:
        """The learned numbers of one subset."""
        from sklearn.base import clone

        fitted = clone(self.estimator).fit(*arrays)
        values = [np.asarray(getattr(fitted, name), dtype=np.float64) for name in self.attributes]
        if len(values) == 1:
            return values[0]
        if any(value.ndim == 0 or value.ndim > 2 or len(value) != len(values[0]) for value in values):
            return np.concatenate([value.ravel() for value in values])
        return np.column_stack(values)
