"""Private labels for a student, bought once."""

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules import DistilledDataModule, SavedResponder, SubsetEnsemble
from lightning_pac.report import find_runs, summarize
from lightning_pac.scenarios import BalancedSubsets

POOL = BalancedSubsets(num_records=60, num_subsets=8, seed=0)
BUDGET = 2.0**-8


def make_network() -> nn.Module:
    return nn.Linear(4, 3)


def make_ensemble(spread: float = 0.3) -> SubsetEnsemble:
    module = SubsetEnsemble(make_network, POOL)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += spread * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def public(num_records: int = 200) -> TensorDataset:
    inputs = torch.randn(num_records, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, torch.full((num_records,), 99))  # labels that nobody may look at


class Student(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = make_network()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def open_responder(
    tmp_path: Path, model: Any = None, budget_per_response: float = BUDGET, **kwargs: Any
) -> PACResponder:
    path = tmp_path / "secret.key"
    secret = POOL.load_secret(path) if path.exists() else POOL.draw_secret(path)
    return PACResponder(model or make_ensemble(), secret, budget_per_response, tmp_path / "responses.db", **kwargs)


def fit(tmp_path: Path, data: DistilledDataModule, **options: Any) -> pl.Trainer:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        **options,
    }
    trainer = pl.Trainer(default_root_dir=tmp_path, accelerator="cpu", max_epochs=2, **quiet)
    trainer.fit(Student(), data)
    return trainer


def test_labels_are_bought_once_over_epochs_restarts_and_other_orders(tmp_path: Path) -> None:
    with open_responder(tmp_path) as responder:
        fit(tmp_path, DistilledDataModule(responder, public(), num_workers=2))
        spent, belief = responder.spent, responder.belief
        assert responder.num_responses == 200
        hard = sum(int((~batch.unanimous).sum()) for batch in responder.recorded_releases())
        assert spent == pytest.approx(BUDGET * hard)
    inputs = public().tensors[0].flip(0)
    with open_responder(tmp_path) as responder:
        data = DistilledDataModule(responder, TensorDataset(torch.cat([inputs, inputs[:7]])))
        fit(tmp_path, data)
        assert (responder.spent, responder.num_responses) == (spent, 200)
        assert np.array_equal(responder.belief, belief)
        assert data.labels.num_answers == 207


def test_the_report_knows_what_a_student_promises(tmp_path: Path) -> None:
    with open_responder(tmp_path) as responder:
        validation = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
        data = DistilledDataModule(responder, public(), val_dataset=validation)
        fit(tmp_path, data, logger=CSVLogger(tmp_path / "logs"))
        [run] = find_runs(tmp_path / "logs")
        assert run.card is not None
        assert run.card.to_dict() == data.privacy_card.to_dict()
        assert summarize(run)["is_private"]


def test_an_interrupted_purchase_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = PACResponder.release
    asked: list[int] = []

    def interrupted(self: PACResponder, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if asked and sum(asked) >= 256:
            raise KeyboardInterrupt
        asked.append(len(inputs))
        return release(self, inputs, *args, **kwargs)

    monkeypatch.setattr(PACResponder, "release", interrupted)
    with open_responder(tmp_path) as responder, pytest.raises(KeyboardInterrupt):
        DistilledDataModule(responder, public(600)).prepare_data()
    monkeypatch.undo()
    with open_responder(tmp_path) as responder:
        assert responder.num_responses == 256
        data = DistilledDataModule(responder, public(600))
        data.prepare_data()
        assert responder.num_responses == data.labels.num_answers == 600


def test_kept_labels_are_those_of_the_filter(tmp_path: Path) -> None:
    """Unanimous answers are always kept, with the members' label; at a tiny budget hardly any other is trusted."""
    votes = make_ensemble().votes(public().tensors[0])
    unanimous = (votes == votes[:, :1]).all(1).numpy()
    with open_responder(tmp_path, budget_per_response=2.0**-32) as responder:
        for name, expected in (("bayes", unanimous), ("test", unanimous), ("paper", unanimous)):
            data = DistilledDataModule(responder, public(), filter=name, alpha=1e-6)
            data.prepare_data()
            assert np.array_equal(data.labels.index, np.flatnonzero(expected))
            assert np.array_equal(data.labels.labels, votes[unanimous, 0].numpy())
            assert data.labels.num_unanimous == unanimous.sum()
        loose = DistilledDataModule(responder, public(), alpha=0.999)
        loose.prepare_data()
        assert len(loose.labels.index) == 200
        assert responder.num_responses == 200


def test_a_student_without_validation_is_not_warned_of(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    class Plain(Student):
        validation_step = pl.LightningModule.validation_step

    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    with open_responder(tmp_path) as responder:
        for val_dataset in (None, public(5)):
            trainer = pl.Trainer(accelerator="cpu", max_epochs=1, enable_model_summary=False, **quiet)
            trainer.fit(Plain(), DistilledDataModule(responder, public(), val_dataset=val_dataset))
            said = [str(warning.message) for warning in recwarn if "validation_step" in str(warning.message)]
            assert bool(said) == (val_dataset is not None)


def test_the_checkpoint_carries_the_card(tmp_path: Path) -> None:
    with open_responder(tmp_path) as responder:
        data = DistilledDataModule(responder, public())
        trainer = fit(tmp_path, data)
        trainer.save_checkpoint(tmp_path / "student.ckpt")
        bound = responder.membership_success_bound
    card = torch.load(tmp_path / "student.ckpt", weights_only=True)["DistilledDataModule"]["privacy_card"]
    assert card == json.loads(data.privacy_card.to_json())
    assert card["guarantees"][0]["value"] == bound
    assert card["details"]["distillation"]["filter"] == "bayes"
    assert any("the student has seen" in condition.lower() for condition in card["conditions"])
    other = json.loads(json.dumps(card))
    other["details"]["table"] = "0" * 64
    with pytest.raises(ValueError, match="labels are of the table 000000000000, not of this responder's"):
        data.load_state_dict({"privacy_card": other})


def test_classes_are_balanced_and_mixed(tmp_path: Path) -> None:
    class Skewed(nn.Module):
        """Says class 0 for nine records of ten; members agree."""

        def forward(self, inputs: Tensor) -> Tensor:
            return (torch.arange(len(inputs)) % 10 == 0).long()[:, None].expand(-1, 8)

    images = TensorDataset(torch.rand(500, 1, 4, 4))
    with open_responder(tmp_path, Skewed()) as responder:
        torch.manual_seed(0)
        shares = []
        for balance in (True, False):
            data = DistilledDataModule(responder, images, balance=balance)
            data.prepare_data()
            drawn = torch.cat([labels for _ in range(8) for _, labels in data.train_dataloader()])
            shares.append(drawn.double().mean().item())
        # 4,000 draws of a fair coin stay within 0.05 of 1/2 but for a probability of 3e-10; the seed is fixed anyway.
        assert abs(shares[0] - 0.5) < 0.05
        assert 0.08 < shares[1] < 0.12
        for mix in ("mixup", "cutmix", "both"):
            data = DistilledDataModule(responder, images, mix=mix, num_classes=2, transform=lambda image: image + 1)
            data.prepare_data()
            inputs, labels = next(iter(data.train_dataloader()))
            assert inputs.min() >= 1
            assert labels.shape == (64, 2)
            assert torch.allclose(labels.sum(1), torch.ones(64))
            assert len(torch.unique(labels)) > 2
        with pytest.raises(ValueError, match="name that number, got None"):
            DistilledDataModule(responder, images, mix="mixup")


def test_a_saved_responder_is_opened_for_the_purchase_and_closed(tmp_path: Path) -> None:
    ensemble = make_ensemble()
    paths = []
    for number, members in enumerate((range(4), range(4, 8))):
        shard = SubsetEnsemble(make_network, POOL, members=members)
        for name, tensor in shard.state_dict().items():
            tensor.copy_(ensemble.state_dict()[name][list(members)])
        trainer = pl.Trainer(accelerator="cpu", logger=False, default_root_dir=tmp_path)
        trainer.strategy.connect(shard)
        paths.append(str(tmp_path / f"{number}.ckpt"))
        trainer.save_checkpoint(paths[-1])
    saved = SavedResponder(
        paths, make_network, POOL, str(tmp_path / "secret.key"), str(tmp_path / "responses.db"), BUDGET
    )
    data = DistilledDataModule(saved, public(), val_dataset=TensorDataset(torch.zeros(5, 4), torch.zeros(5).long()))
    fit(tmp_path, data)
    with PrivacyLedger(tmp_path / "responses.db") as ledger:
        spent = ledger.spent("mutual_information")
    with open_responder(tmp_path, ensemble) as responder:
        assert responder.spent == spent > 0
        again = DistilledDataModule(responder, public())
        again.prepare_data()
        assert np.array_equal(again.labels.labels, data.labels.labels)


def test_a_budget_that_ends_first_gives_the_labels_that_were_bought(tmp_path: Path) -> None:
    with open_responder(tmp_path, budget=BUDGET * 150) as responder:
        data = DistilledDataModule(responder, public(2000))
        with pytest.warns(UserWarning, match=r"Labelling stopped between records \d+ and \d+ of 2000: "):
            data.prepare_data()
        assert data.labels.num_answers == responder.num_responses < 2000
        assert BUDGET * 149.5 < responder.spent <= BUDGET * 150
    with open_responder(tmp_path, budget=BUDGET * 150) as responder:
        data = DistilledDataModule(responder, public(2000))
        with pytest.warns(UserWarning, match="Labelling stopped"):
            data.prepare_data()
        assert data.labels.num_answers == responder.num_responses


def test_a_budget_for_no_label_is_refused(tmp_path: Path) -> None:
    with open_responder(tmp_path, budget=BUDGET / 2) as responder:
        with pytest.raises(BudgetExceededError):
            DistilledDataModule(responder, public()).prepare_data()
        assert responder.num_responses == 0


def test_a_budget_that_other_answers_used_up_is_told_and_what_was_bought_is_used(tmp_path: Path) -> None:
    inputs, others = public(600).tensors[0], torch.randn(30, 4, generator=torch.Generator().manual_seed(8))
    with open_responder(tmp_path, budget=BUDGET * 20) as responder:
        bought = DistilledDataModule(responder, TensorDataset(inputs))
        with pytest.warns(UserWarning, match="Labelling stopped"):
            bought.prepare_data()
        with pytest.raises(BudgetExceededError, match="would exceed the budget"):
            DistilledDataModule(responder, TensorDataset(others)).prepare_data()
        # Behind more records than are asked at once.
        mixed = DistilledDataModule(responder, TensorDataset(torch.cat([others.repeat(10, 1), inputs])))
        with pytest.warns(UserWarning, match="Labelling stopped between records 0 and 256 of 900"):
            mixed.prepare_data()
    assert mixed.labels.num_answers == bought.labels.num_answers


def test_a_student_of_another_ledger_is_refused(tmp_path: Path) -> None:
    open_responder(tmp_path).close()
    other = BalancedSubsets(num_records=60, num_subsets=8, seed=1)
    with pytest.raises(LedgerMismatchError):
        PACResponder(make_ensemble(), other.draw_secret(tmp_path / "other.key"), BUDGET, tmp_path / "responses.db")


class Moving(Dataset[Any]):
    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(4)

    def __len__(self) -> int:
        return 10


def test_bad_datasets_and_options_are_refused(tmp_path: Path) -> None:
    with open_responder(tmp_path, budget_per_response=2.0**-32) as responder:
        with pytest.raises(ValueError, match="another input for record 0 every time"):
            DistilledDataModule(responder, Moving()).prepare_data()
        with pytest.raises(ValueError, match="dataset is empty"):
            DistilledDataModule(responder, TensorDataset(torch.zeros(0, 4))).prepare_data()
        with pytest.raises(RuntimeError, match="call prepare_data"):
            DistilledDataModule(responder, public()).train_dataloader()
        assert responder.num_responses == 0
        for arguments, message in (
            ({"alpha": 0.0}, "alpha is 0.0, but must lie strictly between 0 and 1"),
            ({"filter": "votes"}, "filter is 'votes', but must be bayes, test or paper"),
            ({"mix": "shake"}, "mix is 'shake', but must be none, mixup, cutmix or both"),
        ):
            with pytest.raises(ValueError, match=message):
                DistilledDataModule(responder, public(), **arguments)


def test_no_label_that_passes_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    class Split(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return torch.arange(8).expand(len(inputs), 8) % 2

    refusal = pytest.raises(ValueError, match="None of 200 private labels passed the filter 'bayes'")
    with open_responder(tmp_path, Split(), budget_per_response=2.0**-32) as responder, refusal:
        DistilledDataModule(responder, public()).prepare_data()


def test_what_no_student_can_be_trained_on_is_refused_before_it_is_paid_for(tmp_path: Path) -> None:
    def scores(inputs: Tensor) -> Tensor:
        return torch.rand(len(inputs), POOL.num_secrets, 3)

    with open_responder(tmp_path, scores) as responder:
        with pytest.raises(ValueError, match="responder answers with scores"):
            DistilledDataModule(responder, public()).prepare_data()
        with pytest.raises(TypeError, match="dataset gives list without a tensor"):
            DistilledDataModule(responder, ["a text", "another"]).prepare_data()
        assert responder.num_responses == 0
