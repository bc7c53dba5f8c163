"""Predictions that are private answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_pac._validation import validated
from lightning_pac.callbacks.predictions.dummy_queries import append_dummies, check_paddable
from lightning_pac.callbacks.predictions.private_predictions import PrivatePredictions
from lightning_pac.callbacks.predictions.ranks_answers import RanksAnswers
from lightning_pac.cards import upwards
from lightning_pac.data.with_index import batch_inputs
from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.ledger import LedgerArgument
from lightning_pac.mechanisms import PACResponder
from lightning_pac.mechanisms.responses import as_batch, query
from lightning_pac.strategies import Ranks


@validated
class PACResponses(PrivatePredictions):
    """Make `Trainer.predict` return private labels instead of the members' votes.

    While predicting, the module's `predict_step` is replaced by the responder: each batch becomes its private labels,
    integers of shape (batch,), whose cost is on disk before anything else sees them. Callbacks that write predictions
    write the private ones. Where the budget does not allow the next batch, predicting stops with a warning and returns
    the labels that were paid for. Asking the same records again is paid for again.

    Logged after each batch: `privacy/mutual_information`, `privacy/membership_success_bound`, `privacy/responses` and
    `privacy/unanimous_fraction` (the part of this run's answers on which all members agreed, which are free). The card
    of all answers so far is saved beside these logs, as `answers_privacy_card`.

    How many queries a batch holds is hidden by `DummyPadding` in the same Trainer. Nothing is then logged or saved
    here, since all of these figures count the true queries; they are in the ledger, for the keeper of the data.

    On several devices each rank asks the members about its own records, and rank zero, which alone holds the secret and
    the ledger, answers; give `secret` and `ledger` there.

    Only predictions are private. `ensemble(x)`, validation and test metrics show what the members say.

    Args:
        responder: Answers for the module that predicts. Give either this or `secret`.
        secret: The secret file, from which a responder for the predicting ensemble is opened; it is drawn if there is
            no such file yet. For the command line.
        budget_per_response: Nats for each answer on which the members disagree (with `secret`).
        ledger: The ledger, or its path (with `secret`).
        budget: Largest total in nats (with `secret`); None for the ledger's own.

    Attributes:
        draw_dummies: Asked before each batch how many dummy queries to ask with it, and None where predicting must stop
            (set by `DummyPadding`); None asks none.

    Raises:
        ValueError: If not exactly one of `responder` and `secret` is given, or `secret` comes without a ledger.

    Example:
        `Trainer(callbacks=[PACResponses(responder)]).predict(ensemble, loader)`
    """

    def __init__(
        self,
        responder: PACResponder | None = None,
        secret: str | Path | None = None,
        budget_per_response: float = 2.0**-32,
        ledger: LedgerArgument | None = None,
        budget: float | None = None,
    ) -> None:
        if (responder is None) == (secret is None):
            raise ValueError(
                "responder or secret must be given, and not both: pass a PACResponder, or the path of a secret file."
            )
        if secret is not None and ledger is None:
            raise ValueError("ledger is None, but private answers are recorded before they are shown: give one.")
        if responder is not None and (ledger is not None or budget is not None):
            raise ValueError("ledger and budget are those of the given responder: give them to PACResponder instead.")
        super().__init__()
        self.responder = responder
        self.draw_dummies: Callable[[], int | None] | None = None
        self.secret = None if secret is None else Path(secret)
        self.budget_per_response = budget_per_response
        self.ledger = ledger
        self.budget = budget
        self._answered = self._unanimous = 0
        self._ranks = Ranks()
        self._answers: RanksAnswers | None = None

    @override
    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._ranks = Ranks.of(trainer)
        if self._ranks.size > 1:
            self._join(self._ranks, pl_module)
        elif self.responder is None:
            self.responder = self._open(pl_module)
        elif self.responder.model is not pl_module:
            raise MisconfigurationException(
                f"The responder's {type(self.responder.model).__name__} is not the module that predicts: "
                "pass trainer.predict the model that the responder was made with."
            )
        self._answered = self._unanimous = 0

        def make_private(step: Any) -> Callable[..., Tensor]:
            return lambda batch, *args, **kwargs: self._private_step(pl_module, batch)

        self._replace_step(pl_module, make_private)

    @override
    def on_predict_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._ranks.size > 1:
            draw_dummies = None if self.draw_dummies is None else self._num_dummies
            self._answers = RanksAnswers(self._ranks, self._answer, draw_dummies)

    @override
    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self.responder is None or self.draw_dummies is not None:
            return
        self._log(trainer, self._answered)

    @override
    def on_predict_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._answers is None:
            return
        try:
            self._answers.finish()
        except BudgetExceededError as error:
            self._warn_of_end(error)

    @override
    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        log_dir = trainer.log_dir if trainer.loggers else None  # asked of all ranks at once, or it hangs
        if self.responder is None:  # rank zero speaks for all
            self._restore_step()
            return
        if log_dir is not None and self.draw_dummies is None:
            self.responder.card().save(log_dir, "answers_privacy_card")
        summary = ", ".join(
            f"{name.removeprefix('privacy/')} {upwards(value)}" for name, value in self.metrics().items()
        )
        rank_zero_info(f"Private answers: {summary}.")
        self._restore_step()

    @override
    def _close_account(self) -> None:
        if self.secret is not None and self.responder is not None:
            self.responder.close()
            self.responder = None
        self._answers = None

    @override
    def metrics(self) -> dict[str, float]:
        """The cost of all answers of the responder, and how many of this run's were free."""
        assert self.responder is not None
        return {
            "privacy/mutual_information": self.responder.spent,
            "privacy/membership_success_bound": self.responder.membership_success_bound,
            "privacy/responses": float(self.responder.num_responses),
            "privacy/unanimous_fraction": self._unanimous / max(1, self._answered),
        }

    def _open(self, pl_module: pl.LightningModule) -> PACResponder:
        pool = getattr(pl_module, "pool", None)
        if pool is None or self.secret is None or self.ledger is None:
            raise MisconfigurationException(
                f"{type(pl_module).__name__} has no pool to draw a secret from: predict with a SubsetEnsemble or a "
                "LearnerEnsemble, or give PACResponses a responder."
            )
        secret = pool.load_secret(self.secret) if self.secret.exists() else pool.draw_secret(self.secret)
        return PACResponder(pl_module, secret, self.budget_per_response, self.ledger, self.budget)

    def _join(self, ranks: Ranks, pl_module: pl.LightningModule) -> None:
        if self.secret is None:
            raise MisconfigurationException(
                f"Of {ranks.size} processes one alone may hold the secret and the ledger: give PACResponses secret= "
                "and ledger= instead of a responder, which every process would open."
            )

        def open_responder() -> None:
            self.responder = self._open(pl_module)

        ranks.from_first(open_responder)

    def _answer(self, outputs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        assert self.responder is not None
        release = self.responder.release_outputs(outputs)
        self._answered += len(release)
        self._unanimous += int(np.count_nonzero(release.unanimous))
        return release.labels

    def _private_step(self, pl_module: pl.LightningModule, batch: Any) -> Tensor:
        inputs = batch_inputs(batch)
        try:
            if self._answers is not None:
                return torch.from_numpy(
                    self._answers.exchange(
                        lambda: check_paddable(inputs), lambda num_dummies: _ask(pl_module, inputs, num_dummies)
                    )
                )
            assert self.responder is not None
            if self.draw_dummies is not None:
                check_paddable(inputs)
            num_dummies = self._num_dummies()
            release = self.responder.release(_pad(inputs, num_dummies), num_dummies=num_dummies)
        except BudgetExceededError as error:
            self._warn_of_end(error)
            # Lightning's prediction loop ends cleanly on this and keeps the predictions that were made.
            raise StopIteration from None
        self._answered += len(release)
        self._unanimous += int(np.count_nonzero(release.unanimous))
        return torch.from_numpy(release.labels)

    def _warn_of_end(self, error: BudgetExceededError) -> None:
        rank_zero_warn(f"Predicting stopped after {self._answered} private answers: {error}")

    def _num_dummies(self) -> int:
        if self.draw_dummies is None:
            return 0
        num_dummies = self.draw_dummies()
        if num_dummies is None:
            raise BudgetExceededError(
                "The noise of DummyPadding was designed for no more batches: design it for more (compositions)."
            )
        return num_dummies


def _ask(pl_module: pl.LightningModule, inputs: Any, num_dummies: int) -> npt.NDArray[Any]:
    """The members' answers to a batch, asked together with dummies whose answers are dropped."""
    outputs = as_batch(query(pl_module, _pad(inputs, num_dummies)))[0]
    return outputs[: len(outputs) - num_dummies]


def _pad(inputs: Any, num_dummies: int) -> Any:
    return append_dummies(inputs, num_dummies) if num_dummies else inputs
