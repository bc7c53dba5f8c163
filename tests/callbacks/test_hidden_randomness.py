"""Masks under a seed that is known break the account; drawn in secret, they cannot be foreseen."""

import random
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_pac import SRPPSGD, EpochShuffle, TwoWorldScenario
from lightning_pac.callbacks.shared import HiddenRandomness
from lightning_pac.gradients import make_engine
from lightning_pac.randomness import global_generators


class Masked(pl.LightningModule):
    """A network with dropout that remembers what its masks let through."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 30), nn.Dropout(0.5), nn.Linear(30, 2))
        self.masks: list[torch.Tensor] = []
        self.network[1].register_forward_hook(lambda module, inputs, output: self.masks.append(output.detach() != 0))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(12, 8, generator=generator), torch.randint(2, (12,), generator=generator))


def clipped_sum(model: Masked, records: slice) -> torch.Tensor:
    torch.manual_seed(0)
    engine = make_engine()
    engine.attach(model)
    inputs, labels = data().tensors
    nn.functional.cross_entropy(model.network(inputs[records]), labels[records]).backward()
    sums, _ = engine.clipped_sum(max_grad_norm=1.0)
    engine.detach()
    return torch.cat([total.flatten() for total in sums])


def test_under_a_known_seed_one_record_more_moves_the_sum_by_more_than_the_account_says() -> None:
    """Why the randomness is hidden: under add_remove the account says 1, whatever the other records are."""
    torch.manual_seed(1)
    model = Masked()
    assert (clipped_sum(model, slice(0, 12)) - clipped_sum(model, slice(1, 12))).norm() > 1.5
    model.eval()
    assert (clipped_sum(model, slice(0, 12)) - clipped_sum(model, slice(1, 12))).norm() <= 1.0 + 1e-5


def test_a_private_run_draws_its_masks_in_secret_and_puts_the_generators_back(tmp_path: Path) -> None:
    masks, after = [], []
    for _ in range(2):
        seed_everything(7, verbose=False)
        model = Masked()
        private = SRPPSGD(TwoWorldScenario(num_differing=1), noise_multiplier=5.0, renyi_order=4)
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=1,
            callbacks=[private],
            default_root_dir=tmp_path,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, DataLoader(data(), batch_size=12))
        masks.append(model.masks[-1])
        after.append((torch.rand(3).tolist(), np.random.rand(), random.random()))  # noqa: NPY002
    assert not torch.equal(masks[0], masks[1])
    assert after[0] == after[1]


class Augmented(Dataset[Any]):
    """Every record comes with numbers from each generator that a worker's augmentations may use."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        numbers = [float(torch.rand(())), np.random.rand(), random.random()]  # noqa: NPY002
        return data()[index][0], data()[index][1], torch.tensor(numbers, dtype=torch.float64)


class Remembering(Masked):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.numbers = batch[2]
        return super().training_step(batch, batch_idx)


def seed_worker(worker_id: int) -> None:
    """What many scripts do for reproducible augmentations."""
    torch.manual_seed(worker_id)
    np.random.seed(worker_id)  # noqa: NPY002
    random.seed(worker_id)


@pytest.mark.parametrize("options", [{}, {"worker_init_fn": seed_worker, "persistent_workers": True}])
@pytest.mark.parametrize("sampling", [None, EpochShuffle(12)])
def test_workers_draw_their_augmentations_in_secret(options: Any, sampling: Any, tmp_path: Path) -> None:
    """Also in the first pass, whose workers start before training does."""
    seen = []
    loader = DataLoader(Augmented(), batch_size=12, num_workers=1, **options)
    for _ in range(2):
        seed_everything(7, verbose=False)
        model = Remembering()
        private = SRPPSGD(TwoWorldScenario(num_differing=1), noise_multiplier=5.0, renyi_order=4, sampling=sampling)
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=1,
            callbacks=[private],
            default_root_dir=tmp_path,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader)
        seen.append(model.numbers)
    assert not bool((seen[0] == seen[1]).any())
    assert loader.worker_init_fn is options.get("worker_init_fn")


def test_the_whole_state_is_drawn_and_gives_uniform_numbers() -> None:
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        hidden = HiddenRandomness()
        draws.append(torch.rand(20_000))
        hidden.restore()
    assert not torch.equal(draws[0], draws[1])
    # The mean of 20,000 uniforms: six standard errors, a false alarm in 1e-9 of runs.
    assert all(abs(float(values.mean()) - 0.5) < 6 * 12**-0.5 * 20_000**-0.5 for values in draws)


def test_another_layout_of_torchs_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_generators, "_STATE_BYTES", 100)
    with pytest.raises(RuntimeError, match="cannot be drawn in secret"):
        HiddenRandomness()
