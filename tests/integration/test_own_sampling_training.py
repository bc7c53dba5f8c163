"""A sampling scheme of a user's own is trained with as declared, saved, resumed and shown."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from slow_cases import slow
from tiny_fits import RECORDS, Classifier, make_data, make_private, make_trainer
from torch.utils.data import DataLoader, Dataset

from lightning_pac import PrivacyLedger
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import EpochShuffle, Sampling, register_sampling, sampling_from_dict


@register_sampling
@dataclass(frozen=True)
class Twice(Sampling):
    """Every record twice in one batch of a pass."""

    batch_size: int

    condition: ClassVar[str] = "Every record comes twice in one batch of a pass."

    @property
    def once(self) -> EpochShuffle:
        return EpochShuffle(self.batch_size // 2)

    def draw_pass(self, num_records: int, generator: SecureGenerator) -> Iterator[np.ndarray]:
        for batch in self.once.cut(generator.uniform(num_records).argsort()):
            yield np.repeat(batch, 2)

    def worst_case_square_sum(self, num_differing: int, num_records: Any, num_steps: Any) -> int:
        return 4 * self.once.worst_case_square_sum(num_differing, num_records, num_steps)

    def expected_square_sum(self, num_differing: int, num_records: Any, num_steps: Any) -> float:
        return 4 * self.once.expected_square_sum(num_differing, num_records, num_steps)

    def expected_batch_size(self, num_records: int | None = None) -> float:
        return float(self.batch_size)

    def steps_per_epoch(self, num_records: int | None = None) -> int:
        return self.once.steps_per_epoch(num_records)

    @classmethod
    def small_cases(cls) -> Sequence[Any]:
        return [cls(4)]


class Numbered(Dataset[Any]):
    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        inputs, label = make_data()[index]
        return inputs, label, index


class Noting(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.batches.append(batch[2].tolist())
        return super().training_step(batch[:2], batch_idx)


class StopAfter(pl.Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.steps:
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "stopped.ckpt")
            trainer.should_stop = True
            raise KeyboardInterrupt


def loader() -> DataLoader[Any]:
    return DataLoader(Numbered(), batch_size=20, shuffle=True)


@pytest.mark.parametrize("microbatches", [2, *slow(1)])
def test_the_draws_are_the_schemes_and_so_is_the_price(microbatches: int, tmp_path: Path) -> None:
    private, model = make_private(sampling=Twice(20)), Noting()
    trainer = make_trainer(tmp_path, private, max_epochs=2, accumulate_grad_batches=microbatches)
    trainer.fit(model, loader())
    assert len(model.batches) == 12 * microbatches
    for epoch in range(2):
        drawn = model.batches[6 * microbatches * epoch : 6 * microbatches * (epoch + 1)]
        assert Counter(record for batch in drawn for record in batch) == dict.fromkeys(range(RECORDS), 2)
    # Both differing records twice in one step of each of two passes: order 4, kappa 2, sigma 1.
    assert private.account is not None
    assert private.account.epsilon == pytest.approx(4 * 2**2 * 2 * (2 * 2) ** 2 / 2)
    conditions = private.account.accountant.conditions()
    assert Twice.condition in conditions
    assert any("declared by the user, in Twice" in text for text in conditions)
    with PrivacyLedger.read_only(next(tmp_path.glob("privacy_ledger*.db"))) as ledger:
        assert sampling_from_dict(ledger.accounts()[0].declaration["sampling"]) == Twice(20)


def test_a_run_that_resumes_within_a_pass_pays_for_a_fresh_one(tmp_path: Path) -> None:
    first = make_private(sampling=Twice(20), ledger=tmp_path / "run.db")
    with pytest.raises(SystemExit):
        make_trainer(tmp_path, first, StopAfter(3)).fit(Noting(), loader())
    second = make_private(sampling=Twice(20), ledger=tmp_path / "run.db")
    trainer = make_trainer(tmp_path, second, max_epochs=1)
    trainer.fit(Noting(), loader(), ckpt_path=tmp_path / "stopped.ckpt")
    assert second.account is not None
    assert second.account.stretches == (3, 3)
    assert second.account.epsilon == pytest.approx(4 * 2**2 * 2 * (2 * 2) ** 2 / 2)


def test_passes_that_the_trainer_cuts_are_refused_where_the_scheme_says_no_price(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private(sampling=Twice(20)), limit_train_batches=2)
    with pytest.raises(MisconfigurationException, match=r"passes of 2 steps, and Twice\(batch_size=20\) does not say"):
        trainer.fit(Noting(), loader())
