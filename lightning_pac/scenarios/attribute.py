"""Attribute scenarios: a secret with finitely many values, and the law of the data given each of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_pac._validation import Seed, validated

__all__ = ["AttributeScenario"]

Value = Hashable
Query = Callable[[Any], npt.ArrayLike]


@validated
@dataclass(frozen=True, eq=False)
class AttributeScenario:
    """The belief about the data, for each value of one attribute, of an adversary who knows everything else.

    The *world* given here calibrates the noise. It is public (a census, a model, last year's table); it is not the
    private data that is released later, since noise computed from a private table is itself a release of it.

    Args:
        laws: data of each secret value: whatever the query takes.
        prior: probability of each value; left out, all are equal. Only the attack uses it.
        pairs: the pairs of values that must not be told apart; left out, all ordered pairs.
        exact: whether the laws are the world itself. Samples of an unknown law are not: what is computed from them
            is an estimate, and is reported as one.
        translates: whether the laws are one law shifted, `laws[v]` being the shift that belongs to the value v.

    Raises:
        ValueError: if there are fewer than two values, no pair, or a prior that is no distribution over the values.

    Example:
        >>> table = {"age": [31, 44, 29, 50], "sex": ["f", "m", "f", "m"]}
        >>> scenario = AttributeScenario.from_table(table, secret="sex")
        >>> scenario.values, scenario.prior_of("f")
        (('f', 'm'), 0.5)
    """

    laws: Mapping[Value, Any]
    prior: Mapping[Value, float] | None = None
    pairs: Sequence[tuple[Value, Value]] | None = None
    exact: bool = True
    translates: bool = False

    def __post_init__(self) -> None:
        _check_values("laws", self.laws)
        pairs = tuple(permutations(self.laws, 2)) if self.pairs is None else tuple(self.pairs)
        if not pairs:
            raise ValueError("pairs is empty, so nothing would be protected: name pairs, or leave it out.")
        for first, second in pairs:
            if first == second or first not in self.laws or second not in self.laws:
                raise ValueError(
                    f"pairs has ({first!r}, {second!r}), but a pair has two different values of the secret."
                )
        prior = dict.fromkeys(self.laws, 1.0 / len(self.laws)) if self.prior is None else dict(self.prior)
        # In this form NaN is refused too.
        is_law = min(prior.values(), default=-1.0) >= 0 and abs(sum(prior.values()) - 1.0) <= 1e-9
        if set(prior) != set(self.laws) or not is_law:
            raise ValueError("prior must give every value of the secret a probability, and these must sum to 1.")
        object.__setattr__(self, "pairs", pairs)
        object.__setattr__(self, "prior", prior)

    @classmethod
    def from_table(
        cls,
        world: Any,
        secret: str,
        pairs: Sequence[tuple[Value, Value]] | None = None,
        prior: Mapping[Value, float] | None = None,
    ) -> AttributeScenario:
        """The empirical laws of a table, grouped by one of its columns.

        Args:
            world: a data frame, or a mapping of column names to columns of equal length.
            secret: name of the column that is secret. The query gets rows without it.
            pairs: as for the class.
            prior: left out, the frequencies in the table.

        Raises:
            ValueError: if there is no such column, or a value of the secret has a single record: no law to hide in.
        """
        if not hasattr(world, "columns") and not isinstance(world, Mapping):
            raise TypeError(
                f"world is of type {type(world).__name__}, but must be a data frame or a mapping of columns."
            )
        columns = list(world.columns) if hasattr(world, "columns") else list(world)
        if secret not in columns:
            raise ValueError(f"secret is {secret!r}, but the world has the columns {', '.join(map(str, columns))}.")
        labels = np.asarray(world[secret])
        counts = dict(zip(*(array.tolist() for array in np.unique(labels, return_counts=True)), strict=True))
        for value, count in counts.items():
            if count < 2:
                raise ValueError(
                    f"Only one record has {secret} = {value!r}, so its law would be that record: "
                    "merge the value with another one, or leave the record out of the world."
                )
        rest = [column for column in columns if column != secret]
        return cls(
            laws={value: _rows(world, rest, labels == value) for value in counts},
            prior={value: count / len(labels) for value, count in counts.items()} if prior is None else prior,
            pairs=pairs,
        )

    @classmethod
    def from_samplers(
        cls,
        samplers: Mapping[Value, Callable[[int, np.random.Generator], Any]],
        num_samples: int,
        seed: Seed = 0,
        pairs: Sequence[tuple[Value, Value]] | None = None,
        prior: Mapping[Value, float] | None = None,
    ) -> AttributeScenario:
        """Samples of laws that can only be drawn from; distances between them are estimates, not bounds.

        Args:
            samplers: for each value a function of (number of samples, generator) that returns that many records.
            num_samples: samples of each law.
            seed: public seed of the samples.
            pairs: as for the class.
            prior: as for the class.

        Raises:
            ValueError: if there are less than two samples of each law.
        """
        _check_values("samplers", samplers)
        if num_samples < 2:
            raise ValueError(f"num_samples is {num_samples}, but a law needs at least two samples.")
        # A stream for each law: no law's samples depend on how much another sampler draws.
        generators = np.random.default_rng(seed).spawn(len(samplers))
        laws = {
            value: sampler(num_samples, generator)
            for (value, sampler), generator in zip(samplers.items(), generators, strict=True)
        }
        return cls(laws=laws, prior=prior, pairs=pairs, exact=False)

    @classmethod
    def from_shifts(
        cls,
        shifts: Mapping[Value, npt.ArrayLike],
        pairs: Sequence[tuple[Value, Value]] | None = None,
        prior: Mapping[Value, float] | None = None,
    ) -> AttributeScenario:
        """Query outputs that follow one law, shifted by a vector that depends on the secret.

        This is the closed form for aggregates that the secret determines (the law is then a point) and for any location
        family: along a unit vector u the distance is `|<u, shift_i - shift_j>|`.

        Args:
            shifts: for each value the shift of the query's output, shape (dimension,).
            pairs: as for the class.
            prior: as for the class.
        """
        _check_values("shifts", shifts)
        laws = {value: np.atleast_2d(np.asarray(shift, dtype=np.float64)) for value, shift in shifts.items()}
        return cls(laws=laws, prior=prior, pairs=pairs, translates=True)

    @classmethod
    def from_gaussians(
        cls,
        means: Mapping[Value, npt.ArrayLike],
        covariance: npt.ArrayLike | Mapping[Value, npt.ArrayLike],
        pairs: Sequence[tuple[Value, Value]] | None = None,
        prior: Mapping[Value, float] | None = None,
    ) -> AttributeScenario:
        """Query outputs that are Gaussian under each value, in closed form: see `from_shifts`.

        Args:
            means: for each value the mean, shape (dimension,).
            covariance: shape (dimension, dimension), common to all values; or one for each value.
            pairs: as for the class.
            prior: as for the class.

        Raises:
            ValueError: if covariances differ, where the W-infinity distance is infinite in some direction.

        Example:
            >>> scenario = AttributeScenario.from_gaussians({"a": [0.0, 0.0], "b": [1.0, 0.0]}, np.eye(2))
            >>> scenario.translates
            True
        """
        _check_values("means", means)
        given = covariance if isinstance(covariance, Mapping) else dict.fromkeys(means, covariance)
        if set(given) != set(means):
            raise ValueError("covariance and means must be given for the same values of the secret.")
        matrices = {value: np.atleast_2d(np.asarray(matrix, dtype=np.float64)) for value, matrix in given.items()}
        first = next(iter(means))
        for value, mean in means.items():
            if matrices[value].shape != (np.size(mean), np.size(mean)):
                raise ValueError(
                    f"covariance has shape {matrices[value].shape} for {value!r}, but its mean has dimension "
                    f"{np.size(mean)}."
                )
            if not np.allclose(matrices[value], matrices[first], rtol=1e-9, atol=0.0):
                raise ValueError(
                    f"covariance is not the same for {first!r} and {value!r}, so their W-infinity "
                    "distance is infinite and no noise hides it: bound the query's output, or take one covariance."
                )
        return cls.from_shifts(means, pairs, prior)

    @property
    def values(self) -> tuple[Value, ...]:
        """The values of the secret."""
        return tuple(self.laws)

    def prior_of(self, value: Value) -> float:
        """Probability of a value."""
        assert self.prior is not None
        if value not in self.prior:
            raise ValueError(f"value is {value!r}, but must be one of {', '.join(map(repr, self.prior))}.")
        return self.prior[value]

    def outputs(self, query: Query | None) -> dict[Value, npt.NDArray[np.float64]]:
        """The query's outputs under each value, each of shape (num_records, dimension).

        Args:
            query: function of the data of one value, returning one row a record (or one vector); None where the laws
                are already outputs.

        Raises:
            ValueError: if an output is not finite, or the dimensions differ.
        """
        outputs = {}
        for value, law in self.laws.items():
            output = np.asarray(law if query is None or self.translates else query(law), dtype=np.float64)
            output = output[None, :] if output.ndim == 1 else output
            if output.ndim != 2 or 0 in output.shape:
                raise ValueError(f"The query returned shape {output.shape} for {value!r}, not (records, dimension).")
            if not np.isfinite(output).all():
                raise ValueError(f"The query returned NaN or infinity for {value!r}: its sensitivity is infinite.")
            outputs[value] = output
        if len({output.shape[1] for output in outputs.values()}) > 1:
            raise ValueError("The query returned outputs of different dimensions for different values of the secret.")
        return outputs


def _check_values(name: str, laws: Mapping[Value, Any]) -> None:
    if len(laws) < 2:
        raise ValueError(f"{name} has {len(laws)} value(s), but a secret has at least two.")


def _rows(world: Any, columns: list[Any], selected: npt.NDArray[np.bool_]) -> Any:
    if hasattr(world, "loc"):
        return world.loc[selected, columns]
    return {column: np.asarray(world[column])[selected] for column in columns}
