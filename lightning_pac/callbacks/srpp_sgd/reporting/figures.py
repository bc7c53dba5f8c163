"""Figures of a run's cost, in the order in which its user asked: the promise first."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_pac.accountants import RunningAccount, SRPPAccountant
from lightning_pac.callbacks.srpp_sgd.arguments import RunArguments
from lightning_pac.callbacks.srpp_sgd.journal import RunJournal
from lightning_pac.cards import at_most, upwards

__all__ = ["RunFigure", "average_of", "figures_of", "shown_state", "verdict", "words_on_extension"]


@dataclass(frozen=True)
class RunFigure:
    """One figure of a run.

    Attributes:
        name: Its name on a card.
        value: Its value, exact for all planned steps.
        unit: `"nats"` or `"probability"`.
        words: A sentence for messages, without its point.
        meaning: A sentence for a card.
    """

    name: str
    value: float
    unit: str
    words: str
    meaning: str


def figures_of(journal: RunJournal) -> tuple[RunFigure, ...]:
    """The figures of all planned steps, the promised one first, then the bound on guessing."""
    running, accountant = journal.in_force, journal.running.accountant
    average = average_of(accountant)
    bound = running.exact_success_bound()
    guess = verdict(bound, running.prior, average)
    figures = [
        RunFigure(
            "world_success_bound",
            bound,
            "probability",
            guess,
            f"{guess}, where the guess is which of the two worlds the data come from.",
        ),
        RunFigure(
            accountant.epsilon_name,
            running.epsilon,
            "nats",
            f"the Rényi divergence of order {accountant.renyi_order:g} is at most {upwards(running.epsilon, 4)} "
            f"({accountant.epsilon_name})",
            f"The Rényi divergence of order {accountant.renyi_order:g} between what the two worlds release is at most "
            f"this{average}.",
        ),
    ]
    if not accountant.is_mean_square:
        epsilon = running.exact_epsilon_at_delta()
        figures.append(
            RunFigure(
                "epsilon_at_delta",
                epsilon,
                "nats",
                f"epsilon is at most {upwards(epsilon, 4)} at delta {upwards(running.delta)}",
                f"The two worlds are (epsilon, delta)-indistinguishable with epsilon at most {upwards(epsilon)} at "
                f"delta = {upwards(running.delta)}.",
            )
        )
    return tuple(sorted(figures, key=lambda figure: figure.name != journal.promised))


def shown_state(
    account: RunningAccount[SRPPAccountant], arguments: RunArguments, pointer: Mapping[str, Any]
) -> dict[str, Any]:
    """The state of a run, for the line that its callback shows: looked up, not computed anew."""
    promised = arguments.promised(account.accountant.epsilon_name)
    others = {"epsilon_at_delta": account.epsilon_at_delta, "world_success_bound": account.world_success_bound}
    return {
        "steps": account.num_steps,
        f"{promised}_so_far": others[promised]() if promised in others else account.epsilon,
        "ledger": Path(pointer["path"]),
        "account": pointer["account"],
    }


def average_of(accountant: SRPPAccountant) -> str:
    """The average that a figure is, as a part of a sentence; empty for the worst case."""
    return ", on average over the draw of the batches," if accountant.is_mean_square else ""


def verdict(bound: float, prior: float = 0.5, average: str = "") -> str:
    """The bound on guessing as a sentence, without its point.

    Example:
        >>> verdict(0.6)
        'Anyone who sees this model and all its training guesses right at most 60 % of the time (a coin: 50 %)'
    """
    blind = "a coin" if prior == 0.5 else "a blind guess"
    return (
        f"Anyone who sees this model and all its training{average} guesses right at most {at_most(bound)} of the time "
        f"({blind}: {100 * max(prior, 1 - prior):g} %)"
    )


def words_on_extension(journal: RunJournal) -> str | None:
    """What holds of a run whose plan was made longer after its first steps; None of any other."""
    if journal.extended_at is None:
        return None
    return (
        f"After {journal.extended_at} steps the plan was made longer, to {journal.in_force.num_steps}: the figures "
        "hold for somebody who would have taken no more than these, whatever the run had shown. A promise in place of "
        "noise_multiplier holds in any case."
    )
