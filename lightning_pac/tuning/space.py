"""Public distributions that settings are drawn from, independently of all data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from lightning_pac._validation import Finite, Positive, validated
from lightning_pac.randomness import SecureGenerator, secure_generator

__all__ = ["Choice", "Integers", "LogUniform", "SearchSpace", "Setting", "Uniform"]

Value = bool | int | float | str | None
_KINDS = "uniform, log_uniform, integers or choice"


class Setting(ABC):
    """The distribution of one setting."""

    @abstractmethod
    def draw(self, generator: SecureGenerator) -> Value:
        """A value.

        Args:
            generator: what to draw it with.
        """


@validated
@dataclass(frozen=True)
class Uniform(Setting):
    """A number from an interval.

    Args:
        low: its lower end.
        high: its upper end.

    Raises:
        ValueError: if the ends are not in order.
    """

    low: Finite
    high: Finite

    def __post_init__(self) -> None:
        _check_ends(self.low, self.high)

    @override
    def draw(self, generator: SecureGenerator) -> float:
        share = float(generator.uniform())
        return min(max((1 - share) * self.low + share * self.high, self.low), self.high)


@validated
@dataclass(frozen=True)
class LogUniform(Setting):
    """A positive number whose logarithm is uniform.

    Args:
        low: the smallest, positive.
        high: the largest.

    Raises:
        ValueError: if the ends are not in order.
    """

    low: Positive
    high: Positive

    def __post_init__(self) -> None:
        _check_ends(self.low, self.high)

    @override
    def draw(self, generator: SecureGenerator) -> float:
        value = math.exp(Uniform(math.log(self.low), math.log(self.high)).draw(generator))
        return min(max(value, self.low), self.high)


@validated
@dataclass(frozen=True)
class Integers(Setting):
    """A whole number from a range, both ends included.

    Args:
        low: the smallest.
        high: the largest.

    Raises:
        ValueError: if the ends are not in order.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_ends(self.low, self.high)

    @override
    def draw(self, generator: SecureGenerator) -> int:
        return self.low + generator.integers(self.high - self.low + 1)


@validated
@dataclass(frozen=True)
class Choice(Setting):
    """One of a few values, each as likely.

    Args:
        values: numbers, words, truth values or None.

    Raises:
        ValueError: if there are none.
        TypeError: if a value is anything else.
    """

    values: Sequence[Value]

    def __post_init__(self) -> None:
        if not self.values or isinstance(self.values, str):
            raise ValueError(f"values is {self.values!r}, but must list what to choose from.")

    @override
    def draw(self, generator: SecureGenerator) -> Value:
        return self.values[generator.integers(len(self.values))]


@validated
@dataclass(frozen=True)
class SearchSpace:
    """The settings of a search, each with its distribution; they are drawn independently of one another.

    Args:
        settings: distributions by the names of the settings.

    Raises:
        ValueError: if there is none.
        TypeError: if one is no distribution.

    Example:
        >>> space = SearchSpace({"learning_rate": LogUniform(1e-3, 1.0), "width": Choice([32, 64])})
        >>> sorted(space.draw())
        ['learning_rate', 'width']
    """

    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.settings:
            raise ValueError("settings is empty, so there is nothing to choose: name a setting, or train once.")
        for name, setting in self.settings.items():
            if not isinstance(setting, Setting):
                raise TypeError(
                    f"settings has a {type(setting).__name__} as {name!r}, but a space is public and may not read "
                    "data: give Uniform, LogUniform, Integers or Choice, stated in numbers and words."
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SearchSpace:
        """The space that a file states, as `{"model.lr": {"log_uniform": [0.001, 1]}}`.

        Args:
            values: for each setting, the kind of its distribution and what that takes.

        Raises:
            ValueError: if it states no distribution, or a distribution of something else than numbers and words.

        Example:
            >>> SearchSpace.from_dict({"model.width": {"choice": [32]}}).draw()
            {'model.width': 32}
        """
        return cls({name: _setting(name, value) for name, value in values.items()})

    def draw(self, generator: SecureGenerator | None = None) -> dict[str, Any]:
        """One value for each setting.

        Args:
            generator: for tests; left out, the one of the process, which has no seed.
        """
        source = generator or secure_generator()
        return {name: setting.draw(source) for name, setting in self.settings.items()}


def _setting(name: str, value: Any) -> Setting:
    ends: dict[str, Any] = {"uniform": Uniform, "log_uniform": LogUniform, "integers": Integers}
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, given),) = value.items()
        try:
            if kind == "choice" and isinstance(given, list):
                return Choice(given)
            if kind in ends and isinstance(given, list) and len(given) == 2:
                distribution: Setting = ends[kind](*given)
                return distribution
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from None
    raise ValueError(
        f"{name} is {value!r}, but a setting has one distribution, {_KINDS}, with its ends or its values in a list, as "
        "in {log_uniform: [0.001, 1.0]}."
    )


def _check_ends(low: float, high: float) -> None:
    if not low <= high:
        raise ValueError(f"low is {low:g} and high {high:g}, but a range begins at its lower end.")
