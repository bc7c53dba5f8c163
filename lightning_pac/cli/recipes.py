"""The place of the YAML recipes: inside an installed package, or at the top of a checkout."""

import pathlib

import lightning_pac

__all__ = ["find_recipe", "recipe_directory", "recipe_names"]


def recipe_directory() -> pathlib.Path:
    """The folder of YAML recipes, one for each callback.

    A wheel carries them as `lightning_pac/recipes`; in a checkout, and so in an editable install, they are the folder
    `callbacks` at the top.

    Raises:
        FileNotFoundError: The installation has neither.
    """
    package = pathlib.Path(lightning_pac.__file__).parent
    for folder in (package / "recipes", package.parent / "callbacks"):
        if any(folder.glob("*.yaml")):
            return folder
    raise FileNotFoundError(f"No recipes in {package / 'recipes'}: reinstall lightning-pac.")


def recipe_names() -> list[str]:
    """The names that `find_recipe` and `--recipe` accept."""
    return sorted(path.stem for path in recipe_directory().glob("*.yaml"))


def find_recipe(name: str) -> pathlib.Path:
    """The YAML file of one recipe, to be passed to `--config`.

    Args:
        name: The name of the file without its ending.

    Raises:
        ValueError: There is no recipe of that name.
    """
    if name not in recipe_names():
        raise ValueError(f"There is no recipe {name!r}: choose one of {', '.join(recipe_names())}.")
    return recipe_directory() / f"{name}.yaml"
