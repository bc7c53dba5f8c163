"""The callbacks of this package that a command line of LightningCLI names, itself or in the files it gives."""

import contextlib
import importlib.util
import pathlib
import pydoc
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from lightning_pac.cli.common import say_where

__all__ = ["named_callbacks", "read_yaml"]

_ENDINGS = (".yaml", ".yml", ".json")


def named_callbacks(words: Sequence[str]) -> "Counter[type]":
    """Count the callbacks of this package that a command line names, itself or in the files it gives.

    Two files may set up the same callback, so each class is counted as often as the one file that names it most often.

    Args:
        words: The arguments of LightningCLI.

    Returns:
        How many instances of each class the Trainer must have at least.
    """
    named: list[list[tuple[str, bool]]] = []
    for before, word in zip(("", *words), words, strict=False):
        option, equals, value = word.partition("=")
        if not (equals and word.startswith("-")):
            option, value = before, word
        named += _names_in_value(value, pathlib.Path.cwd(), option.lstrip("-"))
    # A bare name stands for a class of a module that another name leads to.
    paths = {name for names in named for name, _ in names if "." in name}
    classes = {name for names in named for name, is_class in names if is_class}
    known = {path: _imported(path, path in classes) for path in paths}
    counts: Counter[type] = Counter()
    for names in named:
        found = [known[name] if "." in name else _kind_called(name) for name, _ in names]
        counts |= Counter(kind for kind in found if kind is not None)
    return counts


def _names_in_value(value: str, folder: pathlib.Path, key: str) -> Iterator[list[tuple[str, bool]]]:
    """Lists of the strings that may name a class, one list for the value itself or for each file it leads to.

    Beside each stands whether it does, or else might be any text. A file is read only where LightningCLI builds
    callbacks from it, so that others, such as data, may be large, or no YAML.
    """
    is_config = _is_config(key)
    is_written_out = value[:1] in ("[", "{") and key.startswith("trainer")
    is_file = not is_written_out and _is_file(value, folder, key)
    if not (is_file or is_config or is_written_out):
        yield [(value, _names_class(value, key))]
        return
    path = folder / value
    name = str(path) if is_file else f"The argument {value[:40]!r}"
    content = read_yaml(path if is_file else value, name)
    kind = type(content)
    if is_config and kind is not dict and (is_file or kind is not str):  # a text names a file that is not there
        raise ValueError(f"{name} holds no settings: name a YAML file, with `trainer:` for instance.")
    below = "" if is_config else key
    both = {"trainer.callbacks", "trainer.callbacks+"}
    if both <= set(_keys(content, below)):
        raise ValueError(
            f"{name} has `callbacks:` and `callbacks+:`, of which the second takes the place of the first: list all "
            "callbacks of one file under one of them."
        )
    texts = list(_strings(content, below))
    base = path.parent if is_file else folder
    yield [(text, _names_class(text, place)) for text, place in texts if not _is_file(text, base, place)]
    for text, place in texts:
        if _is_file(text, base, place):
            yield from _names_in_value(text, base, place)


def _is_file(value: str, folder: pathlib.Path, key: str) -> bool:
    """Whether LightningCLI reads callbacks from a file of that name."""
    is_read = _is_config(key) or key.rstrip("+") in ("trainer", "trainer.callbacks")
    return is_read and (folder / value).is_file()


def _is_config(key: str) -> bool:
    return key != "" and "config".startswith(key)  # options may be abbreviated


def _names_class(text: str, key: str) -> bool:
    return key.rstrip("+").endswith(("class_path", "callbacks")) and not text.endswith(_ENDINGS)


def read_yaml(source: pathlib.Path | str, name: str) -> Any:
    """The contents of YAML.

    Raises:
        ValueError: If it is none, or has a key twice, of which the first, such as `callbacks`, would be dropped.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(source if isinstance(source, str) else source.read_text(encoding="utf-8"))
        tree = loader.get_single_node()
        for key in _keys_again(tree):
            raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands there twice", key.start_mark)
        return None if tree is None else loader.construct_document(tree)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply to be a configuration.") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        reason = getattr(error, "problem", None) or getattr(error, "reason", "it is no text")
        raise ValueError(f"{name} is not YAML ({reason}{place}): correct it there.") from error


def _keys_again(node: Any) -> Iterator[Any]:
    """Keys of mappings, as they are written, that have come before in the same mapping."""
    waiting, seen = [node], set[int]()
    while waiting:
        node = waiting.pop()
        if not isinstance(value := getattr(node, "value", None), list) or id(node) in seen:
            continue
        seen.add(id(node))
        keys = [entry[0] for entry in value if isinstance(entry, tuple)]
        names: set[tuple[str, str]] = set()
        for key in keys:
            name = (key.tag, str(key.value))
            if name in names and not key.tag.endswith(":merge"):
                yield key
            names.add(name)
        waiting += [entry[1] if isinstance(entry, tuple) else entry for entry in value]


def _strings(node: Any, key: str) -> Iterator[tuple[str, str]]:
    """The strings below a key, each with its own key; entries of a list have that of the list."""
    if isinstance(node, str):
        yield node, key
    elif isinstance(node, dict):
        for name, value in node.items():
            yield from _strings(value, _joined(key, name))
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value, key)


def _keys(node: Any, key: str) -> Iterator[str]:
    """The keys of mappings below a key."""
    for name, value in node.items() if isinstance(node, dict) else ():
        yield _joined(key, name)
        yield from _keys(value, _joined(key, name))


def _joined(key: str, name: Any) -> str:
    return f"{key}.{name}" if key else str(name)


def _imported(path: str, is_class: bool) -> type | None:
    """The callback that a path leads to, if it is one of ours or made of one, whatever module names it.

    Raises:
        ValueError: If what must be the path of a class leads nowhere, so that nobody knows whether it is ours.
    """
    if not (is_class or path.startswith("lightning_pac.")):
        return None  # any text, which might be the name of a script
    try:
        found = pydoc.locate(path)
    except pydoc.ErrorDuringImport as error:
        raise ValueError(
            f"{path} cannot be imported ({error.value}): correct what it names, or leave it out."
        ) from error
    if found is None and is_class:
        module = path.partition(".")[0]
        if "." in path and importlib.util.find_spec(module) is None:
            raise ValueError(say_where(f"{path} cannot be imported: No module named '{module}'"))
        raise ValueError(f"{path} leads to no class: correct the path, or leave it out.")
    if not isinstance(found, type) and callable(found):  # a function that makes one
        with contextlib.suppress(Exception):
            found = typing.get_type_hints(found).get("return")
    return _if_ours(found)


def _kind_called(name: str) -> type | None:
    """The callback of ours, or made of one, that LightningCLI takes a bare name for."""
    import lightning.pytorch as pl

    import lightning_pac.callbacks

    kinds: list[Any] = [getattr(lightning_pac.callbacks, name, None) if name.isidentifier() else None]
    waiting: list[type] = [pl.Callback] if name.isidentifier() else []
    while waiting:
        below: list[type] = waiting.pop().__subclasses__()
        kinds += [kind for kind in below if kind.__name__ == name]
        waiting += below
    return next((kind for kind in map(_if_ours, kinds) if kind is not None), None)


def _if_ours(found: Any) -> type | None:
    import lightning.pytorch as pl

    is_callback = isinstance(found, type) and issubclass(found, pl.Callback)
    return (
        found if is_callback and any(kind.__module__.startswith("lightning_pac.") for kind in found.__mro__) else None
    )
