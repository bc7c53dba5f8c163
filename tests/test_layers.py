"""Imports go one way: each layer of the package may import only itself and the layers before it."""

import ast
import pathlib

import pytest

import lightning_pac

ROOT = pathlib.Path(lightning_pac.__file__).parent
LAYERS = [
    {"exceptions"},
    {"information", "randomness"},
    {"scenarios"},
    {"accountants"},
    {"mechanisms"},
    {"audits"},
    {"gradients", "data"},
    {"modules", "strategies", "callbacks"},
    {"serve", "cli", "report", "recipes", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
LIGHT = {name for names in LAYERS[:6] for name in names}
FILES = sorted(ROOT.rglob("*.py"))


def unit_of(path: pathlib.Path) -> str:
    part = path.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


def imports_of(path: pathlib.Path) -> list[tuple[str, bool]]:
    """Absolute names imported by a file, and whether each import is at the top level (outside any function)."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = []
    package = ["lightning_pac", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found.append((module, id(node) not in inside))
            if module == "lightning_pac":
                found += [(f"lightning_pac.{alias.name}", id(node) not in inside) for alias in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_from_earlier_layers(path: pathlib.Path) -> None:
    unit = unit_of(path)
    if unit == "__init__":
        return
    assert unit in LEVEL, f"{unit} has no layer: add it to LAYERS"
    for name, _ in imports_of(path):
        parts = name.split(".")
        if parts[0] != "lightning_pac" or len(parts) == 1 or parts[1] in {unit, "__version__"}:
            continue
        assert parts[1] in LEVEL, f"{name} is no layer of the package"
        same_layer = unit in LAYERS[LEVEL[parts[1]]]
        assert LEVEL[parts[1]] <= LEVEL[unit], f"{path.name} ({unit}) imports {name}, a later layer"
        assert same_layer or LEVEL[parts[1]] < LEVEL[unit]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_mathematics_imports_no_lightning_and_no_torch_at_the_top(path: pathlib.Path) -> None:
    if unit_of(path) not in LIGHT:
        return
    for name, top_level in imports_of(path):
        root = name.split(".")[0]
        assert root not in {"lightning", "pytorch_lightning", "lightning_fabric"}, f"{path.name} imports {name}"
        if top_level:
            heavy = {"torch", "opacus", "torchmetrics", "jsonargparse"}
            assert root not in heavy, f"{path.name} imports {name} at the top"


def test_nobody_imports_the_other_lightning_package() -> None:
    for path in FILES:
        assert not any(name.split(".")[0] == "pytorch_lightning" for name, _ in imports_of(path)), path
