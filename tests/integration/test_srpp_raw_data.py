"""Ways in which records get past the noise, or count more than once: by loaders, optimizers and what a model keeps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_fits import Classifier, make_data, make_loader, make_private, make_trainer
from torch.utils.data import DataLoader, Subset, default_collate

from lightning_pac.data import WithIndex
from lightning_pac.exceptions import PrivacyViolationError


def fill_up(records: list[Any]) -> Any:
    """The first record once more for each that the last batch, of seven, lacks."""
    return default_collate(records + [records[0]] * (3 if len(records) == 7 else 0))


def drop(records: list[Any]) -> Any:
    return default_collate(records[: 7 if len(records) == 10 else None])


@pytest.mark.parametrize("collate_fn", [fill_up, drop])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_has_the_records_that_its_place_in_the_pass_gives_it(
    collate_fn: Any, num_workers: int, tmp_path: Path
) -> None:
    # Batches of ten and, at the end, of seven: both numbers of rows occur in a pass, but each in its place only.
    loader = make_loader(records=27, shuffle=False, collate_fn=collate_fn, num_workers=num_workers)
    with pytest.raises(PrivacyViolationError, match="saw more or fewer rows than the batch has records"):
        make_trainer(tmp_path, make_private()).fit(Classifier(), loader)


def test_a_record_that_is_hidden_by_wrappers_is_found(tmp_path: Path) -> None:
    loader = DataLoader(WithIndex(Subset(make_data(), [0] * 50)), batch_size=10)
    with pytest.raises(ValueError, match="Subset holds records twice"):
        make_trainer(tmp_path, make_private()).fit(Classifier(), loader)


def test_the_records_may_be_a_list(tmp_path: Path) -> None:
    private, records = make_private(), list(make_data())
    make_trainer(tmp_path, private).fit(Classifier(), DataLoader(records, batch_size=10, shuffle=True))
    assert private.account is not None
    assert private.account.num_steps == 6


class Polyak(torch.optim.SGD):
    """Step sizes from the loss."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure()
        for group in self.param_groups:
            group["lr"] = float(loss)
        super().step()
        return loss


class PolyakClassifier(Classifier):
    def configure_optimizers(self) -> Any:
        return Polyak(self.parameters(), 0.1)


class ReadsInHook(Classifier):
    """Reads the loss by a hook of the optimizer, around its closure."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)

        def around(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            closure = kwargs["closure"]
            return args, {"closure": lambda: closure() * 1.0}

        optimizer.register_step_pre_hook(around)
        return optimizer


class OwnStep(Classifier):
    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        loss = optimizer_closure()
        optimizer.param_groups[0]["lr"] = 0.1 * loss.item()
        optimizer.step()


@pytest.mark.parametrize("kind", [PolyakClassifier, ReadsInHook, OwnStep])
def test_no_optimizer_is_given_the_loss(kind: type[Classifier], tmp_path: Path) -> None:
    model = kind()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(PrivacyViolationError, match="reads the loss that its closure returns"):
        make_trainer(tmp_path, make_private()).fit(model, make_loader())
    assert all(map(torch.equal, before, model.parameters()))
    assert "optimizer_step" not in vars(model)


class WarmUp(Classifier):
    """Lightning's own pattern for a schedule of steps."""

    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.param_groups[0]["lr"] = 0.01 * (batch_idx + 1)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)


class StepsByItself(Classifier):
    """Runs the closure, and lets the optimizer use what was released."""

    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()
        optimizer.step()


@pytest.mark.parametrize("kind", [WarmUp, StepsByItself])
def test_a_step_of_ones_own_is_private_all_the_same(kind: type[Classifier], tmp_path: Path) -> None:
    private, model = make_private(), kind()
    make_trainer(tmp_path, private).fit(model, make_loader())
    assert private.account is not None
    assert private.account.num_steps == 6


class Skips(Classifier):
    def optimizer_step(self, epoch: Any, batch_idx: Any, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()


def test_a_step_that_is_left_out_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(PrivacyViolationError, match="An optimizer step was left out"):
        make_trainer(tmp_path, make_private()).fit(Skips(), make_loader())
