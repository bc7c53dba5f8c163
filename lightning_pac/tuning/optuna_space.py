"""Settings drawn by Optuna, at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.randomness import SecureGenerator, secure_generator
from lightning_pac.tuning.space import SearchSpace

__all__ = ["OptunaSpace"]


@validated
@dataclass(frozen=True)
class OptunaSpace(SearchSpace):
    """A space whose settings are distributions of Optuna, drawn by its random sampler.

    A private selection pays for runs whose settings do not depend on one another. A sampler that learns (TPE, CMA-ES,
    Gaussian processes) chooses a run by the scores of the runs before it, whose price is then the sum of all of them;
    one that fills a grid makes the settings depend on their number, which is secret.

    Args:
        settings: distributions of Optuna by the names of the settings.
        sampler: None, or a `RandomSampler`; its seed is not used, so that nobody knows the settings of losing runs.

    Raises:
        ValueError: if there is no setting.
        TypeError: if a setting is no distribution of Optuna, or one of things that JSON does not hold, or the sampler
            is not random.
        ImportError: if Optuna is not installed.

    Example::

        from optuna.distributions import FloatDistribution

        space = OptunaSpace({"learning_rate": FloatDistribution(1e-3, 1.0, log=True)})
    """

    sampler: Any = None

    @override
    def __post_init__(self) -> None:
        import optuna

        if not self.settings:
            raise ValueError("settings is empty, so there is nothing to choose: name a setting, or train once.")
        for name, setting in self.settings.items():
            if not isinstance(setting, optuna.distributions.BaseDistribution):
                raise TypeError(f"settings has a {type(setting).__name__} as {name!r}: give a distribution of Optuna.")
            for choice in getattr(setting, "choices", ()):
                if not isinstance(choice, bool | int | float | str | None):  # the draw is kept as JSON
                    raise TypeError(
                        f"settings has {choice!r} among the choices of {name!r}, and a setting is a number, a word, a "
                        "truth value or None: choose a word, and make of it what it stands for in make_trainer."
                    )
        if self.sampler is not None and type(self.sampler) is not optuna.samplers.RandomSampler:
            raise TypeError(
                f"sampler is a {type(self.sampler).__name__}, which chooses settings by earlier runs, and then the "
                "price is the sum of all runs: leave it out, for random search."
            )

    @override
    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OptunaSpace:
        """The space of distributions in Optuna's JSON (`optuna.distributions.distribution_to_json`).

        Args:
            values: text by the names of the settings.
        """
        import optuna

        return cls({name: optuna.distributions.json_to_distribution(text) for name, text in values.items()})

    @override
    def draw(self, generator: SecureGenerator | None = None) -> dict[str, Any]:
        import optuna

        seed = (generator or secure_generator()).integers(2**32)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
        return dict(study.ask(fixed_distributions=dict(self.settings)).params)
