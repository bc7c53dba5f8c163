"""What is built and installed: the wheel, the editable install, the version, the extras."""

import os
import pathlib
import re
import subprocess
import sys
import zipfile
from importlib import metadata

import pytest

import lightning_pac

PACKAGE = pathlib.Path(lightning_pac.__file__).parent
ROOT = PACKAGE.parent
REPOSITORY = "https://github.com/lightning-pac/lightning-pac/blob/main/"
SHOW_RECIPES = (
    "import lightning_pac; from lightning_pac.cli import recipes;"
    "print(lightning_pac.__file__); print(recipes.recipe_directory()); print(*recipes.recipe_names())"
)

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="runs in a checkout")


def run_python(code: str, folder: pathlib.Path, path: pathlib.Path | None = None) -> list[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_every_module_and_every_recipe(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py")}
    recipes = {f"lightning_pac/recipes/{path.name}" for path in (ROOT / "callbacks").glob("*.yaml")}
    assert recipes
    assert modules | recipes | {"lightning_pac/py.typed"} <= names
    assert not {name for name in names if name.startswith(("tests/", "docs/", "examples/", "callbacks/"))}


def test_links_of_the_readme_lead_somewhere_from_a_registry_too(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        description = archive.read(name).decode().partition("\n\n")[2]
    links = re.findall(r"\]\(([^)]+)\)", description)
    inside = [link.removeprefix(REPOSITORY) for link in links if link.startswith(REPOSITORY)]
    assert len(inside) > 10
    assert all(link.startswith("https://") for link in links)
    assert [path for path in inside if not (ROOT / path.partition("#")[0]).exists()] == []


def test_recipes_are_found_in_an_unpacked_wheel(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    installed = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    module, folder, names = run_python(SHOW_RECIPES, tmp_path, installed)
    assert pathlib.Path(module) == installed / "lightning_pac" / "__init__.py"
    assert pathlib.Path(folder) == installed / "lightning_pac" / "recipes"
    assert names.split() == sorted(path.stem for path in (ROOT / "callbacks").glob("*.yaml"))


def test_recipes_are_found_in_an_editable_install(tmp_path: pathlib.Path) -> None:
    module, folder, names = run_python(SHOW_RECIPES, tmp_path)
    assert pathlib.Path(module) == PACKAGE / "__init__.py"
    assert pathlib.Path(folder) == ROOT / "callbacks"
    assert "srpp_sgd" in names.split()


def test_an_installation_without_recipes_says_so(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path, [name for name in archive.namelist() if "/recipes/" not in name])
    code = "from lightning_pac.cli import main; import sys; sys.exit(main(['fit', '--recipe', 'srpp_sgd']) - 1)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0
    assert "reinstall lightning-pac" in result.stderr


def test_the_version_is_the_same_everywhere() -> None:
    assert metadata.version("lightning-pac") == lightning_pac.__version__
    assert f'version = "{lightning_pac.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"\nversion: {lightning_pac.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_importing_the_package_and_its_mathematics_imports_no_torch() -> None:
    code = (
        "import sys; from lightning_pac import accountants, audits, mechanisms, scenarios;"
        "print({'torch', 'lightning', 'opacus', 'torchmetrics', 'matplotlib'} & set(sys.modules))"
    )
    assert run_python(code, ROOT) == ["set()"]


def test_every_public_name_can_be_imported() -> None:
    for name in lightning_pac.__all__:
        assert getattr(lightning_pac, name) is not None
    with pytest.raises(AttributeError, match=r"attribute.*no_such_name"):
        _ = lightning_pac.no_such_name


def test_workflows_name_actions_by_commits_that_nobody_can_move():
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = [line.strip() for line in workflow.read_text().splitlines() if "uses:" in line]
        assert used
        assert all(re.fullmatch(r"- uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in used), used
