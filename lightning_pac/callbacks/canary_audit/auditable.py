"""The runs that an audit can follow: what is refused, and why."""

from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader

from lightning_pac.callbacks.canary_audit.joined_records import JoinedRecords
from lightning_pac.callbacks.srpp_sgd import SRPPSGD, WatchedRun
from lightning_pac.data import PoissonBatchSampler, PrivateDataLoader
from lightning_pac.gradients.clipping import clip
from lightning_pac.scenarios import Poisson
from lightning_pac.strategies import PrivateFSDPStrategy

__all__ = ["check_loader", "check_run", "check_trainer"]

_AUDITED = (
    "CanaryAudit audits Poisson sampling with independent noise and a clipping norm: give SRPPSGD "
    "sampling=Poisson(...), no noise= and a number as max_grad_norm."
)


def check_trainer(trainer: pl.Trainer) -> None:
    """Refuse a Trainer of which no run can be audited.

    Raises:
        MisconfigurationException: If it trains nothing privately, on several devices or not in single precision.
    """
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    if not any(isinstance(callback, SRPPSGD) for callback in callbacks):
        raise MisconfigurationException(
            "CanaryAudit has no private run to audit: give the Trainer SRPPSGD or DPSGD beside it."
        )
    if trainer.world_size > 1:
        raise MisconfigurationException(
            f"CanaryAudit watches one process, and the Trainer has {trainer.world_size}: audit a twin with devices=1, "
            "whose account is the same."
        )
    if isinstance(trainer.strategy, PrivateFSDPStrategy):
        raise MisconfigurationException(
            "CanaryAudit passes records through the whole model, which fsdp_private divides: audit a twin with "
            "strategy='auto', whose account is the same."
        )
    if trainer.precision != "32-true":
        raise MisconfigurationException(
            f"CanaryAudit holds the clipped sum against passes in single precision, and the Trainer has "
            f"precision={trainer.precision!r}: audit a twin with precision='32-true'."
        )


def check_loader(trainer: pl.Trainer, loader: DataLoader[Any]) -> None:
    """Refuse a train loader that draws by itself, whose sampler knows of no canaries.

    Raises:
        MisconfigurationException: If neither it nor the private run draws by Poisson sampling.
    """
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    chosen = any(isinstance(callback, SRPPSGD) and callback.arguments.sampling for callback in callbacks)
    if not (chosen or isinstance(loader, PrivateDataLoader) or isinstance(loader.batch_sampler, PoissonBatchSampler)):
        raise MisconfigurationException(_AUDITED)


def check_run(run: WatchedRun, joined: JoinedRecords | None, replaces: bool) -> None:
    """Refuse a run of which the tests and the game would say nothing, or something wrong.

    Args:
        run: The private run.
        joined: The records with the canaries among them.
        replaces: Whether a coin picks one of two contents.

    Raises:
        MisconfigurationException: If it is one.
    """
    accountant, loader = run.running.accountant, run.loader
    if run.running.num_steps:
        raise MisconfigurationException(
            f"The run goes on after {run.running.num_steps} steps, which CanaryAudit did not see: audit a twin from "
            "its first step."
        )
    if accountant.correlation is not None or type(accountant.sampling) is not Poisson or run.blocks.rule is not clip:
        raise MisconfigurationException(_AUDITED)
    if not isinstance(loader, PrivateDataLoader) or loader.units.drawn != (None, 1):
        raise MisconfigurationException(
            "CanaryAudit follows records that are drawn one by one: leave unit= and views= out of SRPPSGD, in a twin."
        )
    if joined is None or loader.dataset is not joined:
        raise MisconfigurationException(
            "The train loader is not over the records with the canaries, because something replaced it: leave the "
            "DataLoader as the data module returns it."
        )
    if (accountant.scenario.adjacency == "replace") != replaces:
        raise MisconfigurationException(
            "CanaryAudit: under the adjacency replace a coin picks one of two contents, so give others=, and under "
            "zero_out and add_remove it decides whether a canary is there, so leave others out."
        )
