"""The two padding recipes on Lightning's command line."""

import pytest
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_pac import callbacks
from lightning_pac.cli.recipes import find_recipe


@pytest.mark.parametrize(
    ("recipe", "name", "compositions"),
    [("positive_delay", "PositiveDelay", 500), ("dummy_padding", "DummyPadding", 4000)],
)
def test_a_recipe_builds_its_callback(recipe, name, compositions):
    arguments = ["--config", str(find_recipe(recipe)), "--trainer.logger=false", "--trainer.accelerator=cpu"]
    trainer = LightningCLI(BoringModel, run=False, args=arguments, save_config_callback=None).trainer
    (callback,) = (entry for entry in trainer.callbacks if isinstance(entry, getattr(callbacks, name)))
    assert callback.noise.guarantee.compositions == compositions
    assert callback.noise.guarantee.epsilon == 1.0
