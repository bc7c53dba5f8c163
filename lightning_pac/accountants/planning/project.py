"""The plan of a project: what everything that it is going to release may cost, and what is affordable."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_pac._validation import Count, validated
from lightning_pac.accountants.composed_ledger import LedgerPlan, Share
from lightning_pac.accountants.planning.division import divide_promise, round_up
from lightning_pac.accountants.planning.figures import run_figures
from lightning_pac.accountants.planning.option import PlannedRun, ProjectOption
from lightning_pac.accountants.planning.picture import draw_plan
from lightning_pac.accountants.planning.releases import PlannedAnswers, PlannedTraining, PlannedValues
from lightning_pac.accountants.privacy_loss import PoissonSteps, promise_of
from lightning_pac.accountants.private_selection import SelectionPrice
from lightning_pac.accountants.srpp import SRPPAccountant
from lightning_pac.exceptions import LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.randomness import finite_precision, missing_tail
from lightning_pac.scenarios import Poisson, TwoWorldScenario

__all__ = ["ProjectPlan", "plan"]

_MOST_OPTIONS = 64
# Values of noise that everything may draw at least; a run may be replayed in part as well.
_LEAST_DRAWS = 2.0**32
_REPLAYED = 2.0


@validated
@dataclass(frozen=True)
class ProjectPlan:
    """The releases that one promise affords a project, and the ways to spend it.

    Attributes:
        options: every combination of batch sizes and epochs, in the order given.
        answers: releases whose cost is mutual information, by name.
    """

    options: tuple[ProjectOption, ...]
    answers: Mapping[str, PlannedAnswers]

    @property
    def best(self) -> ProjectOption:
        """The option with the best score, and where no proxy was given, with the most signal; the first of equals."""
        return max(self.options, key=lambda option: option.signal if option.score is None else option.score)

    def declare(self, path: str | Path, option: ProjectOption | None = None) -> None:
        """Write the shares into a ledger, which holds no charge yet and is made if there is none.

        Args:
            path: the ledger's file.
            option: the option to follow; the best one if left out.

        Raises:
            LedgerError: if something was charged already, or a promise stands.
            LedgerMismatchError: if the ledger has another plan, or another budget for answers.
        """
        shares = (option or self.best).shares
        budget = math.fsum(answers.mutual_information for answers in self.answers.values())
        with PrivacyLedger(path) as ledger:
            stands = ledger.budget("mutual_information")
            if self.answers and stands not in (None, budget):
                raise LedgerMismatchError(
                    f"{ledger.path} has a budget of {stands:g} nats for answers, and the plan {budget:g}: declare this "
                    "one in a new ledger, since a plan is not raised."
                )
            if shares is not None:
                shares.declare(ledger)
            if self.answers and stands is None:
                ledger.set_budget("mutual_information", budget)

    def plot(self, path: str | Path) -> None:
        """Draw noise and signal of every option, and the parts of the best one, into an image file.

        Args:
            path: the file, whose ending names the format.
        """
        draw_plan(self.options, self.best, self.answers, path)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, each option with its shares as a ledger keeps them."""
        options = [
            {
                "runs": {
                    name: {
                        "batch_size": run.batch_size,
                        "epochs": run.epochs,
                        "num_steps": run.num_steps,
                        "rate": run.sampling.rate,
                        **asdict(run.figures),
                    }
                    for name, run in option.runs.items()
                },
                "noise_of_values": dict(option.noise_of_values),
                "plan": None if option.shares is None else option.shares.to_dict(),
                "score": option.score,
            }
            for option in self.options
        ]
        answers = {
            name: {**asdict(each), "budget_per_response": each.budget_per_response}
            for name, each in self.answers.items()
        }
        return {"options": options, "best": self.options.index(self.best), "answers": answers}


@validated
def plan(
    num_records: Count,
    releases: Mapping[str, PlannedTraining | PlannedValues | PlannedAnswers],
    epsilon: float | None = None,
    delta: float | None = None,
    world_success_bound: float | None = None,
    prior: float = 0.5,
    scenario: TwoWorldScenario | None = None,
    proxy: Callable[[PlannedRun], float] | None = None,
) -> ProjectPlan:
    """The releases that one promise affords a project: how much noise, how many steps, what signal is left.

    Everything about the two worlds keeps the promise together, exactly, and each release has a share of it; answers of
    a responder have a bound of their own. Nothing is trained on private records and nothing is spent.

    Args:
        num_records: records of the private data; where their number is the secret, the public number that the sampling
            rate is made from.
        releases: what is to be released, by the names of the shares.
        epsilon: what everything may cost together, in nats, with `delta`.
        delta: failure probability that goes with epsilon.
        world_success_bound: how often a guess of the world may be right, in place of epsilon.
        prior: probability of one of the worlds before anything is released, for the bound.
        scenario: the two worlds; they differ in one record, which is replaced, if left out.
        proxy: the expected score of a planned run, from public data (`PublicProxy`); larger is better.

    Raises:
        ValueError: if there is nothing to release, too much to compare, or no noise keeps the promise.

    Example:
        >>> project = plan(
        ...     50_000,
        ...     {"model": PlannedTraining(512, epochs=20, weight=9), "metrics": PlannedValues(20)},
        ...     epsilon=3.0,
        ...     delta=1e-5,
        ... )
        >>> run = project.best.runs["model"]
        >>> print(run.num_steps, f"{run.figures.noise_multiplier:.2f} {project.best.noise_of_values['metrics']:.1f}")
        1960 1.36 39.3
    """
    if not releases:
        raise ValueError("releases is empty, so there is nothing to plan: name a model, values or answers.")
    promise = promise_of(epsilon, delta, world_success_bound, prior)
    about_worlds = {name: each for name, each in releases.items() if not isinstance(each, PlannedAnswers)}
    if about_worlds and promise is None:
        raise ValueError(
            "epsilon is None or without delta, but what is released about two worlds keeps one promise: give epsilon "
            "with delta, or world_success_bound."
        )
    worlds = scenario or TwoWorldScenario(1)
    if worlds.adjacency != "add_remove":
        worlds = worlds.resolve(num_records)
    trainings = {name: each for name, each in about_worlds.items() if isinstance(each, PlannedTraining)}
    settings = list(itertools.product(*(each.settings for each in trainings.values())))
    if len(settings) > _MOST_OPTIONS:
        raise ValueError(f"releases has {len(settings)} combinations, but {_MOST_OPTIONS} are compared: name fewer.")
    options = []
    for chosen in settings:
        runs = {
            name: (each, SRPPAccountant(worlds, _sampling(size, num_records, worlds, name)), size, epochs)
            for (name, each), (size, epochs) in zip(trainings.items(), chosen, strict=True)
        }
        options.append(_option(promise, about_worlds, runs, num_records, worlds, proxy))
    answers = {name: each for name, each in releases.items() if isinstance(each, PlannedAnswers)}
    return ProjectPlan(tuple(options), answers)


def _sampling(batch_size: int, num_records: int, worlds: TwoWorldScenario, name: str) -> Poisson:
    if batch_size > num_records:
        raise ValueError(f"batch_size of {name!r} is {batch_size}, but there are {num_records} records: name fewer.")
    return Poisson(batch_size / num_records, batch_size if worlds.adjacency == "add_remove" else None)


def _option(
    promise: Any,
    releases: Mapping[str, PlannedTraining | PlannedValues],
    runs: Mapping[str, tuple[PlannedTraining, SRPPAccountant, int, int]],
    num_records: int,
    worlds: TwoWorldScenario,
    proxy: Callable[[PlannedRun], float] | None,
) -> ProjectOption:
    """The shares of one choice of batch sizes and epochs, and what they come to."""
    if promise is None:
        return ProjectOption({}, None, {})
    steps = {
        name: epochs * account.sampling.steps_per_epoch(num_records) for name, (_, account, _, epochs) in runs.items()
    }
    # A step draws one value for each parameter, and one more that tells how many records were clipped.
    draws = {name: float(steps[name] * ((each.parameters or 0) + 1)) for name, (each, *_) in runs.items()}
    several = {name: each.runs.mean if each.runs is not None else 1.0 for name, (each, *_) in runs.items()}
    num_draws = max(_LEAST_DRAWS, _REPLAYED * math.fsum(several[name] * draws[name] for name in runs))
    terms = {
        name: each if isinstance(each, PlannedValues) else (each, runs[name][1], steps[name])
        for name, each in releases.items()
    }
    kept = promise.less(finite_precision(num_draws), missing_tail(num_draws))
    shares = divide_promise(kept, terms, {name: max(2.0**27, _REPLAYED * draws[name]) for name in runs})
    planned, scores = {}, []
    for name, (each, account, size, epochs) in runs.items():
        share = shares[name]
        one = share.one_run[0] if isinstance(share, SelectionPrice) else share
        assert isinstance(one, PoissonSteps)
        figures = run_figures(account, steps[name], size, one.noise_multiplier, each.parameters)
        assert isinstance(account.sampling, Poisson)
        planned[name] = PlannedRun(account.scenario, account.sampling, size, epochs, steps[name], figures)
        if proxy is not None:
            scores.append(float(proxy(planned[name])))
    return ProjectOption(
        planned,
        LedgerPlan(shares, promise, num_draws),
        _noise_of_values(releases, shares, worlds),
        math.fsum(scores) / len(scores) if scores else None,
    )


def _noise_of_values(
    releases: Mapping[str, PlannedTraining | PlannedValues], shares: Mapping[str, Share], worlds: TwoWorldScenario
) -> dict[str, float]:
    """The noise of one value over what a record adds to it; rounded upwards, so that it can be written out."""
    everything = SRPPAccountant(worlds, Poisson(rate=1.0, batch_size=1, secret_draws=False))
    (loudest,) = everything.events(noise_multiplier=1.0, num_steps=1)
    noises = {}
    for name, each in releases.items():
        share = shares[name]
        if isinstance(share, SelectionPrice):
            noises[f"{name} (score)"] = round_up(math.sqrt(loudest.mu_squared / share.one_run[1].mu_squared))
        elif isinstance(each, PlannedValues):
            noises[name] = round_up(math.sqrt(loudest.mu_squared * each.number / share.mu_squared))
    return noises
