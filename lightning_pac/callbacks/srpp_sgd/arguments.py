"""The arguments of a private training run: checked, compared with a checkpoint's, kept as plain values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_pac.accountants import Banded, Notion, Promise, one_promise, promise_of
from lightning_pac.callbacks.srpp_sgd.step import BlockNoise
from lightning_pac.data import Persons
from lightning_pac.exceptions import LedgerMismatchError
from lightning_pac.gradients.clipping import SMALLEST_NORM
from lightning_pac.ledger import LedgerArgument
from lightning_pac.scenarios import Poisson, Sampling, TwoWorldScenario

__all__ = ["RunArguments", "as_floats"]

# Clipped gradients are float32, and the squares by which blocks share their noise must keep their precision.
_NORMS = (SMALLEST_NORM, 1e30)


@dataclass(frozen=True)
class RunArguments:
    """The arguments as the user gave them; see `SRPPSGD`.

    Raises:
        ValueError: If an argument is out of range, or not exactly one promise or the noise multiplier is given.
        TypeError: If the sampling is not registered.
    """

    scenario: TwoWorldScenario
    epsilon: float | None
    noise_multiplier: float | None
    renyi_order: float | None
    notion: Notion
    sampling: Sampling | None
    max_grad_norm: float | str | dict[str, float]
    block_noise: BlockNoise
    ledger: LedgerArgument | None
    delta: float | None = None
    world_success_bound: float | None = None
    prior: float = 0.5
    noise: Banded | None = None
    views: int = 1
    unit: Persons | None = None

    def __post_init__(self) -> None:
        norms = self.max_grad_norm if isinstance(self.max_grad_norm, dict) else {"": self.max_grad_norm}
        named = [block for block, norm in norms.items() if isinstance(norm, str)]
        if isinstance(self.max_grad_norm, dict) and named:
            raise ValueError(
                f"max_grad_norm is {norms[named[0]]!r} for the block {named[0]!r}, but such a rule has no norm to set "
                "beside those of other blocks: give each block a number, or 'auto' for all parameters."
            )
        if not norms:
            raise ValueError("max_grad_norm names no block: give one norm, or a norm for each block of parameters.")
        positive: dict[str, Any] = {
            "epsilon": self.epsilon,
            "noise_multiplier": self.noise_multiplier,
            "renyi_order": self.renyi_order,
            "delta": self.delta,
            "world_success_bound": self.world_success_bound,
            "prior": self.prior,
            **{f"max_grad_norm {block}".rstrip(): norm for block, norm in norms.items() if block not in named},
        }
        for name, value in positive.items():
            if value is not None and not 0 < value < math.inf and name not in ("delta", "prior"):
                raise ValueError(f"{name} is {value}, but must be positive and finite.")
        for block, norm in norms.items():
            if block not in named and not _NORMS[0] <= float(norm) <= _NORMS[1]:
                raise ValueError(
                    f"{f'max_grad_norm {block}'.rstrip()} is {norm:g}, but must lie between {_NORMS[0]:g} and "
                    f"{_NORMS[1]:g}, where gradients in float32 do: scale the loss."
                )
        if self.renyi_order is not None and not self.renyi_order > 1:
            raise ValueError(f"renyi_order is {self.renyi_order}, but must be finite and above 1.")
        one_promise(self, self.noise_multiplier)
        if self.promise is not None and self.notion.startswith("ms-"):
            raise ValueError(
                f"notion is {self.notion!r}, an average over batches that promises no "
                f"{'(epsilon, delta)' if self.delta is not None else 'bound on guessing'}: leave notion out, or give "
                "epsilon with renyi_order."
            )
        if self.sampling is not None:
            self.sampling.check_drawable()
        if self.noise is not None:
            self._check_noise()
        if self.unit is not None and self.sampling is None:
            raise ValueError(
                f"unit is {self.unit}, but sampling is left out, and the batch size of a loader counts records: give "
                "sampling=Poisson(rate), whose rate is that of persons."
            )
        if self.scenario.adjacency == "add_remove":
            self._check_add_remove()

    @property
    def promise(self) -> Promise | None:
        """The exact promise; None for epsilon at a Rényi order, and where the noise is given."""
        return promise_of(self.epsilon, self.delta, self.world_success_bound, self.prior)

    def promised(self, epsilon_name: str) -> str:
        """Name of the figure that is promised, or of the bound on guessing where the noise is given.

        Args:
            epsilon_name: Name of epsilon at the Rényi order.
        """
        if self.epsilon is None:
            return "world_success_bound"
        return epsilon_name if self.delta is None else "epsilon_at_delta"

    def compare(self, saved: Mapping[str, Any]) -> None:
        """Refuse to resume under other arguments than those of the checkpoint.

        Raises:
            LedgerMismatchError: Names what differs.
        """
        given = self.to_dict()
        if given["renyi_order"] is None:  # then the run goes on at the order that it was accounted at
            given["renyi_order"] = saved.get("renyi_order")
        changed = sorted(name for name in {*saved, *given} if saved.get(name) != given.get(name))
        if changed:
            values = ", ".join(f"{name} (was {saved.get(name)}, now {given.get(name)})" for name in changed)
            raise LedgerMismatchError(
                f"The checkpoint was made with other arguments: {values}; resume with the arguments it was made with, "
                "or start a new run, which is charged anew."
            )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the ledger, as plain values that a checkpoint keeps."""
        return {
            **{f"scenario.{name}": value for name, value in self.scenario.to_dict().items()},
            "sampling": None if self.sampling is None else str(self.sampling),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "world_success_bound": self.world_success_bound,
            "prior": None if self.world_success_bound is None else self.prior,
            "noise_multiplier": self.noise_multiplier,
            "renyi_order": self.renyi_order,
            "notion": self.notion,
            "max_grad_norm": self.max_grad_norm,
            "block_noise": self.block_noise,
            **({} if self.noise is None else {"noise": str(self.noise)}),
            **({} if self.views == 1 else {"views": self.views}),
            **({} if self.unit is None else {"unit": str(self.unit)}),
        }

    def declaration(self) -> dict[str, Any]:
        """Everything, by its name in an error, as plain values in which the order of blocks counts."""
        given = {**self.to_dict(), "ledger": None if self.ledger is None else str(self.ledger)}
        if isinstance(self.max_grad_norm, dict):
            given["max_grad_norm"] = list(self.max_grad_norm.items())
        return {f"SRPPSGD({name}=)": value for name, value in given.items()}

    @property
    def chooses_blocks(self) -> bool:
        """Whether the best number of bands decides how Poisson draws are made, too."""
        return self.noise is not None and self.noise.bands == "best" and type(self.sampling) is Poisson

    def _check_noise(self) -> None:
        assert self.noise is not None
        if self.notion.startswith("ms-"):
            raise ValueError(f"noise is {self.noise}, which has no average over batches: leave notion out, or noise.")
        if self.noise.bands == "best" and self.noise_multiplier is not None:
            raise ValueError(
                f"noise is {self.noise}, which is decided at a promise, but noise_multiplier is given: promise "
                "something in its place, or give a number of bands."
            )
        if self.chooses_blocks:
            if self.scenario.adjacency == "add_remove" or self.notion != "rpp":
                raise ValueError(
                    f"noise is {self.noise}, for which Poisson draws come from blocks of records, and blocks are "
                    "priced for the notion 'rpp', by replace and zero_out only: choose these, or leave noise out."
                )
            return
        if self.sampling is not None and self.sampling.separation(1 << 40) is None:
            raise ValueError(
                f"noise is {self.noise}, which needs every pass in one order, but sampling is {self.sampling}: give "
                "sampling=CyclicShuffle(batch_size)."
            )

    def _check_add_remove(self) -> None:
        if self.sampling is None or not (self.sampling.is_certified and self.sampling.independent_draws):
            raise ValueError(
                f"sampling is {self.sampling}, but add_remove holds under our Poisson sampling only, since a record's "
                "absence moves the others: give sampling=Poisson(rate, batch_size), or use the adjacency zero_out."
            )
        self.sampling.expected_batch_size(None)  # refuses to compute it from the secret number of records


def as_floats(norms: float | str | Mapping[str, float | str]) -> Any:
    """Norms as plain numbers, which a checkpoint and a ledger hold, and names of rules as they are."""
    if isinstance(norms, Mapping):
        return {name: as_floats(norm) for name, norm in norms.items()}
    return norms if isinstance(norms, str) else float(norms)
