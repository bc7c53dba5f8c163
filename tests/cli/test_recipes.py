import pytest
import yaml

from lightning_pac.cli.lightning import with_recipes
from lightning_pac.cli.recipes import find_recipe, recipe_names


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
