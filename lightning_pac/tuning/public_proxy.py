"""The score that a planned run would have, read off public data."""

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from lightning_pac._validation import validated
from lightning_pac.accountants import PlannedRun
from lightning_pac.callbacks import SRPPSGD
from lightning_pac.data import count_records
from lightning_pac.data.with_index import check_records
from lightning_pac.scenarios import Poisson, TwoWorldScenario

__all__ = ["PublicProxy"]


@validated
class PublicProxy:
    """Trains a module on public data as a planned run would on private ones: same steps, batch and noise.

    The score is that of one run, and an estimate: it is as good as the public data are alike.

    Example::

        proxy = PublicProxy(Classifier, DataLoader(public), DataLoader(public_test), "val/accuracy")
        project = plan(50_000, {"model": PlannedTraining([256, 2048], epochs=20)}, epsilon=3, delta=1e-5, proxy=proxy)

    Args:
        make_module: Makes the module, untrained.
        train: The public training data; their batches are drawn anew, with the size that is planned.
        evaluation: The public data of the score.
        score: Name under which `validation_step` logs it; larger is better.
        max_grad_norm: Clipping norm.

    Raises:
        TypeError: If the training data are an iterable dataset, from which no batch of a planned size can be drawn.
        ValueError: When it is called, if a batch is larger than the public data, or nothing is logged as the score.
    """

    def __init__(
        self,
        make_module: Callable[[], pl.LightningModule],
        train: DataLoader,  # type: ignore[type-arg]
        evaluation: DataLoader,  # type: ignore[type-arg]
        score: str,
        max_grad_norm: float = 1.0,
    ) -> None:
        check_records(train.dataset, "the dataset of train")
        self.make_module = make_module
        self.train = train
        self.evaluation = evaluation
        self.score = score
        self.max_grad_norm = max_grad_norm

    def __call__(self, run: PlannedRun) -> float:
        """The score of a planned run."""
        records = count_records(self.train)
        if run.batch_size > records:
            raise ValueError(
                f"train has {records} public records, fewer than the {run.batch_size} of a planned batch: compare "
                "smaller batches, or give more public data."
            )
        with tempfile.TemporaryDirectory() as folder, _without_announcements():
            private = SRPPSGD(
                TwoWorldScenario(1),
                sampling=Poisson(run.batch_size / records),
                noise_multiplier=run.figures.noise_multiplier,
                max_grad_norm=self.max_grad_norm,
                ledger=Path(folder) / "ledger.db",
            )
            trainer = pl.Trainer(
                max_steps=run.num_steps,
                limit_val_batches=0,
                callbacks=[private],
                logger=False,
                enable_progress_bar=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                default_root_dir=folder,
            )
            module = self.make_module()
            trainer.fit(module, self.train)
            trainer.limit_val_batches = 1.0
            trainer.validate(module, self.evaluation, verbose=False)
        if self.score not in trainer.callback_metrics:
            raise ValueError(f"score is {self.score!r}, but validation_step logs no such value: name one that it logs.")
        return float(trainer.callback_metrics[self.score])


@contextmanager
def _without_announcements() -> Iterator[None]:
    """Leave out what a private run says of its guarantee and its ledger: nothing here is private, or kept."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
