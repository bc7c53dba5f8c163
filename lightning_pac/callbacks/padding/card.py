"""The privacy card of padded observations."""

import math

from lightning_pac.accountants.bounds import dp_success_bound
from lightning_pac.cards import Guarantee, PrivacyCard, at_most, downwards, upwards
from lightning_pac.mechanisms.one_sided import DPNoise, LeakageChannel, PACNoise

__all__ = ["Noise", "noise_card"]

_UNFIXED = (
    "The bound is for a number of observations that was decided beforehand: where what was seen decides whether more "
    "follow, only a budget of the ledger bounds what they tell."
)

Noise = DPNoise | LeakageChannel | PACNoise


def noise_card(
    noise: Noise,
    title: str,
    secret: str,
    conditions: tuple[str, ...],
    num_observations: int,
    spent: float,
    budget: float | None = None,
    output_ranges: tuple[float | None, ...] = (None,),
    earlier_conditions: tuple[str, ...] = (),
) -> PrivacyCard:
    """The guarantees for all observations that the budget allows, without one for those so far.

    What an observer sees may decide whether there is another observation, and figures of those so far are no bounds
    then (see `RunningAccount.of_plan`).

    Args:
        noise: What pads them.
        title: What the card is about.
        secret: One sentence: what the padding hides, and from whom.
        conditions: What is not hidden, one sentence each.
        num_observations: Padded observations so far.
        spent: Their cost in releases or nats.
        budget: The most that they may cost; None where nothing limits that.
        output_ranges: Under noise for mutual information, the width of the interval that holds what is padded, where
            it may be chosen by what was seen before; None where it was fixed beforehand.
        earlier_conditions: Those of observations that others made.
    """
    most = spent if budget is None else max(budget, spent)
    unfixed = () if budget is not None or isinstance(noise, DPNoise) else (_UNFIXED,)
    earlier = (condition for condition in earlier_conditions if condition != _UNFIXED)
    return PrivacyCard(
        title=title,
        secret=secret,
        guarantees=_guarantees(noise, spent, most),
        conditions=tuple(dict.fromkeys((*_assumptions(noise, output_ranges), *unfixed, *conditions, *earlier))),
        details={
            "num_observations": num_observations,
            "noise": type(noise).__name__,
            **({} if isinstance(noise, LeakageChannel) else {"mean_noise": noise.mean}),
            **(vars(noise.guarantee) if isinstance(noise, DPNoise) else {}),
        },
    )


def _guarantees(noise: Noise, spent: float, most: float) -> tuple[Guarantee, ...]:
    if isinstance(noise, DPNoise):
        promised = noise.guarantee
        # Basic composition, where more than it was designed for were booked as lost.
        times = max(1, math.ceil(most / promised.compositions))
        epsilon, delta = times * promised.epsilon, min(1.0, times * promised.delta)
        success = dp_success_bound(epsilon, delta)
        return (
            Guarantee(
                "padding_success_bound",
                success,
                "probability",
                "An attacker who sees all padded observations guesses which of two neighbours was run at most "
                f"{at_most(success)} of the time; a coin gets 50 %.",
            ),
            Guarantee(
                "padding_epsilon_at_delta",
                epsilon,
                "nats",
                f"(epsilon, delta) of {times * promised.compositions} observations together at delta = "
                f"{upwards(delta)}; {spent:g} were made.",
            ),
        )
    if isinstance(noise, LeakageChannel):
        meaning = (
            "All observations together make the best guess of anything about the secret at most "
            f"{upwards(math.exp(min(most, 700.0)), 4)} times as likely to be right as a blind one."
        )
        return (Guarantee("padding_maximal_leakage", most, "nats", meaning),)
    meaning = "This is how much all observations together can tell about the secret."
    return (Guarantee("padding_mutual_information", most, "nats", meaning),)


def _assumptions(noise: Noise, output_ranges: tuple[float | None, ...]) -> tuple[str, ...]:
    if isinstance(noise, DPNoise):
        units = noise.guarantee.sensitivity
        return (f"Neighbours differ by at most {units} {'unit' if units == 1 else 'units'} in each observation.",)
    if isinstance(noise, PACNoise):
        return tuple(
            f"The variance of what is padded is at most {downwards(noise.output_variance)}, and nobody chose what to "
            "observe by what they had seen: against those who do, these costs do not add."
            if width is None
            else f"What is padded lies between 0 and {downwards(width)}; an observer may choose what comes next by "
            "what they have seen."
            for width in output_ranges
        )
    return ("What is padded follows from the secret as the channel was told.",)
