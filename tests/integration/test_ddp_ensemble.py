"""A subset ensemble whose members are divided among gloo processes equals one that a single process trained."""

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from gloo_ranks import RankProcesses, on_ranks
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny_fits import make_data, make_private, make_trainer
from torch import nn
from torch.utils.data import DataLoader

from lightning_pac import BalancedSubsets, SubsetEnsemble, WithIndex

RECORDS, MEMBERS = 40, 8


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def make_ensemble() -> SubsetEnsemble:
    pool = BalancedSubsets(RECORDS, MEMBERS, seed=0)
    return SubsetEnsemble(network, pool, optimizer=partial(torch.optim.Adam, lr=0.02, weight_decay=0.01))


class Watch(pl.Callback):
    """Notes what a rank holds while it trains, and which records its batches have."""

    def __init__(self) -> None:
        self.held: list[tuple[int, ...]] = []
        self.batches: list[list[int]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.held.append((next(module.parameters()).shape[0], len(trainer.optimizers[0].param_groups[0]["params"])))
        self.batches.append(batch.index.tolist())


def fit(rank: int, size: int, folder: Path, shuffle: bool, epochs: int, checkpoint: Path | None) -> dict[str, Any]:
    torch.manual_seed(rank)
    ensemble, watch = make_ensemble(), Watch()
    saver = ModelCheckpoint(folder, filename="{epoch}", every_n_epochs=1, save_top_k=-1)
    options = {"devices": size, "strategy": "ddp_private" if size > 1 else "auto", "max_epochs": epochs}
    trainer = make_trainer(folder, watch, saver, **options, enable_checkpointing=True)
    train = DataLoader(WithIndex(make_data(RECORDS)), batch_size=12, shuffle=shuffle)
    trainer.fit(ensemble, train, DataLoader(make_data(30), batch_size=12), ckpt_path=checkpoint)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    state = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
    return {"state": state, "metrics": metrics, "held": set(watch.held), "batches": watch.batches}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("alone")
    return fit(0, 1, folder, False, 3, None), folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    folder = tmp_path_factory.mktemp("two")
    return on_ranks(fit, 2, folder, False, 3, None), folder


def assert_same(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(state[name], tensor, atol=1e-6), name


def test_each_rank_trains_its_members_as_one_process_would(alone: Any, two: Any) -> None:
    for result in two[0]:
        assert result["held"] == {(MEMBERS // 2, 4)}
        assert result["batches"] == alone[0]["batches"]
        assert_same(result["state"], alone[0]["state"])
        assert result["metrics"] == pytest.approx(alone[0]["metrics"], abs=1e-6)


def test_a_checkpoint_holds_all_members_and_what_the_optimizer_knows_of_them(alone: Any, two: Any) -> None:
    first, second = (torch.load(folder / "epoch=1.ckpt", weights_only=True) for _, folder in (alone, two))
    assert second["subset_ensemble"] == first["subset_ensemble"]
    assert_same(second["state_dict"], first["state_dict"])
    expected = first["optimizer_states"][0]["state"]
    for number, values in second["optimizer_states"][0]["state"].items():
        assert_same(values, expected[number])


def test_a_fit_goes_on_with_another_number_of_ranks(alone: Any, two: Any, tmp_path: Path) -> None:
    for result in on_ranks(fit, 3, tmp_path, False, 3, two[1] / "epoch=1.ckpt"):
        assert_same(result["state"], alone[0]["state"])
        assert {held for held, _ in result["held"]} <= {2, 3}


def test_shuffled_batches_are_the_same_on_all_ranks(tmp_path: Path) -> None:
    first, second = on_ranks(fit, 2, tmp_path, True, 2, None)
    assert first["batches"] == second["batches"]
    assert sorted(chain(*first["batches"][:4])) == list(range(RECORDS))
    assert first["batches"][:4] != first["batches"][4:]
    assert_same(first["state"], second["state"])


def with_private_gradients(rank: int, size: int, folder: Path) -> None:
    trainer = make_trainer(folder, make_private(), strategy="ddp_private", devices=size)
    trainer.fit(make_ensemble(), DataLoader(WithIndex(make_data(RECORDS)), batch_size=12))


def test_members_and_records_are_not_divided_at_once(tmp_path: Path) -> None:
    for result in RankProcesses(with_private_gradients, 2, tmp_path).results():
        assert "MisconfigurationException: SRPPSGD divides records among the ranks" in result
