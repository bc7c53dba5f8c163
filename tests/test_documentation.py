"""What README and the documentation show runs as it stands: their Python, and their `lightning-pac` lines.

Commands that take minutes, or data that are not in the repository, are held against the program that they name; those
of the examples are run by `make docs-test`.
"""

import logging
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import lightning_pac
from lightning_pac import cli

ROOT = pathlib.Path(lightning_pac.__file__).parent.parent
FENCE = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the documentation is in a checkout")


def files(page: pathlib.Path) -> dict[str, str]:
    """The files that a page tells its reader to write."""
    return {block["title"]: block["text"] for block in FENCE.finditer(page.read_text()) if block["title"]}


def steps(page: pathlib.Path) -> list[str]:
    """What the page tells its reader to run, in its order, as Python; fragments are marked `py` and `console`."""
    shown = []
    for block in FENCE.finditer(page.read_text()):
        text = block["text"].replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line.startswith("lightning-pac ")]
        if block["language"] == "python" and not block["title"]:
            shown.append(block["text"])
        elif block["language"] == "bash":
            shown += [f"assert main({shlex.split(line, comments=True)[1:]!r}) == 0" for line in lines]
    return shown


def promises(page: pathlib.Path) -> list[str]:
    """What the page shows that a private run says of itself, or the beginnings of it."""
    blocks = [block["text"] for block in FENCE.finditer(page.read_text()) if block["language"] == "text"]
    return [line for block in blocks for line in block.splitlines() if line.startswith(("SRPPSGD: ", "DPSGD: "))]


class Messages(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def write_files(page: pathlib.Path, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the page's files; one that belongs into the command line's package is found there, as if it were."""
    # The README speaks of the reader's own project; the first page of the documentation has one.
    for name, text in {**files(ROOT / "docs" / "get-started.md"), **files(page)}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        module = ".".join(pathlib.Path(name).with_suffix("").parts)
        monkeypatch.delitem(sys.modules, module, raising=False)
        if module.startswith("lightning_pac.cli."):
            monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(path.parent)])
            monkeypatch.delattr(cli, path.stem, raising=False)


EXAMPLES = sorted((ROOT / "examples").glob("*/README.md"))
# The pages of the gallery are what its notebooks gave, and those have tests of their own.
PROSE = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "gallery"]
SHOWN = [ROOT / "README.md", *PROSE, *EXAMPLES]
PAGES = [page for page in SHOWN if page.exists() and steps(page)]


# What they show has tests of its own.
SLOW = [f"{name}.md" for name in ("side-channels", "sweeps", "frozen-backbone-and-lora", "class-imbalance")]
SLOW += [f"{name}.md" for name in ("correlated-noise", "custom-sampling", "persons", "plan", "private-metrics")]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if page.name in SLOW else page for page in PAGES],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if page in EXAMPLES:  # which speak of the files beside them
        for path in (path for path in page.parent.iterdir() if path.suffix in (".py", ".yaml")):
            shutil.copy(path, tmp_path)
    write_files(page, tmp_path, monkeypatch)
    names = {"__name__": "page", "main": cli.main}
    said = Messages()
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(said)
    try:
        for step in steps(page):
            exec(compile(step, page.name, "exec"), names)
    finally:
        logger.removeHandler(said)
    for line in promises(page):
        assert any(text.startswith(line) for text in said.texts), line


@pytest.mark.parametrize("block", ["```python\nundefined\n```\n", "```bash\nlightning-pac report nowhere\n```\n"])
def test_a_page_that_does_not_run_is_noticed(block, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(block)
    with pytest.raises((NameError, AssertionError)):
        test_the_page_runs(page, tmp_path, monkeypatch)


def test_the_first_pages_show_what_a_run_says():
    assert [len(promises(ROOT / page)) for page in ("README.md", "docs/get-started.md")] == [2, 2]


def test_every_command_of_the_table_exists():
    table = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "command-line.md").read_text(), re.MULTILINE)
    listed = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    subparsers = next(action for action in cli.build_parser()._actions if action.dest == "command")
    assert listed == set(subparsers.choices)


PROGRAMS = ("lightning-pac ", "python ", "make ", "pip ", "git ", "curl ", "cd ")


def commands(page: pathlib.Path) -> list[str]:
    """Every command that a page shows, in fences of any kind or indented."""
    text = page.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    return [line.strip() for line in lines if line.removeprefix("    ").startswith(PROGRAMS)]


def complaint(command: str, folder: pathlib.Path) -> str | None:
    """What is wrong with a command by the program that it names, without running it."""
    first, *words = shlex.split(command, comments=True)
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    if first == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return None if set(words) <= set(targets) else "no such target"
    if first == "python":
        script = next((path for path in (ROOT / words[0], folder / words[0]) if path.exists()), None)
        if script is None:
            return "no such script"
        known = set(re.findall(r'"(--[\w-]+)"', script.read_text()))
        return None if options <= known else f"unknown options {sorted(options - known)}"
    if first == "lightning-pac":
        try:
            _, unknown = cli.build_parser().parse_known_args(words)
        except SystemExit:
            return "not understood"
        passed_on = words[0] in ("fit", "validate", "test", "predict", "check", "tune")
        return f"unknown words {unknown}" if unknown and not passed_on else None
    return None  # pip, git, curl and cd are not ours


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_names_what_exists(page, tmp_path, monkeypatch):
    write_files(page, tmp_path, monkeypatch)
    assert {command: complaint(command, page.parent) for command in commands(page)} == dict.fromkeys(commands(page))


@pytest.mark.parametrize(
    "command",
    ["make dmeo", "python nowhere.py", "python examples/vision/demo.py --epoch 2", "lightning-pac calibrate --epoch 3"],
)
def test_a_command_that_names_nothing_is_noticed(command):
    assert complaint(command, ROOT) is not None


# What needs data that are not in the repository, or runs until it is stopped (the suite starts a server elsewhere).
NOT_BY_ITSELF = ("--data-root", "--bean-file", "lightning-pac serve", "curl", "git ", "pip ", "cd ", "make ")


@pytest.mark.slow
@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.parent.name)
def test_the_commands_of_an_example_run(page, tmp_path):
    folder = tmp_path / "examples" / page.parent.name
    shutil.copytree(page.parent, folder, ignore=shutil.ignore_patterns("runs", "*logs"))
    for command in commands(page):
        if any(part in command for part in NOT_BY_ITSELF):
            continue
        words = shlex.split(command, comments=True)
        program = [sys.executable, *(["-m", "lightning_pac"] if words[0] == "lightning-pac" else [])]
        where = tmp_path if words[1].startswith("examples/") else folder
        done = subprocess.run([*program, *words[1:]], cwd=where, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, (command, done.stderr[-3000:])
