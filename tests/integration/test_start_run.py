"""The start of a fit: noise, ledger and the place where a run goes on."""

import logging
import math
import warnings

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from tiny_fits import Classifier, make_loader, make_private, make_trainer
from torch.utils.data import DataLoader

from lightning_pac import EpochShuffle, PrivacyLedger, SRPPAccountant, TwoWorldScenario
from lightning_pac.callbacks.srpp_sgd.start import choose_noise, read_loader
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError

ACCOUNTANT = SRPPAccountant(TwoWorldScenario(num_differing=2, num_records=60), EpochShuffle(10), renyi_order=4)


def arguments(**kwargs):
    return make_private(**kwargs).arguments


def test_the_noise_is_the_least_that_keeps_epsilon():
    chosen = choose_noise(arguments(epsilon=3.0), ACCOUNTANT, planned_steps=12, draws=0, resumed=None)
    # Two passes, with both differing records in one batch at worst: epsilon = 2 a kappa^2 K^2 / (2 sigma^2).
    assert chosen == pytest.approx(math.sqrt(2 * 4 * 2**2 * 2**2 / (2 * 3.0)), rel=1e-9)
    assert ACCOUNTANT.epsilon(chosen, 12) <= 3.0


def test_given_noise_and_that_of_a_resumed_run_stay():
    assert choose_noise(arguments(noise_multiplier=2.5), ACCOUNTANT, math.inf, draws=100, resumed=None) == 2.5
    assert (
        choose_noise(arguments(epsilon=3.0), ACCOUNTANT, math.inf, draws=100, resumed={"noise_multiplier": 7.0}) == 7.0
    )


def test_an_endless_run_divides_no_epsilon():
    with pytest.raises(MisconfigurationException, match="has no end"):
        choose_noise(arguments(epsilon=3.0), ACCOUNTANT, math.inf, draws=100, resumed=None)


def test_several_loaders_are_refused():
    class Trainer:
        train_dataloader = {"a": make_loader(), "b": make_loader()}

    with pytest.raises(MisconfigurationException, match="pass exactly one"):
        read_loader(Trainer())


@pytest.mark.parametrize("kept", ["model", "nothing", "ledger", "untrained"])
def test_a_model_that_goes_on_from_an_earlier_run_is_told_of(kept, tmp_path):
    """The second card said that all of the training had cost what its own half did."""
    models = [Classifier()] * 2 if kept != "nothing" else [Classifier(), Classifier()]
    ledger = {"ledger": tmp_path / "both.db"} if kept == "ledger" else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, model in enumerate(models):
            steps = 0 if kept == "untrained" and not number else -1
            make_trainer(tmp_path, make_private(**ledger), max_steps=steps).fit(model, make_loader())
    told = [str(warning.message) for warning in caught if "leave out what that has cost" in str(warning.message)]
    assert len(told) == (kept == "model")


@pytest.mark.parametrize("kept", ["folder", "versions", "ledger"])
def test_runs_with_ledgers_of_their_own_are_told_of_one_another(kept, tmp_path, caplog):
    """Each said at most 3, and nothing that together they cost more."""
    with caplog.at_level(logging.INFO):
        for number in range(3):
            folder = tmp_path / f"version_{number}" if kept == "versions" else tmp_path
            ledger = {"ledger": tmp_path / "all.db"} if kept == "ledger" else {}
            make_trainer(folder, make_private(**ledger), max_steps=1).fit(Classifier(), make_loader())
    lines = [line for line in caplog.messages if "noised steps" in line]
    told = ["1 other run here" in lines[1], "2 other runs here" in lines[2], "other run" in lines[0]]
    assert told == ([False] * 3 if kept == "ledger" else [True, True, False])
    if kept == "ledger":
        caplog.clear()
        (tmp_path / "optuna.db").touch()  # which is no ledger
        with caplog.at_level(logging.INFO):
            make_trainer(tmp_path, make_private(ledger=tmp_path / "b.db"), max_steps=1).fit(Classifier(), make_loader())
        assert not any("Beside it:" in line for line in lines)
        assert any("Beside it: all.db. Costs of ledgers add up" in line for line in caplog.messages)


def test_a_folder_without_versions_gets_a_new_ledger_for_each_run(tmp_path):
    for _ in range(2):
        make_trainer(tmp_path, make_private()).fit(Classifier(), make_loader())
    ledgers = sorted(tmp_path.rglob("privacy_ledger*.db"))
    assert len(ledgers) == 2
    for path in ledgers:
        with PrivacyLedger(path) as ledger:
            assert len(ledger.accounts()) == 1


def test_a_resumed_run_whose_ledger_is_gone_is_refused(tmp_path):
    trainer = make_trainer(tmp_path, make_private(), enable_checkpointing=True)
    trainer.fit(Classifier(), make_loader())
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    for path in tmp_path.rglob("privacy_ledger*"):
        path.unlink()
    again = make_trainer(tmp_path, make_private(), max_epochs=2)
    with pytest.raises(LedgerMismatchError, match="which is gone"):
        again.fit(Classifier(), make_loader(), ckpt_path=tmp_path / "run.ckpt")


def test_a_run_that_cannot_pay_for_a_step_does_not_start(tmp_path):
    model = Classifier()
    before = [parameter.clone() for parameter in model.parameters()]
    with PrivacyLedger(tmp_path / "ledger.db", budget={"rpp": 1e-6}) as ledger:
        private = make_private(noise_multiplier=1.0, ledger=ledger)
        with pytest.raises(BudgetExceededError, match=r"0 steps were taken, and the next .* exceed the budget of"):
            make_trainer(tmp_path, private).fit(model, make_loader())
    assert all((old == new).all() for old, new in zip(before, model.parameters(), strict=True))


def test_the_loader_is_read_once_it_is_a_stock_one():
    class Trainer:
        train_dataloader = make_loader()

    assert isinstance(read_loader(Trainer()), DataLoader)
