"""With which argument what was refused costs little enough."""

from lightning_pac.accountants import RunningAccount, SRPPAccountant, SuccessBound
from lightning_pac.cards import downwards, upwards

__all__ = ["fitting_argument"]


def fitting_argument(running: RunningAccount[SRPPAccountant], steps: int, left: float, promised: str) -> str:
    """The argument with which so many steps cost no more than so many nats, rounded so that they are let in.

    Args:
        running: An account of the steps as they were asked for.
        steps: Their number.
        left: What they may cost.
        promised: Name of the figure that is spoken of, where they keep no promise.

    Returns:
        Words such as "epsilon=1.2 fits"; empty for noise correlated over steps, which another promise may choose
        differently.
    """
    accountant, promise = running.accountant, running.promise
    if accountant.correlation is not None:
        return ""
    arithmetic = running.cost_of(steps) - accountant.epsilon(running.noise_multiplier, steps)
    try:
        noise = accountant.noise_multiplier((left - arithmetic) * (1 - 1e-6), steps)
    except ValueError:
        return "nothing that fits is left"
    fitting = accountant.track(noise, [steps], steps, promise, running.draws_per_step)
    if promise is None and promised == "world_success_bound":
        return f"noise_multiplier={upwards(noise, 4)} fits"
    if promise is None:
        return f"epsilon={downwards(left * (1 - 1e-6), 4)} fits"
    bound = isinstance(promise, SuccessBound)
    most = fitting.exact_success_bound() if bound else fitting.exact_epsilon_at_delta()
    # A bound is as many digits above the blind guess.
    most = promise.blind + float(downwards((most - promise.blind) * (1 - 1e-6), 3))
    return f"{'world_success_bound' if bound else 'epsilon'}={most:.12g} fits"
