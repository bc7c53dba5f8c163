"""A responder as files and settings, opened by the process that asks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

from torch import nn

from lightning_pac._validation import Device, NonNegative, Positive, Seed, validated
from lightning_pac.exceptions import LedgerMismatchError, PrivacyError
from lightning_pac.ledger import LedgerHandle
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules.ensembles import SubsetEnsemble
from lightning_pac.scenarios import SecretSpace


@validated
@dataclass(frozen=True)
class SavedResponder:
    """The recipe for opening a `PACResponder` on a trained ensemble, in values that a configuration file can hold.

    Attributes:
        checkpoints: The ensemble's checkpoint, or those of its shards.
        network: Makes one network, as in training.
        pool: The pool of training.
        secret: The secret file, drawn if it does not exist yet.
        ledger: Path of the ledger, or `LedgerHandle(path, witness)`.
        budget_per_response: Nats for each answer on which the members disagree.
        budget: Largest total in nats; None for the one on record, or no limit. One that differs from the one on record
            is refused: `lightning-pac account budget` changes that.
        seed: Public seed of training.
        device: Where the members run.
    """

    checkpoints: list[str]
    network: Callable[[], nn.Module]
    pool: SecretSpace
    secret: str
    ledger: str | LedgerHandle
    budget_per_response: Positive = 2.0**-32
    budget: NonNegative | None = None
    seed: Seed = 0
    device: Device = "cpu"

    def open(self) -> PACResponder:
        """Load the members and open the ledger; close the responder when done.

        Raises:
            ValueError: If a member is missing, or a checkpoint is of another table or network, or none.
            LedgerError: If the ledger is in use, was copied or was rolled back.
            LedgerMismatchError: If it answers with another secret.
        """
        model = self._gather().to(self.device).eval()
        path = Path(self.secret)
        if not path.exists():
            self._check_that_none_was_drawn(path)
        secret = self.pool.load_secret(path) if path.exists() else self.pool.draw_secret(path)
        return PACResponder(model, secret, self.budget_per_response, self.ledger, self.budget)

    def _check_that_none_was_drawn(self, secret: Path) -> None:
        """Refuse to draw a secret that the ledger would refuse, which would lie where the true one belongs."""
        if not LedgerHandle(self.ledger).path.exists():
            return
        with LedgerHandle(self.ledger) as ledger:
            if any(account.table_hash == self.pool.table_hash for account in ledger.accounts()):
                raise LedgerMismatchError(
                    f"There is no secret file at {secret}, and {ledger.path} has answers about this table: name the "
                    "secret file that they were made with, or put it back."
                )

    def _gather(self) -> SubsetEnsemble:
        try:
            return SubsetEnsemble.gather(self.checkpoints, self.network, self.pool, seed=self.seed)
        except PrivacyError:
            raise
        except (EOFError, KeyError, RuntimeError, UnpicklingError) as error:
            raise ValueError(
                f"{', '.join(self.checkpoints)} cannot be loaded as an ensemble of this network "
                f"({type(error).__name__}: {error}): give its checkpoints, and the network of training."
            ) from error
