"""Private training over all GPUs of a machine, under NCCL."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from scipy import stats
from test_ddp_private import Silent, loader
from tiny_fits import make_private

from lightning_pac import SRPPAccountant, TwoWorldScenario
from lightning_pac.scenarios import EpochShuffle

pytestmark = pytest.mark.gpu


def train(folder: Path) -> tuple[torch.Tensor, float]:
    model, private = Silent(), make_private(noise_multiplier=1.5, max_grad_norm=0.7, ledger=folder / "run.db")
    trainer = Trainer(
        accelerator="gpu",
        devices=-1,
        strategy="ddp_private_spawn",
        max_epochs=3,
        default_root_dir=folder,
        callbacks=[private],
        logger=False,
        enable_progress_bar=False,
    )
    before = torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])
    trainer.fit(model, loader())
    moved = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) - before
    return moved, float(trainer.callback_metrics["privacy/rpp_epsilon"])


def test_the_account_and_the_noise_are_those_of_the_devices_together(tmp_path: Path) -> None:
    devices = torch.cuda.device_count()
    moved, epsilon = train(tmp_path)
    batch_size = 5 * devices
    steps = 3 * -(-60 // batch_size)
    accountant = SRPPAccountant(TwoWorldScenario(2, num_records=60), EpochShuffle(batch_size), 4.0, "rpp")
    assert epsilon == pytest.approx(accountant.epsilon(1.5, steps))
    deviation = 0.05 * 1.5 * 0.7 * 1.01**0.5 * steps**0.5 / batch_size  # of a walk with learning rate 0.05
    assert stats.kstest(moved.cpu().numpy() / deviation, "norm").pvalue > 1e-6
