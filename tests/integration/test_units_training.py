"""Fits whose unit has several rows: views of a record, or records of a person."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from slow_cases import slow
from tiny_fits import Classifier, Validated, make_data, make_private, make_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from lightning_pac import (
    DPSGD,
    Persons,
    Poisson,
    PrivacyLedger,
    PrivateMetrics,
    Sequential,
    SRPPAccountant,
    TwoWorldScenario,
)
from lightning_pac.data import private_loader
from lightning_pac.exceptions import PrivacyViolationError

QUIET = 1e-7  # noise multiplier of fits whose gradients are compared with a loop over records


class Shaken(Dataset[Any]):
    """Records with a random transform; record i belongs to person i // 3, but the last two persons have less."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        fixed = torch.Generator().manual_seed(index)
        features = 3.0 * torch.randn(6, generator=fixed)
        return features + torch.randn(6), index % 3, min(index // 3, 5) if index < 19 else 6


class Noting(Classifier):
    """Keeps what a step sees and what it is given for a gradient."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.batch = batch
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def on_train_batch_end(self, *_: Any) -> None:
        self.released = torch.cat([parameter.grad.flatten() for parameter in self.parameters()])

    def on_train_batch_start(self, *_: Any) -> None:
        self.before = [parameter.detach().clone() for parameter in self.parameters()]


def clipped_by_loop(model: Noting, groups: list[list[int]], views: int) -> Tensor:
    """The sum over groups of the clipped sum of their rows' gradients, each of a forward pass of its own."""
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), model.before, strict=True):
            parameter.copy_(value)
    total = torch.zeros(())
    for rows in groups:
        gradient = torch.zeros(())
        for row in rows:
            loss = nn.functional.cross_entropy(
                model.network(model.batch[0][row : row + 1]), model.batch[1][row : row + 1]
            )
            parts = torch.autograd.grad(loss, list(model.parameters()))
            gradient = gradient + torch.cat([part.flatten() for part in parts]) / views
        total = total + gradient / max(1.0, float(gradient.norm()))
    return total


@pytest.mark.parametrize("workers", [0, 1])
def test_views_of_a_record_are_as_many_forward_passes_averaged(workers: int, tmp_path: Path) -> None:
    model, private = Noting(), make_private(noise_multiplier=QUIET, views=4)
    loader = DataLoader(Shaken(), batch_size=10, shuffle=True, num_workers=workers)
    trainer = make_trainer(tmp_path, private, max_steps=1)
    trainer.fit(model, loader)
    assert len(model.batch[0]) == 40
    groups = [list(range(start, start + 4)) for start in range(0, 40, 4)]
    assert all(
        len(model.batch[1][rows].unique()) == 1 and len(model.batch[0][rows].unique(dim=0)) == 4 for rows in groups
    )
    torch.testing.assert_close(model.released, clipped_by_loop(model, groups, 4) / 10, rtol=1e-3, atol=1e-5)
    assert private.account is not None
    assert private.account.accountant.scenario.num_records == 20


def test_records_of_a_person_are_clipped_as_one_and_cost_what_one_record_does(tmp_path: Path) -> None:
    scenario, unit = TwoWorldScenario(num_differing=1), Persons(of=2, at_most=3)
    private = make_private(
        scenario=scenario, noise_multiplier=QUIET, sampling=Sequential(7), unit=unit, views=2, ledger=tmp_path / "l.db"
    )
    model = Noting()
    trainer = make_trainer(tmp_path, private, max_steps=1)
    trainer.fit(model, DataLoader(Shaken(), batch_size=5))
    # Seven persons: five of three records, one of four of which three are used, one of one.
    owners = model.batch[2].tolist()
    assert len(owners) == 7 * 3 * 2
    assert [owners[start] for start in range(0, 42, 6)] == list(range(7))
    groups = [list(range(start, start + 6)) for start in range(0, 36, 6)] + [[36, 37]]
    torch.testing.assert_close(model.released, clipped_by_loop(model, groups, 2) / 7, rtol=1e-3, atol=1e-5)
    assert private.account is not None
    wanted = SRPPAccountant(scenario.resolve(7), Sequential(7), 4.0, "rpp")
    assert private.account.epsilon == pytest.approx(wanted.epsilon(QUIET, 1), rel=1e-6)
    card = (
        next(tmp_path.glob("*card*.md")) if list(tmp_path.glob("*card*.md")) else next(tmp_path.glob("*card*"))
    ).read_text()
    assert "at most 1 of 7 persons" in card
    assert "with all records that name them (at position 2, counted from 0), of which at most 3 are used." in card
    with PrivacyLedger.read_only(tmp_path / "l.db") as ledger:
        assert ledger.accounts()[0].declaration["coupling"]["scenario"]["unit"] == "person by 2"


@pytest.mark.parametrize("of_label", [False, True])
@pytest.mark.parametrize("adjacency", ["replace", "add_remove"])
def test_groups_far_fewer_than_persons_are_warned_of(of_label: bool, adjacency: str, tmp_path: Path) -> None:
    """`of` pointed to the label, and two groups were promised what thousands of people were meant to have."""
    data = TensorDataset(torch.randn(180, 6), torch.arange(180) % 3, torch.arange(180) // 2)
    stated = {"batch_size": 45} if adjacency == "add_remove" else {}
    private = make_private(
        scenario=TwoWorldScenario(1, adjacency=adjacency),  # type: ignore[arg-type]
        sampling=Poisson(0.5, **stated),
        unit=Persons(of=1 if of_label else 2, at_most=4),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(tmp_path, private, max_steps=1).fit(Noting(), DataLoader(data, batch_size=10))
    found = [str(warning.message) for warning in caught if "such as its label" in str(warning.message)]
    assert len(found) == of_label
    assert not any(character.isdigit() for character in "".join(found).replace("If 1 in", "")), "the number is secret"


@pytest.mark.parametrize("protected", ["windows", "households", "ten windows"])
def test_windows_of_one_series_that_count_as_one_record_each_are_warned_of(protected: str, tmp_path: Path) -> None:
    """A household of a hundred overlapping windows was promised what one of them was, without a word."""
    generator = torch.Generator().manual_seed(0)
    series = {household: torch.randn(60, generator=generator) for household in range(6)}
    data = [
        (values[start : start + 8], int(values[start + 8] > 0), household)
        for household, values in series.items()
        for start in range(0, 50, 2)
    ]
    terms: dict[str, Any] = {"unit": Persons(of=2, at_most=10)} if protected == "households" else {}
    scenario = TwoWorldScenario(10 if protected == "ten windows" else 1)
    private = make_private(scenario=scenario, sampling=Poisson(1 / 3), **terms)
    model = Noting()
    model.network = nn.Linear(8, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(tmp_path, private, max_steps=1).fit(model, DataLoader(data, 30))  # type: ignore[arg-type]
    told = [str(warning.message) for warning in caught if "windows of one series" in str(warning.message)]
    assert len(told) == (protected == "windows")


@pytest.mark.parametrize("protected", ["records", "sources", "ten records"])
def test_copies_that_even_out_classes_are_warned_of(protected: str, tmp_path: Path) -> None:
    """Ten copies of a record moved a released sum by ten times what was promised, without a word."""
    rows = torch.cat([torch.arange(60), torch.arange(6).repeat(9)])
    data = TensorDataset(*make_data(60)[rows], rows)
    terms: dict[str, Any] = {"unit": Persons(of=2, at_most=10)} if protected == "sources" else {}
    private = make_private(
        scenario=TwoWorldScenario(10 if protected == "ten records" else 1), sampling=Poisson(1 / 3), **terms
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(tmp_path, private, max_steps=1).fit(Noting(), DataLoader(data, 30))
    told = [str(warning.message) for warning in caught if "list each once" in str(warning.message)]
    assert len(told) == (protected == "records")


def test_persons_are_drawn_by_poisson_under_differential_privacy(tmp_path: Path) -> None:
    private = DPSGD(3.0, 1e-5, Poisson(0.5, 4), unit=Persons(of=2, at_most=3))
    model = Noting()
    trainer = make_trainer(tmp_path, private, max_steps=3, max_epochs=-1)
    trainer.fit(model, private_loader(Shaken(), Poisson(0.5, 4)))
    assert len(model.batch[0]) % 3 == 0
    assert model.released.isfinite().all()
    assert private.account is not None
    assert private.account.exact_epsilon_at_delta() == pytest.approx(3.0, rel=1e-3)


class Scored(Noting, Validated):
    """Trains on records of three fields."""


@pytest.mark.parametrize(
    ("kept", "differing", "warned"),
    [
        (4, 3, True),  # of Shaken's seven persons, five have three records, one four and one one
        (1, 1, False),
        *slow((3, 3, False), (2, 1, True)),
    ],
)
def test_an_evaluation_with_more_records_of_a_person_than_its_metrics_count_is_warned_of(
    kept: int, differing: int, warned: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    data, seen, rows = Shaken(), Counter[int](), []
    for row in range(len(data)):
        owner = int(data[row][2])
        rows += [row] * (seen[owner] < kept)
        seen[owner] += 1
    private = DPSGD(3.0, 1e-5, Poisson(0.5, 4), unit=Persons(of=2, at_most=3))
    worlds = TwoWorldScenario(differing, adjacency="add_remove")
    metrics = PrivateMetrics(["accuracy"], worlds, epsilon=9.0, delta=1e-5, ledger=tmp_path / "held_out.db")
    trainer = make_trainer(tmp_path, private, metrics, max_steps=1, num_sanity_val_steps=0)
    trainer.fit(Scored(), DataLoader(data), DataLoader(Subset(data, rows), batch_size=4))
    told = [str(warning.message) for warning in recwarn if "training protects persons" in str(warning.message)]
    assert len(told) == warned


def test_views_that_go_missing_and_units_that_the_account_does_not_know_are_refused(tmp_path: Path) -> None:
    def dropping(records: list[Any]) -> Any:
        return torch.utils.data.default_collate(records[:-1] if len(records) == 40 else records)

    loader = DataLoader(Shaken(), batch_size=10, collate_fn=dropping)
    with pytest.raises((ValueError, PrivacyViolationError), match=r"39 rows, which are no records of 4 rows each"):
        make_trainer(tmp_path / "a", make_private(views=4)).fit(Noting(), loader)
    drawn = private_loader(Shaken(), Poisson(0.5), persons=Persons(of=2, at_most=3))
    with pytest.raises(MisconfigurationException, match=r"draws persons or views by arguments of its own"):
        make_trainer(tmp_path / "b", make_private()).fit(Noting(), drawn)
    with pytest.raises(ValueError, match=r"^unit is Persons\(of=2, at_most=3\), but sampling is left out"):
        make_private(unit=Persons(of=2, at_most=3))
    with pytest.raises(ValueError, match=r"^views is 0, but must be at least 1"):
        make_private(views=0)


class Sorting(Noting):
    """Sorts its batch, so that rows of a record are not side by side where the layers see them."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.batch = batch
        order = batch[0][:, 0].detach().argsort()
        return nn.functional.cross_entropy(self.network(batch[0][order]), batch[1][order])


def test_rows_that_move_stay_with_their_record(tmp_path: Path) -> None:
    model, private = Sorting(), make_private(noise_multiplier=QUIET, views=2)
    make_trainer(tmp_path, private, max_steps=1).fit(model, DataLoader(Shaken(), batch_size=10))
    groups = [[start, start + 1] for start in range(0, 20, 2)]
    torch.testing.assert_close(model.released, clipped_by_loop(model, groups, 2) / 10, rtol=1e-3, atol=1e-5)


@pytest.mark.checks_each_fit
def test_rows_in_another_order_are_refused(tmp_path: Path) -> None:
    def sorting(records: list[Any]) -> Any:
        return torch.utils.data.default_collate(sorted(records, key=lambda record: float(record[0][0])))

    loader = DataLoader(Shaken(), batch_size=10, collate_fn=sorting)
    with pytest.raises(MisconfigurationException, match="another order than the batch, so the rows of records"):
        make_trainer(tmp_path, make_private(views=2)).fit(Noting(), loader)


class OfTheDraw(Classifier):
    """Scales its loss by what the loader says of the draw, in the step or in a hook before it."""

    def __init__(self, read: Any, in_step: bool) -> None:
        super().__init__()
        self.read, self.in_step, self.factor = read, in_step, 1.0

    def on_train_batch_start(self, *_: Any) -> None:
        if not self.in_step:
            self.factor = 1.0 + float(self.read(self.trainer.train_dataloader))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.in_step and self.trainer.train_dataloader.num_rows is not None:  # type: ignore[union-attr]
            self.factor = 1.0 + float(self.read(self.trainer.train_dataloader))
        return self.factor * nn.functional.cross_entropy(self.network(batch[0]), batch[1])


DRAWS: dict[str, Any] = {
    "num_drawn": lambda loader: loader.num_drawn,
    "drawn": lambda loader: 5 in loader.drawn,
    "unused_rows": lambda loader: loader.unused_rows.float().mean(),
    "unused": lambda loader: loader.units.unused([0, 1]).float().mean(),
    "of": lambda loader: len(set(loader.units.of([0, 1]))),
    "delivered": lambda loader: len(loader.batch_sampler.delivered),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_the_loader_says_of_a_draw_is_kept_from_steps_and_hooks(name: str, tmp_path: Path) -> None:
    inputs, labels = make_data().tensors
    data = TensorDataset(inputs, labels, torch.arange(60) // 3)
    private = make_private(
        scenario=TwoWorldScenario(1, adjacency="add_remove"),
        sampling=Poisson(0.5, 20),
        unit=Persons(of=2, at_most=2),
    )
    with pytest.raises(PrivacyViolationError, match=f"reads {name} of the train loader"):
        make_trainer(tmp_path, private, max_steps=2, max_epochs=-1).fit(
            OfTheDraw(DRAWS[name], name in ("num_drawn", "unused_rows")), DataLoader(data, batch_size=10)
        )


class OfPublicFacts(Classifier):
    """Reads lengths and what was declared."""

    def on_train_batch_start(self, *_: Any) -> None:
        loader: Any = self.trainer.train_dataloader
        self.facts = len(loader), loader.sampling.rate, loader.num_rows, loader.units.size, len(loader.batch_sampler)


def test_what_is_public_of_a_draw_can_be_read(tmp_path: Path) -> None:
    model, private = OfPublicFacts(), make_private(sampling=Poisson(0.25))
    trainer = make_trainer(tmp_path, private, max_steps=2, max_epochs=-1)
    trainer.fit(model, DataLoader(make_data(), batch_size=10))
    assert type(trainer.train_dataloader.units).__name__ == "UnitRows"  # type: ignore[union-attr]
    assert trainer.train_dataloader.num_drawn is not None  # type: ignore[union-attr]
    assert (model.facts[0], model.facts[1], model.facts[4]) == (4, 0.25, 4)
