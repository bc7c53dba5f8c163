"""Imports go one way, down the layers, and into a room only by its face."""

import ast
import functools
import pathlib

import pytest

import lightning_pac

ROOT = pathlib.Path(lightning_pac.__file__).parent
LAYERS = [
    {"exceptions", "_moved", "_annotations", "_roots", "_shown"},
    {"_validation", "_mutex"},
    {"information", "randomness", "cards", "_durable_files"},
    {"ledger"},
    {"scenarios"},
    {"accountants"},
    {"mechanisms"},
    {"audits"},
    {"gradients", "data"},
    {"modules", "strategies", "callbacks"},
    {"tuning"},
    {"serve", "cli", "report", "evidence", "recipes", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
LIGHT = {name for names in LAYERS[:8] for name in names}
HEAVY = {"torch", "opacus", "torchmetrics", "jsonargparse"}
FILES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
FACES = {module for module, path in FILES.items() if path.name == "__init__.py"}
# Rooms: packages inside a package, and the ledger. Their files are their own.
ROOMS = {face for face in FACES if face.count(".") >= 2} - {"lightning_pac.gradients.rules"} | {"lightning_pac.ledger"}


@functools.cache
def imports_of(module: str) -> list[tuple[str, str, bool]]:
    """Each import of a module: the module imported, the name taken from it, and whether it runs on import.

    Imports for type checkers count, too. A name that is itself a module is the module imported.
    """
    tree = ast.parse(FILES[module].read_text())
    postponed = {id(node) for branch in ast.walk(tree) if _is_postponed(branch) for node in ast.walk(branch)}
    found = []
    for node in ast.walk(tree):
        runs = id(node) not in postponed
        if isinstance(node, ast.Import):
            found += [(alias.name, "", runs) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                found.append((deeper, "", runs) if deeper in FILES else (node.module or "", alias.name, runs))
    return found


def _is_postponed(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def layer_of(module: str) -> str:
    return module.split(".")[1]


def private_room(importer: str, imported: str) -> str | None:
    """The room whose inside `importer` reaches into without being in it, if there is one."""
    for room in sorted(ROOMS, key=len):
        if imported.startswith(f"{room}.") and importer != room and not importer.startswith(f"{room}."):
            return room
    return None


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The circles that a depth-first walk closes."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            found.append(path[path.index(module) :])
        elif module not in done:
            for following in sorted(arrows.get(module, ())):
                walk(following, [*path, module])
            done.add(module)

    for module in arrows:
        walk(module, [])
    return found


@pytest.mark.parametrize("module", [module for module in FILES if module != "lightning_pac"])
def test_imports_only_from_earlier_layers(module: str) -> None:
    own = layer_of(module)
    assert own in LEVEL, f"{own} has no layer: add it to LAYERS"
    for imported, _, _ in imports_of(module):
        if not imported.startswith("lightning_pac.") or layer_of(imported) == own:
            continue
        assert layer_of(imported) in LEVEL, f"{imported} is no layer of the package"
        assert LEVEL[layer_of(imported)] <= LEVEL[own], f"{module} imports {imported}, a later layer"


@pytest.mark.parametrize("module", FILES)
def test_a_room_is_entered_by_its_face(module: str) -> None:
    for imported, _, _ in imports_of(module):
        room = private_room(module, imported)
        assert room is None, f"{module} imports {imported}: take it from {room}, whose __all__ says what it shows"


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_shows_what_is_taken_from_it(room: str) -> None:
    shown = set(ast.literal_eval(FILES[room].read_text().split("__all__ = ")[1].split("]")[0] + "]"))
    for module in FILES:
        if module != room and not module.startswith(f"{room}."):
            taken = {name for imported, name, _ in imports_of(module) if imported == room}
            assert taken <= shown, f"{module} takes {taken - shown} from {room}"


@pytest.mark.parametrize("module", [module for module in FILES if module.split(".")[1:2] and layer_of(module) in LIGHT])
def test_the_mathematics_imports_no_lightning_and_no_torch_at_the_top(module: str) -> None:
    for imported, _, runs in imports_of(module):
        root = imported.split(".")[0]
        assert root not in {"lightning", "pytorch_lightning", "lightning_fabric"}, f"{module} imports {imported}"
        assert not (runs and root in HEAVY), f"{module} imports {imported} at the top"


def test_nobody_imports_the_other_lightning_package() -> None:
    for module in FILES:
        assert all(imported.split(".")[0] != "pytorch_lightning" for imported, _, _ in imports_of(module)), module


def test_no_imports_go_in_a_circle() -> None:
    arrows = {module: {imported for imported, _, _ in imports_of(module)} & FILES.keys() for module in FILES}
    # A face is the sum of its files; `import lightning_pac` is lazy, and no file below it needs more than its version.
    assert circles({module: inner for module, inner in arrows.items() if module != "lightning_pac"}) == []


def test_a_circle_is_noticed() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
