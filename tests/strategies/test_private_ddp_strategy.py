"""Names of the strategy, what it refuses, and what ranks do together, without starting any."""

import importlib

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.strategies import StrategyRegistry
from prepared import Child, forget_package

from lightning_pac.exceptions import BudgetExceededError
from lightning_pac.strategies import PrivateDDPStrategy, Ranks
from lightning_pac.strategies.ranks import _portable


@pytest.mark.parametrize(
    ("name", "start_method"),
    [
        ("ddp_private", "popen"),
        ("ddp_private_spawn", "spawn"),
        ("ddp_private_find_unused_parameters_true", "popen"),
        ("ddp_private_spawn_find_unused_parameters_true", "spawn"),
    ],
)
def test_the_name_makes_the_strategy(name: str, start_method: str) -> None:
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=name, logger=False)
    assert type(trainer.strategy) is PrivateDDPStrategy
    assert trainer.strategy._start_method == start_method
    assert trainer.world_size == 2


def test_names_are_registered_once_and_leave_others_alone() -> None:
    before = dict(StrategyRegistry)
    PrivateDDPStrategy.register_strategies(StrategyRegistry)
    assert dict(StrategyRegistry) == before


def import_a_callback() -> None:
    forget_package()
    for name in [name for name in StrategyRegistry if name.startswith("ddp_private")]:
        StrategyRegistry.remove(name)
    importlib.import_module("lightning_pac")
    assert "ddp_private" not in StrategyRegistry
    importlib.import_module("lightning_pac.callbacks")
    assert "ddp_private" in StrategyRegistry


def test_importing_a_callback_registers_the_names() -> None:
    child = Child(import_a_callback)
    assert child.finish() == b""
    assert child.poll() == 0


@pytest.mark.parametrize(
    "strategy",
    ["ddp_private", '{"class_path": "lightning_pac.strategies.PrivateDDPStrategy"}'],
)
def test_a_command_line_takes_the_name_or_the_class_path(strategy: str) -> None:
    arguments = ["--trainer.accelerator=cpu", "--trainer.devices=2", f"--trainer.strategy={strategy}"]
    cli = LightningCLI(
        model_class=pl.LightningModule,
        args=arguments,
        run=False,
        save_config_callback=None,
        trainer_defaults={"logger": False},
    )
    assert type(cli.trainer.strategy) is PrivateDDPStrategy


@pytest.mark.parametrize("option", ["ddp_comm_hook", "find_unused_parameters", "static_graph"])
def test_options_of_a_reducer_are_refused(option: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        PrivateDDPStrategy(**{option: None})


def test_one_process_is_a_group_of_its_own() -> None:
    ranks = Ranks()
    assert ranks.is_first
    ranks.check_equal(7, "anything")
    total = torch.arange(3.0)
    assert ranks.release(total, lambda part, start: part.add_(1.0)).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(BudgetExceededError, match="spent"):
        ranks.from_first(_spend)


def _spend() -> None:
    raise BudgetExceededError("all of it is spent")


class _Unsendable(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("two numbers")


def test_an_error_that_cannot_be_sent_still_reaches_the_other_ranks() -> None:
    error = BudgetExceededError("all of it is spent")
    assert _portable(error) is error
    assert str(_portable(_Unsendable(1, 2))) == "_Unsendable: two numbers"
