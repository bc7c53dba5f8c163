"""DP-SGD under its usual name and arguments."""

from typing import Literal

from lightning_pac._validation import Count, validated
from lightning_pac.callbacks.srpp_sgd.callback import SRPPSGD
from lightning_pac.data import Persons
from lightning_pac.ledger import LedgerArgument
from lightning_pac.scenarios import Sampling, TwoWorldScenario

__all__ = ["DPSGD"]


@validated
class DPSGD(SRPPSGD):
    """Trains with (epsilon, delta)-differential privacy for every record.

    This is `SRPPSGD` with the scenario `TwoWorldScenario.differential_privacy()`: one record is there or not. The
    number of records is then part of the secret, so state the rate and the batch size of the Poisson sampling.

    Example::

        from lightning_pac import DPSGD, Poisson

        private = DPSGD(epsilon=3, delta=1e-5, sampling=Poisson(rate=0.01, batch_size=500))

    Args:
        epsilon: Privacy loss in nats.
        delta: Probability with which it may fail, well below one in the number of records.
        sampling: How batches are drawn, a `Poisson` with a stated batch size.
        max_grad_norm: Clipping norm of a record's gradient, norms by the names of submodules, or ``"auto"``.
        block_noise: How several blocks share the noise, see `SRPPSGD`.
        ledger: A ledger, or the path of one, that several runs on the same data may share.
        views: How often each drawn record is loaded, see `SRPPSGD`.
        unit: `Persons`, for differential privacy of persons in place of records.
        noise_multiplier: Noise in clipping norms, in place of epsilon and delta, as `lightning-pac plan` states it.

    Raises:
        ValueError: If an argument is out of range, or both a promise and noise are given; everything else is as in
            `SRPPSGD`.
    """

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        sampling: Sampling | None = None,
        max_grad_norm: float | Literal["auto"] | dict[str, float | Literal["auto"]] = 1.0,
        block_noise: Literal["optimal", "isotropic"] = "optimal",
        ledger: LedgerArgument | None = None,
        views: Count = 1,
        unit: Persons | None = None,
        noise_multiplier: float | None = None,
    ) -> None:
        if noise_multiplier is not None and epsilon is None and delta is not None:
            raise ValueError("delta goes with epsilon, which noise_multiplier stands in place of: leave delta out.")
        if (epsilon is None) != (delta is None):
            raise ValueError(
                f"epsilon is {epsilon} and delta {delta}, but one goes with the other: DPSGD(epsilon=3, delta=1e-5)."
            )
        super().__init__(
            TwoWorldScenario.differential_privacy(),
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=noise_multiplier,
            sampling=sampling,
            max_grad_norm=max_grad_norm,
            block_noise=block_noise,
            ledger=ledger,
            views=views,
            unit=unit,
        )
