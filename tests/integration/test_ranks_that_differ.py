"""Ranks that were not given the same: every rank says what differs before anything is spent, and none hangs."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torchmetrics
from gloo_ranks import on_ranks
from lightning.pytorch.callbacks import EarlyStopping
from tiny_fits import Classifier, make_data, make_private, make_trainer
from torch import nn
from torch.distributed import all_reduce
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from lightning_pac import Poisson, PrivateMetrics, TwoWorldScenario, WithIndex
from lightning_pac.callbacks.srpp_sgd.guards import repeated_check
from lightning_pac.callbacks.srpp_sgd.loss_check import coupling

SCENARIO = TwoWorldScenario(num_differing=1)
OTHER_RECORDS = "what the indices of the train loader mean differs between rank 0 and rank 1"
OTHER_CONTENTS = "The records of the train loader are others, or in another order, on some ranks"


class Transformed(Dataset[Any]):
    """Changes every record by a function."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor], records: Any = None) -> None:
        self.records, self.change = records or make_data(), change

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        inputs, label = self.records[index]
        return self.change(inputs), label


class Validated(Classifier):
    """Logs the accuracy of validation."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=3)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.accuracy(self.network(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)


def split(rank: int) -> Subset[Any]:
    """A random half, drawn by each rank for itself."""
    half = torch.randperm(60, generator=torch.Generator().manual_seed(rank))[:30]
    return Subset(make_data(), half.tolist())


def reordered(rank: int) -> TensorDataset:
    order = torch.arange(60).roll(rank)
    return TensorDataset(*(tensor[order] for tensor in make_data().tensors))


def frozen(rank: int) -> Classifier:
    model = Classifier()
    model.network[0].requires_grad_(rank == 0)
    return model


class Choosing(Classifier):
    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self.optimizer = optimizer

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), 0.05)


def augmented(inputs: torch.Tensor) -> torch.Tensor:
    return inputs + torch.randn(6) + random.random() + np.random.rand()  # noqa: NPY002


# What a rank is given, by its number: of a fit, and under "private" of SRPPSGD. And what every rank then says.
Case = tuple[Callable[[int], dict[str, Any]], str]
REFUSED: dict[str, Case] = {
    "another random Subset": (lambda rank: {"data": split(rank)}, OTHER_RECORDS),
    "another Subset in a wrapper": (lambda rank: {"data": WithIndex(split(rank))}, OTHER_RECORDS),
    "another Subset in a ConcatDataset": (
        lambda rank: {"data": ConcatDataset([split(rank), make_data(7)])},
        OTHER_RECORDS,
    ),
    "another order of a list": (lambda rank: {"data": [*make_data()][:: 1 - 2 * rank]}, OTHER_CONTENTS),
    "another order of tensors": (lambda rank: {"data": reordered(rank)}, OTHER_CONTENTS),
    "another transform": (lambda rank: {"data": Transformed(lambda x: x * (1 + rank))}, OTHER_CONTENTS),
    "another number of records": (lambda rank: {"data": make_data(60 - rank)}, OTHER_RECORDS),
    "another batch size": (lambda rank: {"loader": {"batch_size": 5 + rank}}, "the draw of the train loader differs"),
    "shuffling on one": (lambda rank: {"loader": {"shuffle": rank == 0}}, "the draw of the train loader differs"),
    "drop_last on one": (lambda rank: {"loader": {"drop_last": rank == 0}}, "the draw of the train loader differs"),
    "another norm": (
        lambda rank: {"private": {"max_grad_norm": 1.0 + 49.0 * rank}},
        r"SRPPSGD(max_grad_norm=) differs between rank 0 and rank 1 (1.0 and 50.0)",
    ),
    "blocks in another order": (
        lambda rank: {"private": {"max_grad_norm": dict([("network.0", 0.5), ("network.2", 1.0)][:: 1 - 2 * rank])}},
        "SRPPSGD(max_grad_norm=) differs",
    ),
    "another noise": (lambda rank: {"private": {"noise_multiplier": 1.0 + rank}}, "SRPPSGD(noise_multiplier=) differs"),
    "another scenario": (
        lambda rank: {"private": {"scenario": TwoWorldScenario(1 + rank)}},
        "SRPPSGD(scenario.num_differing=) differs",
    ),
    "another sampling": (
        lambda rank: {"private": {"sampling": Poisson(0.1 * (1 + rank))}},
        "SRPPSGD(sampling=) differs",
    ),
    "another ledger": (lambda rank: {"private": {"ledger": f"{rank}.db"}}, "SRPPSGD(ledger=) differs"),
    "another accumulation": (
        lambda rank: {"trainer": {"accumulate_grad_batches": 1 + rank}},
        "Trainer(accumulate_grad_batches=) differs between rank 0 and rank 1 (1 and 2)",
    ),
    "another number of steps": (lambda rank: {"trainer": {"max_steps": 3 + rank}}, "Trainer(max_steps=) differs"),
    "another precision": (
        lambda rank: {"trainer": {"precision": ["32-true", "bf16-mixed"][rank]}},
        "Trainer(precision=) differs",
    ),
    "early stopping on one": (
        lambda rank: {"callbacks": [EarlyStopping("accuracy")] * rank},
        "list of private, checkpointing and early-stopping callbacks differs",
    ),
    "layers that are frozen on one": (
        lambda rank: {"model": frozen(rank)},
        "the parameter or buffer network.0.weight differs",
    ),
    "layers of another size": (
        lambda rank: {"model": Classifier(network=nn.Sequential(nn.Linear(6, 3 + rank), nn.Linear(3 + rank, 3)))},
        "the parameter or buffer network.0.weight differs",
    ),
    "another optimizer": (
        lambda rank: {"model": Choosing([torch.optim.SGD, torch.optim.Adam][rank])},
        "the optimizer differs between rank 0 and rank 1 ('SGD' and 'Adam')",
    ),
    "another model": (lambda rank: {"model": [Classifier, Validated][rank]()}, "the module differs"),
    "another learning rate": (
        lambda rank: {"model": Classifier(learning_rate=0.1 + rank)},
        "lr of group 0 of the optimizer differs between rank 0 and rank 1 ('0.1' and '1.1')",
    ),
    "a loader that is refused on one": (
        lambda rank: {"loader": {"shuffle": False, "sampler": [0] * 60} if rank else {}},
        "is unknown, and nothing bounds how often it draws a record",
    ),
    "another validation split": (
        lambda rank: {"model": Validated(), "validation": split(rank)},
        "what the indices of the evaluation loader mean differs between rank 0 and rank 1",
    ),
    "another order in validation": (
        lambda rank: {"model": Validated(), "validation": reordered(rank)},
        "The records of the evaluation loader are others, or in another order",
    ),
    "another batch size in validation": (
        lambda rank: {"model": Validated(), "validation": make_data(30), "sizes": 5 + rank},
        "the draw of the evaluation loader differs",
    ),
    "another bound on metrics": (
        lambda rank: {"model": Validated(), "validation": make_data(30), "metrics": {"max_contribution": 1.0 + rank}},
        "PrivateMetrics(max_contribution=) differs between rank 0 and rank 1 (1.0 and 2.0)",
    ),
    "metrics on one": (
        lambda rank: {"model": Validated(), "validation": make_data(30), "measured": rank == 0},
        "list of private, checkpointing and early-stopping callbacks differs",
    ),
    "clipping of the Trainer on one": (
        lambda rank: {"trainer": {"gradient_clip_val": 1.0} if rank else {}},
        "Trainer(gradient_clip_val=) differs between rank 0 and rank 1 (None and 1.0)",
    ),
    "what the Trainer detects on one": (
        lambda rank: {"trainer": {"detect_anomaly": True} if rank else {}},
        "detect_anomaly=True ends the run",
    ),
    "another number of loaders": (
        lambda rank: {"loaders": 1 + rank},
        "the number of train loaders differs between rank 0 and rank 1 (1 and 2)",
    ),
    "another number of validation loaders": (
        lambda rank: {"model": Validated(), "validation": make_data(30), "validations": 2 - rank},
        "the number of validation loaders differs between rank 0 and rank 1 (2 and 1)",
    ),
    "another price of metrics": (
        lambda rank: {"model": Validated(), "validation": make_data(30), "metrics": {"epsilon": 1.0 + rank}},
        "PrivateMetrics(epsilon=) differs",
    ),
}

# Each rank may be given these.
ACCEPTED: dict[str, Callable[[int], dict[str, Any]]] = {
    "another seed": lambda rank: {"seed": rank},
    "augmentations": lambda rank: {"seed": rank, "data": Transformed(augmented)},
    "another number of workers": lambda rank: {"loader": {"num_workers": rank}},
}


def fit(rank: int, size: int, folder: Path, given: dict[str, Any]) -> None:
    """One fit with what this rank is given."""
    torch.manual_seed(given.get("seed", 0))
    private = make_private(**{"ledger": folder / "run.db", "scenario": SCENARIO, **given.get("private", {})})
    callbacks: list[pl.Callback] = [private, *given.get("callbacks", [])]
    validation = None
    if "validation" in given:
        validation = [DataLoader(given["validation"], given.get("sizes", 5))] * given.get("validations", 1)
        arguments = {"epsilon": 1.0, "ledger": folder / "run.db", **given.get("metrics", {})}
        if given.get("measured", True):
            callbacks.append(PrivateMetrics(["accuracy"], SCENARIO, renyi_order=4, **arguments))
    options = {"max_epochs": 1, "max_steps": 3, **given.get("trainer", {})}
    trainer = make_trainer(folder, *callbacks, devices=size, strategy="ddp_private", **options)
    loader = DataLoader(given.get("data", make_data()), **{"batch_size": 5, "shuffle": True, **given.get("loader", {})})
    trainer.fit(
        given.get("model") or Classifier(), [loader] * given["loaders"] if "loaders" in given else loader, validation
    )


def all_cases(rank: int, size: int, folder: Path) -> dict[str, tuple[str, bool]]:
    """What this rank says to each case, and whether there is a ledger afterwards."""
    found = {}
    cases = {name: case for name, (case, _) in REFUSED.items()} | ACCEPTED
    for number, (name, case) in enumerate(cases.items()):
        own = folder / str(number)
        try:
            fit(rank, size, own, case(rank))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}", (own / "run.db").exists()
        else:
            found[name] = "accepted", (own / "run.db").exists()
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[str, bool]]]:
    return on_ranks(all_cases, 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", REFUSED)
def test_every_rank_says_what_differs_before_anything_is_spent(answers: Any, name: str) -> None:
    for found, spent in (rank[name] for rank in answers):
        assert REFUSED[name][1] in found
        assert not spent


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_may_differ_is_accepted(answers: Any, name: str) -> None:
    assert [rank[name][0] for rank in answers] == ["accepted"] * 2


class Exchanging(Classifier):
    """Sums something over ranks in each step, as a logged count or a metric that is synchronized does."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        dist.all_reduce(torch.ones(1))
        all_reduce(torch.ones(1))
        return super().training_step(batch, batch_idx)


def exchanging(rank: int, size: int, folder: Path) -> int:
    repeated_check.SHARE = 1e-9 if rank else 1e9  # to the one clock a check is always due, to the other never
    coupling._SECONDS *= rank  # no time for the longer parts of a check here
    options = {"devices": size, "strategy": "ddp_private", "max_epochs": 4}
    trainer = make_trainer(folder, make_private(ledger=folder / "run.db"), **options)
    trainer.fit(Exchanging(), DataLoader(make_data(), batch_size=5, shuffle=True))
    return trainer.global_step


@pytest.mark.checks_each_fit
def test_ranks_whose_checks_take_other_steps_exchange_nothing_in_them(tmp_path: Path) -> None:
    assert on_ranks(exchanging, 2, tmp_path) == [24, 24]


class EndingOnOne(Classifier):
    """Ends in an error on one rank, from some step on; where that is in a check, the other must not wait."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        dist.all_reduce(torch.ones(1))
        if self.global_rank == 1 and self.global_step >= 7:
            raise RuntimeError("one rank only")
        return super().training_step(batch, batch_idx)


def ending_on_one(rank: int, size: int, folder: Path) -> list[str]:
    options = {"devices": size, "strategy": "ddp_private", "max_epochs": 4}
    trainer = make_trainer(folder, make_private(ledger=folder / "run.db"), **options)
    with pytest.raises(RuntimeError) as caught:
        trainer.fit(EndingOnOne(), DataLoader(make_data(), batch_size=5, shuffle=True))
    return [str(caught.value)]


@pytest.mark.checks_each_fit
def test_an_error_on_one_rank_in_a_check_ends_all(tmp_path: Path) -> None:
    [first], [second] = on_ranks(ending_on_one, 2, tmp_path)
    assert first.startswith("Another rank ended before this one")
    assert second == "one rank only"
