"""The stacked ensemble against ordinary training, one member at a time."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import EarlyStopping, LearningRateFinder
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from lightning_pac.data.with_index import WithIndex
from lightning_pac.exceptions import LedgerMismatchError
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules.ensembles import StackedNetwork, SubsetEnsemble
from lightning_pac.modules.ensembles.ensemble_record import member_indices
from lightning_pac.scenarios import BalancedSubsets

NUM_RECORDS, NUM_MEMBERS, BATCH, EPOCHS = 48, 6, 16, 3
POOL = BalancedSubsets(NUM_RECORDS, NUM_MEMBERS, seed=0)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))


def tied() -> nn.Module:
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(5, 3))


class DataDependent(nn.Module):
    """Its branch is chosen by a value, which vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs if outputs.abs().max().item() > 0 else outputs * 2


class MeanOfBatch(nn.Module):
    """Its output for one record depends on the other records, without any BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs - inputs.mean(0))


def records(dtype: torch.dtype = torch.float64) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_RECORDS, 5, generator=generator, dtype=dtype)
    return TensorDataset(inputs, (inputs @ torch.randn(5, 3, generator=generator, dtype=dtype)).argmax(1))


def double(network: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: network().double()


def trainer(tmp_path: Path, **kwargs: Any) -> pl.Trainer:
    options = {"max_epochs": EPOCHS, "logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path}
    return pl.Trainer(**{**options, **quiet, **kwargs})


def loader(dataset: Dataset[Any] | None = None, **kwargs: Any) -> DataLoader[Any]:
    return DataLoader(WithIndex(records()) if dataset is None else dataset, batch_size=BATCH, **kwargs)


def fit(tmp_path: Path, ensemble: SubsetEnsemble, data: DataLoader[Any] | None = None, **kwargs: Any) -> SubsetEnsemble:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(val_dataloader|num_workers|logging interval|treespec).*")
        trainer(tmp_path, **kwargs).fit(ensemble, data or loader())
    return ensemble


def fit_alone(network: Callable[[], nn.Module], make_optimizer: Any, index: int, epochs: int = EPOCHS) -> nn.Module:
    """A plain loop on one subset with the shared batches, each restricted to the subset."""
    torch.manual_seed(0)
    model = network()
    optimizer = make_optimizer(model.parameters())
    inputs, targets = records().tensors
    own = torch.from_numpy(POOL.membership(index))
    for _ in range(epochs):
        for start in range(0, NUM_RECORDS, BATCH):
            kept = torch.arange(start, start + BATCH)[own[start : start + BATCH]]
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[kept]), targets[kept]).backward()
            optimizer.step()
    return model


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for (name, mine), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")


OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": functools.partial(torch.optim.Adam, lr=0.02, weight_decay=0.01),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.02, amsgrad=True),
    "nadam": functools.partial(torch.optim.NAdam, lr=0.02),
    "radam": functools.partial(torch.optim.RAdam, lr=0.02),
    "adamax": functools.partial(torch.optim.Adamax, lr=0.02),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=0.05),
    "adadelta": functools.partial(torch.optim.Adadelta, lr=1.0),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "rprop": functools.partial(torch.optim.Rprop, lr=0.01),
}


def test_every_member_has_two_records_in_every_batch() -> None:
    """What the comparison with the plain loop assumes; BatchNorm needs two."""
    for start in range(0, NUM_RECORDS, BATCH):
        assert (POOL.membership_table(np.arange(start, start + BATCH)).sum(0) >= 2).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_member_is_what_an_ordinary_fit_on_its_subset_gives(tmp_path: Path, name: str) -> None:
    network = double(perceptron)
    ensemble = fit(tmp_path, SubsetEnsemble(network, POOL, optimizer=OPTIMIZERS[name]))
    for index in range(NUM_MEMBERS):
        assert_same(ensemble.member(index), fit_alone(network, OPTIMIZERS[name], index))


@pytest.mark.parametrize("make", [normalized, tied, DataDependent, MeanOfBatch])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_chunks_and_networks_that_cannot_be_stacked_train_the_same(
    tmp_path: Path, make: Callable[[], nn.Module], chunk_size: int | None
) -> None:
    network = double(make)
    ensemble = SubsetEnsemble(network, POOL, optimizer=OPTIMIZERS["adam"], chunk_size=chunk_size)
    if make is DataDependent:
        with pytest.warns(UserWarning, match="members run one after another"):
            trainer(tmp_path).fit(ensemble, loader())
    else:
        fit(tmp_path, ensemble)
    for index in (0, NUM_MEMBERS - 1):
        assert_same(ensemble.member(index), fit_alone(network, OPTIMIZERS["adam"], index))
    inputs = records().tensors[0]
    ensemble.eval()
    with torch.no_grad():
        outputs = ensemble(inputs)
        for index in range(NUM_MEMBERS):
            torch.testing.assert_close(outputs[:, index], ensemble.member(index)(inputs))


@torch.no_grad()
def test_inputs_that_no_member_can_take_change_nothing() -> None:
    ensemble = SubsetEnsemble(perceptron, POOL).eval()
    inputs = torch.randn(4, 5)
    before = ensemble(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for wrong in (torch.zeros(4, 3), torch.zeros(4, 3, 3), torch.zeros(0, 0), torch.zeros(4, 5, dtype=torch.int64)):
            with pytest.raises(RuntimeError):
                ensemble(wrong)
    assert ensemble.stack._together
    assert torch.equal(ensemble(inputs), before)


@torch.no_grad()
def test_a_query_that_vmap_cannot_run_is_answered_and_not_remembered() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.layer(inputs)
            return outputs * float(outputs.sum() > 0) if inputs.max() > 100 else outputs

    ensemble = SubsetEnsemble(Picky, POOL).eval()
    inputs = 200 * torch.ones(2, 5)
    with pytest.warns(UserWarning, match="members run one after another"):
        outputs = ensemble(inputs)
    for index in range(NUM_MEMBERS):
        torch.testing.assert_close(outputs[:, index], ensemble.member(index)(inputs))
    assert ensemble.stack._together


def test_the_comparison_notices_wrong_subsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = BalancedSubsets.membership_table
    monkeypatch.setattr(BalancedSubsets, "membership_table", lambda pool, rows=None: ~table(pool, rows))
    ensemble = fit(tmp_path, SubsetEnsemble(double(perceptron), POOL, optimizer=OPTIMIZERS["adam"]))
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        assert_same(ensemble.member(0), fit_alone(double(perceptron), OPTIMIZERS["adam"], 0))


def test_members_are_coupled_when_the_norm_of_all_gradients_is_clipped(tmp_path: Path) -> None:
    """Why clipping by norm is refused: done by hand, it changes the members."""

    class Clipping(SubsetEnsemble):
        def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), 0.5)

    ensemble = fit(tmp_path, Clipping(double(perceptron), POOL, optimizer=OPTIMIZERS["sgd"]))
    with pytest.raises(AssertionError):
        assert_same(ensemble.member(0), fit_alone(double(perceptron), OPTIMIZERS["sgd"], 0))


def test_a_member_without_records_in_the_batch_has_no_loss_and_no_gradient() -> None:
    inputs, targets = records().tensors
    membership = torch.ones(3, BATCH, dtype=torch.bool)
    membership[1] = False
    for together in (True, False):
        stack = StackedNetwork(perceptron().double(), 3)
        stack._together = together
        losses = stack.losses(inputs[:BATCH], targets[:BATCH], membership, F.cross_entropy)
        losses.sum().backward()
        assert losses[1] == 0
        assert losses[0] > 0
        for parameter in stack.parameters():
            assert not parameter.grad[1].any()
            assert parameter.grad[0].any()


def test_chunks_bound_what_is_held_for_the_backward_pass() -> None:
    """Counts the elements that autograd keeps alive at once."""
    inputs, targets = records().tensors
    membership = torch.from_numpy(POOL.membership_table().T.copy())

    def peak(chunk_size: int | None) -> int:
        stack = StackedNetwork(perceptron().double(), NUM_MEMBERS, chunk_size)
        alive = largest = 0

        class Held:
            def __init__(self, tensor: Tensor) -> None:
                nonlocal alive, largest
                self.tensor = tensor
                alive += tensor.numel()
                largest = max(largest, alive)

            def __del__(self) -> None:
                nonlocal alive
                alive -= self.tensor.numel()

        with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
            stack.losses(inputs, targets, membership, F.cross_entropy).sum().backward()
        return largest

    assert peak(1) < peak(3) < peak(None)
    assert peak(1) < peak(None) / 3


def test_the_loss_of_a_record_with_parts_is_their_mean() -> None:
    """As for images whose pixels are classified: an ordinary mean over the member's records and their parts."""
    network = nn.Conv1d(1, 3, 3, padding=1).double()
    inputs = torch.randn(6, 1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.arange(48).view(6, 8) % 3
    membership = POOL.membership_table(np.arange(6)).T
    losses = StackedNetwork(network, NUM_MEMBERS).losses(inputs, targets, torch.from_numpy(membership), F.cross_entropy)
    for index, own in enumerate(torch.from_numpy(membership.copy())):
        assert losses[index].item() == pytest.approx(F.cross_entropy(network(inputs[own]), targets[own]).item())


def test_shards_train_the_same_members_and_are_gathered(tmp_path: Path) -> None:
    network, optimizer = double(perceptron), OPTIMIZERS["adam"]
    whole = fit(tmp_path, SubsetEnsemble(network, POOL, optimizer=optimizer))
    paths = []
    for members in ("3-5", [1, 0, 2]):
        shard = SubsetEnsemble(network, POOL, optimizer=optimizer, members=members)
        run = trainer(tmp_path)
        run.fit(shard, loader())
        paths.append(tmp_path / f"shard-{shard.members[0]}.ckpt")
        run.save_checkpoint(paths[-1])
        with pytest.raises(ValueError, match="index is 9, and this module holds"):
            shard.member(9)
    gathered = SubsetEnsemble.gather(paths, network, POOL)
    for index in range(NUM_MEMBERS):
        assert_same(gathered.member(index), whole.member(index))
    with pytest.raises(ValueError, match=r"checkpoints lack members 0, 1, 2 of 6"):
        SubsetEnsemble.gather(paths[:1], network, POOL)
    with pytest.raises(ValueError, match="checkpoints hold members 3, 4, 5 more than once"):
        SubsetEnsemble.gather([*paths, paths[0]], network, POOL)
    with pytest.raises(ValueError, match="holds members 3, 4, 5, not 0, 1, 2"):
        SubsetEnsemble.load_from_checkpoint(paths[0], network=network, pool=POOL, members="0-2")


def test_a_checkpoint_of_other_subsets_or_another_seed_is_refused(tmp_path: Path) -> None:
    run = trainer(tmp_path, max_epochs=1)
    run.fit(SubsetEnsemble(perceptron, POOL), loader(WithIndex(records(torch.float32))))
    path = tmp_path / "ensemble.ckpt"
    run.save_checkpoint(path)
    restored = SubsetEnsemble.load_from_checkpoint(path, network=perceptron, pool=POOL)
    assert_same(restored.member(2), run.lightning_module.member(2))
    other = BalancedSubsets(NUM_RECORDS, NUM_MEMBERS, seed=1)
    with pytest.raises(ValueError, match=r"trained on the subsets of table .* not of this pool's table"):
        SubsetEnsemble.load_from_checkpoint(path, network=perceptron, pool=other)
    with pytest.raises(ValueError, match="trained with seed 0, not 7"):
        SubsetEnsemble.load_from_checkpoint(path, network=perceptron, pool=POOL, seed=7)
    plain = tmp_path / "plain.ckpt"
    torch.save({"state_dict": restored.state_dict()}, plain)
    with pytest.raises(ValueError, match="carries no table hash"):
        SubsetEnsemble.gather([plain], perceptron, POOL)


def test_optimizers_that_couple_the_members_are_refused(tmp_path: Path) -> None:
    class LayerwiseAdam(torch.optim.Adam):
        """Stands for optimizers that scale by a norm."""

    for kind in (torch.optim.LBFGS, torch.optim.Adafactor, LayerwiseAdam):
        with pytest.raises(MisconfigurationException, match=f"{kind.__name__} may couple the members"):
            fit(tmp_path, SubsetEnsemble(double(perceptron), POOL, optimizer=kind))


def test_trainer_settings_that_couple_the_members_are_refused(tmp_path: Path) -> None:
    ensemble = SubsetEnsemble(double(perceptron), POOL)
    with pytest.raises(MisconfigurationException, match="clips by the norm over all members"):
        fit(tmp_path, ensemble, gradient_clip_val=1.0)
    fit(tmp_path, ensemble, gradient_clip_val=1.0, gradient_clip_algorithm="value", max_epochs=1)

    class Plateau(SubsetEnsemble):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters())
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "train_loss"}}

    with pytest.raises(MisconfigurationException, match="one learning rate by a metric of all members"):
        fit(tmp_path, Plateau(double(perceptron), POOL))
    for callback in (EarlyStopping("train_loss"), LearningRateFinder()):
        with pytest.raises(MisconfigurationException, match="decides for every member by a metric of all of them"):
            fit(tmp_path, ensemble, callbacks=[callback])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"world_size": 2}, "NoneType would average the members' gradients over 2 ranks: use strategy='ddp_private'"),
        ({"precision": "16-mixed"}, "skips a step of all members when one of them overflows: use 'bf16-mixed'"),
    ],
)
def test_devices_and_precisions_that_couple_the_members_are_refused(setting: dict[str, Any], message: str) -> None:
    options = {
        "world_size": 1,
        "strategy": None,
        "gradient_clip_val": None,
        "precision": "32-true",
        "lr_scheduler_configs": [],
        **setting,
    }
    ensemble = SubsetEnsemble(perceptron, POOL)
    ensemble._trainer = SimpleNamespace(**options, optimizers=[])  # type: ignore[assignment]
    with pytest.raises(MisconfigurationException, match=message):
        ensemble.on_fit_start()


def test_a_member_that_diverged_is_named_and_nothing_is_answered(tmp_path: Path) -> None:
    ensemble = SubsetEnsemble(perceptron, POOL)
    with torch.no_grad():
        next(ensemble.parameters())[4] = float("nan")
    with PACResponder(ensemble, POOL.draw_secret(tmp_path / "secret.key"), 0.01, tmp_path / "ledger.db") as responder:
        with pytest.raises(ValueError, match="Members 4 give NaN: train them again"):
            responder(torch.zeros(2, 5))
        assert responder.num_responses == 0


def test_an_ensemble_of_other_subsets_or_without_a_member_does_not_answer(tmp_path: Path) -> None:
    secret = POOL.draw_secret(tmp_path / "secret.key")
    other = SubsetEnsemble(perceptron, BalancedSubsets(NUM_RECORDS, NUM_MEMBERS, seed=1))
    with pytest.raises(LedgerMismatchError, match="was trained on the table"):
        PACResponder(other, secret, 0.01, tmp_path / "ledger.db")
    with pytest.raises(ValueError, match="holds 5 of 6 members"):
        PACResponder(SubsetEnsemble(perceptron, POOL, members="0-4"), secret, 0.01, tmp_path / "ledger.db")


def test_data_without_indices_or_of_another_length_is_refused(tmp_path: Path) -> None:
    ensemble = SubsetEnsemble(double(perceptron), POOL)
    with pytest.raises(TypeError, match=r"wrap the training dataset in lightning_pac.data.WithIndex"):
        fit(tmp_path, ensemble, loader(records()))
    short = WithIndex(Subset(records(), range(40)))
    with pytest.raises(ValueError, match=r"has 40 records, but the pool was made for 48"):
        fit(tmp_path, ensemble, loader(short))
    with pytest.raises(TypeError, match="and gives them no fixed index"):
        WithIndex(iter([1, 2]))


def test_a_part_of_the_indexed_records_keeps_its_indices(tmp_path: Path) -> None:
    """Training on part of the pool: a Subset of the indexed dataset, not the other way round."""
    ensemble = fit(tmp_path, SubsetEnsemble(double(perceptron), POOL), loader(Subset(WithIndex(records()), range(40))))
    assert ensemble.trainer.global_step == 3 * EPOCHS


def test_dropout_draws_differ_between_members() -> None:
    stack = StackedNetwork(nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5)), 2)
    outputs = stack(torch.ones(1, 4))
    assert (outputs[0] != outputs[1]).any()
    assert torch.equal(stack.eval()(torch.ones(1, 4))[0], stack(torch.ones(1, 4))[1])


def test_validation_and_prediction_take_plain_batches(tmp_path: Path) -> None:
    ensemble = SubsetEnsemble(double(perceptron), POOL, lr_scheduler=functools.partial(_halving, step_size=1))
    run = trainer(tmp_path, max_epochs=2)
    run.fit(ensemble, loader(), loader(records()))
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-3 / 4)
    accuracy = run.validate(ensemble, loader(records()), verbose=False)[0]["val_accuracy"]
    votes = torch.cat(run.predict(ensemble, loader(records())))
    assert votes.shape == (NUM_RECORDS, NUM_MEMBERS)
    assert accuracy == pytest.approx((votes == records().tensors[1][:, None]).double().mean().item(), abs=1e-6)
    assert torch.equal(votes, torch.cat(run.predict(ensemble, loader())))


def _halving(optimizer: torch.optim.Optimizer, step_size: int) -> torch.optim.lr_scheduler.StepLR:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size, gamma=0.5)


def test_the_seed_is_public_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (SubsetEnsemble(perceptron, POOL, seed=3) for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert_same(first.member(1), second.member(4))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ("0-9", "members has 6, which is outside the pool: they are 0 to 5"),
        ("first", "cannot be read: write ranges as '0-15'"),
        ([1, 1], "members name one twice"),
        ([], "members is empty"),
    ],
)
def test_bad_members_are_refused(members: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        member_indices(members, NUM_MEMBERS)


def test_bad_networks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"network has a lazy parameter .*: give its layer the input size"):
        StackedNetwork(nn.LazyLinear(3), 4)
    with pytest.raises(ValueError, match="chunk_size is 0, but must be at least 1"):
        StackedNetwork(nn.Linear(2, 3), 4, chunk_size=0)
