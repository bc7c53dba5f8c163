import argparse

import numpy as np
import pytest
import yaml
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_pac.callbacks import CanaryAudit
from lightning_pac.cli.lightning import add_preset_options, add_recipe_option, with_presets, with_recipes
from lightning_pac.cli.recipes import find_recipe, recipe_names
from lightning_pac.mechanisms import BoundedOutputs, MixtureNoise, certify_mechanism


def test_an_unknown_recipe_names_those_that_exist():
    with pytest.raises(ValueError, match=r"no recipe 'nonesuch': choose one of .*srpp_sgd"):
        find_recipe("nonesuch")


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_append_to_the_callbacks(name):
    trainer = yaml.safe_load(find_recipe(name).read_text())["trainer"]
    assert "callbacks" not in trainer, "a recipe that sets `callbacks:` would drop the user's own"
    assert trainer["callbacks+"]


def test_a_recipe_comes_behind_the_files_and_before_the_options():
    words = ["--config", "mine.yaml", "--config=other.yaml", "--trainer.callbacks.epsilon=3"]
    path = str(find_recipe("srpp_sgd"))
    assert with_recipes(words, ["srpp_sgd"]) == [*words[:3], "--config", path, words[3]]
    assert with_recipes(words[3:], ["srpp_sgd"]) == ["--config", path, words[3]]
    assert with_recipes(words, []) == words


def presets(*words):
    parser = argparse.ArgumentParser()
    add_recipe_option(parser)
    add_preset_options(parser)
    args, arguments = parser.parse_known_args(words)
    return with_presets(argparse.Namespace(**vars(args), arguments=arguments))


def test_a_preset_writes_its_recipe_and_its_options_out():
    written = presets("--config", "mine.yaml", "--dp", "2", "1e-6", "--rate", "0.1", "--batch-size", "40", "--data.x=1")
    assert written == [
        "--config", "mine.yaml", "--config", str(find_recipe("dp_sgd")), "--trainer.callbacks.epsilon=2.0",
        "--trainer.callbacks.delta=1e-06", "--trainer.callbacks.sampling=Poisson",
        "--trainer.callbacks.sampling.rate=0.1", "--trainer.callbacks.sampling.batch_size=40", "--data.x=1",
    ]  # fmt: skip
    assert presets("--recipe", "dp_sgd", "--dp", "2", "1e-6").count("--config") == 1
    with pytest.raises(ValueError, match="give --rate as well"):
        presets("--dp", "2", "1e-6", "--batch-size", "40")


# What a user adds to a recipe, beside the name of the callback that it must build; a new recipe needs a line here.
SECRET = "--trainer.callbacks.scenario.num_differing=3"
RANDOM = "lightning.pytorch.demos.boring_classes.RandomDataset"
WORDS = {
    "canary_audit": (
        "CanaryAudit",
        [f"--trainer.callbacks.canaries{word}" for word in (f"={RANDOM}", ".size=4", ".length=5")],
    ),
    "dp_sgd": (
        "DPSGD",
        [f"--trainer.callbacks.sampling{word}" for word in ("=Poisson", ".rate=0.1", ".batch_size=40")],
    ),
    "dummy_padding": ("DummyPadding", []),
    "pac_responses": ("PACResponses", []),
    "positive_delay": ("PositiveDelay", []),
    "private_metrics": ("PrivateMetrics", [SECRET]),
    "private_output": ("PrivateOutput", []),
    "srpac_decoder": (
        "SRPACDecoder",
        [
            "--trainer.callbacks.decoder.init_args.release_size=10",
            "--trainer.callbacks.decoder.init_args.secret_size=64",
            "--trainer.callbacks.perturbation.init_args.dimension=10",
        ],
    ),
    "srpp_sgd": ("SRPPSGD", [SECRET]),
}
# Observations that the noise of a padding recipe is designed for.
COMPOSITIONS = {"positive_delay": 500, "dummy_padding": 4000}


def test_no_recipe_is_without_a_line_here():
    assert set(WORDS) == set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_the_command_line_builds_the_callback_of_every_recipe(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    law = BoundedOutputs(np.zeros(2), 2.0)
    certify_mechanism(MixtureNoise.gaussian(np.eye(2)), law, 0.25, secret="Each record.").save("released.npz")
    callback, words = WORDS[name]
    base = ["--trainer.logger=false", "--trainer.accelerator=cpu"]
    arguments = with_recipes([*base, *words], [name])
    trainer = LightningCLI(BoringModel, run=False, args=arguments, save_config_callback=None).trainer
    built = {type(entry).__name__: entry for entry in trainer.callbacks}
    assert callback in built
    if name in COMPOSITIONS:
        guarantee = built[callback].noise.guarantee
        assert (guarantee.epsilon, guarantee.compositions) == (1.0, COMPOSITIONS[name])


def test_a_file_names_the_dataset_of_canaries_and_its_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_canaries.py").write_text(
        "from torch.utils.data import Dataset\n"
        "class Canaries(Dataset[int]):\n"
        "    def __init__(self, count: int = 2, first: int = 0):\n"
        "        self.records = list(range(first, first + count))\n"
        "    def __len__(self):\n        return len(self.records)\n"
        "    def __getitem__(self, index):\n        return self.records[index]\n"
    )
    kind = {"class_path": "own_canaries.Canaries", "init_args": {"count": 3}}
    other = {"class_path": "own_canaries.Canaries", "init_args": {"count": 3, "first": 7}}
    arguments = {"canaries": kind, "others": other}
    entry = {"class_path": "lightning_pac.callbacks.CanaryAudit", "init_args": arguments}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"trainer": {"logger": False, "callbacks": [entry]}}))
    cli = LightningCLI(BoringModel, run=False, args=["--config", "mine.yaml"], save_config_callback=None)
    (audit,) = (callback for callback in cli.trainer.callbacks if isinstance(callback, CanaryAudit))
    assert (audit._canaries, audit._others) == ([0, 1, 2], [7, 8, 9])
