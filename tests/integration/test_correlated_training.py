"""Fits under correlated noise: the noise of real steps, the order of records, restarts, and what is refused."""

import itertools
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from scipy import linalg
from tiny_fits import RECORDS, Classifier, make_data, make_loader, make_private, make_trainer
from torch.utils.data import DataLoader

from lightning_pac import Banded, BlockedPoisson, CyclicShuffle, EpochShuffle, Poisson, PrivacyLedger, TwoWorldScenario
from lightning_pac.accountants import ledger_total
from lightning_pac.callbacks.srpp_sgd.step import noise_memory
from lightning_pac.callbacks.srpp_sgd.step.noisy_sum import CLIP_CHANNEL
from lightning_pac.data import WithIndex
from lightning_pac.exceptions import LedgerMismatchError
from lightning_pac.gradients import ROUNDING

PER_PASS = 6
LOUD = 1e4  # beside which gradients are nothing


class Wide(Classifier):
    """Enough parameters to see the covariance of their noise; it notes the records of its steps."""

    def __init__(self) -> None:
        super().__init__(network=torch.nn.Linear(6, 500))
        self.steps: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        index, sample = batch
        inputs, labels = sample
        self.steps.append(index.tolist())
        return torch.nn.functional.cross_entropy(self.network(inputs), labels)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 1e-9, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)]


class Noting(pl.Callback):
    """Keeps the released gradients, and stops after some steps with a checkpoint."""

    def __init__(self, stop_after: int = 10**9, path: Path | None = None) -> None:
        self.releases: list[torch.Tensor] = []
        self.stop_after, self.path = stop_after, path

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        self.releases.append(torch.cat([parameter.grad.flatten() for parameter in pl_module.parameters()]).clone())

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self.stop_after:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def fit(
    folder: Path,
    *,
    epochs: int = 3,
    stop: Noting | None = None,
    resume: Path | None = None,
    model: Wide | None = None,
    **kwargs: Any,
) -> Any:
    arguments = {"noise_multiplier": LOUD, "sampling": CyclicShuffle(10), "noise": Banded(4), **kwargs}
    private, noting, model = make_private(**arguments), stop or Noting(), model or Wide()
    trainer = make_trainer(folder, private, noting, max_epochs=epochs)
    loader = DataLoader(WithIndex(make_data()), batch_size=10, shuffle=True)
    trainer.fit(model, loader, ckpt_path=resume, weights_only=False)
    return private, model, torch.stack(noting.releases).double().numpy()


def covariance(releases: Any) -> Any:
    """Of the steps' noise over the coordinates, which all have the same law, in units of a draw."""
    scaled = releases * 10 / (LOUD * np.sqrt(1 + CLIP_CHANNEL**2) * (1 + ROUNDING))
    return scaled @ scaled.T / scaled.shape[1]


def expected(private: Any, blocks: list[int]) -> Any:
    """C^-1 C^-T, with a block for each stretch of noise of its own."""
    coefficients = private.state_dict()["correlation"]
    inverses = []
    for steps in blocks:
        column = np.zeros(steps)
        bands = min(steps, len(coefficients))
        column[:bands] = coefficients[:bands]
        inverses.append(np.linalg.inv(linalg.toeplitz(column, np.zeros(steps))))
    inverse = linalg.block_diag(*inverses)
    return inverse @ inverse.T


def deviates(found: Any, wanted: Any, count: int) -> bool:
    """Whether some of the covariances differs by more than six deviations: below one false alarm in 1e6."""
    scale = np.sqrt((np.outer(np.diag(wanted), np.diag(wanted)) + wanted**2) / count)
    return bool((np.abs(found - wanted) > 6 * scale).any())


def test_the_noise_of_a_fit_is_correlated_as_designed(tmp_path: Path) -> None:
    private, model, releases = fit(tmp_path)
    assert not deviates(covariance(releases), expected(private, [18]), releases.shape[1])
    assert deviates(covariance(releases), np.eye(18), releases.shape[1])
    assert model.steps[:PER_PASS] == model.steps[PER_PASS : 2 * PER_PASS] == model.steps[2 * PER_PASS :]
    assert sorted(itertools.chain(*model.steps[:PER_PASS])) == list(range(RECORDS))
    assert model.steps[0] != list(range(10))


def test_noise_that_is_not_begun_anew_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_memory.NoiseMemory, "draw", lambda self, size, device: torch.randn(size).double())
    private, _, releases = fit(tmp_path)
    assert deviates(covariance(releases), expected(private, [18]), releases.shape[1])


def test_noise_that_goes_on_after_a_pass_was_broken_off_would_be_noticed(tmp_path: Path) -> None:
    # Lightning ends a pass where the hook returns -1; the order begins again, and so must the noise.
    class Breaking(Wide):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if self.current_epoch == 0 and batch_idx == 4 else None

    private, _, releases = fit(tmp_path, model=Breaking())
    assert private.account.stretches == (4, 12)
    assert not deviates(covariance(releases), expected(private, [4, 12]), releases.shape[1])
    assert deviates(covariance(releases), expected(private, [16]), releases.shape[1])
    assert private.account.accountant.units(private.account.stretches) == 3 * 4


SLOW = [pytest.param(step, marks=pytest.mark.slow) for step in range(1, 18) if step not in (1, 6, 9)]


@pytest.mark.parametrize("step", [1, 6, 9, *SLOW])
def test_a_restart_at_any_step_begins_new_noise_in_the_same_order(tmp_path: Path, step: int) -> None:
    path = tmp_path / "stopped.ckpt"
    ledger = tmp_path / "run.db"
    first, begun, before = fit(tmp_path, stop=Noting(step, path), ledger=ledger)
    second, resumed, after = fit(tmp_path, resume=path, ledger=ledger)
    assert second.state_dict()["correlation"] == first.state_dict()["correlation"]
    releases = np.concatenate([before, after])
    assert len(releases) == 18
    assert not deviates(covariance(releases), expected(second, [step, 18 - step]), releases.shape[1])
    order = begun.steps + resumed.steps
    assert order[:PER_PASS] == order[PER_PASS : 2 * PER_PASS] == order[2 * PER_PASS :]
    # Three passes, in which 2 records move the sum by 2 each, in units of 2 / LOUD: no more for the restart.
    assert second.account is not None
    assert second.account.accountant.units(second.account.stretches) == 3 * 4
    with PrivacyLedger(ledger) as opened:
        # The ledger does not know that the second attempt went on with the pass of the first.
        assert ledger_total(opened).world_success_bound >= second.account.exact_success_bound()


def test_a_resumed_run_keeps_its_bands(tmp_path: Path) -> None:
    path = tmp_path / "stopped.ckpt"
    fit(tmp_path, stop=Noting(3, path))
    with pytest.raises(LedgerMismatchError, match=r"noise \(was Banded\(bands=4\), now Banded\(bands=5\)\)"):
        fit(tmp_path, resume=path, noise=Banded(5))


def test_what_breaks_the_distance_between_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs every pass in one order, but sampling is Poisson"):
        make_private(noise=Banded(4), sampling=Poisson(0.1))
    with pytest.raises(ValueError, match="needs every pass in one order, but sampling is EpochShuffle"):
        make_private(noise=Banded(4), sampling=EpochShuffle(10))
    with pytest.raises(ValueError, match="no average over batches"):
        make_private(noise=Banded(4), sampling=CyclicShuffle(10), notion="ms-joint")
    with pytest.raises(ValueError, match="noise has 7 bands, but a pass has 6 steps"):
        fit(tmp_path, noise=Banded(7))
    with pytest.raises(ValueError, match="needs every pass in one order"):
        make_trainer(tmp_path, make_private(noise=Banded(4))).fit(Classifier(), make_loader())
    with pytest.raises(MisconfigurationException, match="this run has no end"):
        fit(tmp_path, epochs=-1)


def test_a_loader_without_shuffling_is_one_order(tmp_path: Path) -> None:
    private = make_private(noise=Banded(4))
    make_trainer(tmp_path, private, max_epochs=2).fit(Classifier(), make_loader(shuffle=False))
    assert private.account is not None
    assert private.account.accountant.units(private.account.stretches) == 2 * 4


def test_blocks_draw_in_secret_and_keep_records_as_far_apart(tmp_path: Path) -> None:
    scenario = TwoWorldScenario(num_differing=1, adjacency="zero_out")
    private, model, releases = fit(tmp_path, scenario=scenario, sampling=BlockedPoisson(1 / 6, 3), noise=Banded(3))
    assert [{record % 3 for record in step} for step in model.steps] == [{0}, {1}, {2}] * 6
    assert not deviates(covariance(releases), expected(private, [18]), releases.shape[1])
    assert private.account.accountant.is_amplified
    assert private.account.accountant.units(18) == 6
    with pytest.raises(MisconfigurationException, match="passes of 4 steps"):
        make_trainer(
            tmp_path, make_private(sampling=BlockedPoisson(1 / 6, 3), noise=Banded(3)), limit_train_batches=4
        ).fit(Classifier(), make_loader())


def test_the_best_bands_are_decided_before_the_run_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "stopped.ckpt"
    asked = {
        "scenario": TwoWorldScenario(num_differing=1, adjacency="zero_out"),
        "epsilon": 8.0, "delta": 1e-3, "noise_multiplier": None, "noise": Banded("best", at_most=3),
        "sampling": Poisson(1 / 6),
    }  # fmt: skip
    private, model, _ = fit(tmp_path, stop=Noting(5, path), **asked)
    assert private.account.accountant.sampling == BlockedPoisson(1 / 6, 3)
    assert private.account.accountant.correlation.num_bands == 3
    assert [{record % 3 for record in step} for step in model.steps] == [{0}, {1}, {2}, {0}, {1}]
    card = torch.load(path, weights_only=False)["privacy_card"]
    assert any("correlated over 3 steps was computed before the run from public" in line for line in card["conditions"])
    # A longer run would have other blocks; one that is resumed keeps its own.
    resumed, _, _ = fit(tmp_path, resume=path, **asked)
    assert resumed.account.accountant.sampling == BlockedPoisson(1 / 6, 3)
    for wrong, words in [
        ({"noise_multiplier": 1.0, "sampling": CyclicShuffle(10)}, "decided at a promise, but noise_multiplier is"),
        ({**asked, "scenario": TwoWorldScenario.differential_privacy(), "sampling": Poisson(0.1, 6)}, "blocks of rec"),
    ]:
        with pytest.raises(ValueError, match=words):
            make_private(**{"noise": Banded("best"), **wrong})


class Reloading(pl.LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return make_loader(shuffle=False)


def test_a_loader_that_is_replaced_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, make_private(noise=Banded(4)), max_epochs=3, reload_dataloaders_every_n_epochs=1)
    with pytest.raises(MisconfigurationException, match="with it the order that correlated noise rests on"):
        trainer.fit(Classifier(), Reloading())
