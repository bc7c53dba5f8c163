"""Write docs/reproductions/index.md: every result of the five papers with its state, from tables of rows and results.

    python benchmarks/papers/index.py

A row is an entry of `PAPER/rows.json`: `item`, `about`, `state`, and where there are any the `paper`'s figure, `ours`,
the `experiment`, the `test` that proves it, and `why` it is not done. Figures of `ours` are `{name|format}`, taken from
the result of the experiment, or a ratio `{name/other|format}`: none can be written by hand.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from results import FOLDER, REPOSITORY, Result, experiments, leaves, stored

PAGE = REPOSITORY / "docs" / "reproductions" / "index.md"
PAPERS = {
    "responses": ("PAC-private responses", "pac-private-responses.md"),
    "pac_algorithms": ("PAC-private algorithms", "pac-private-algorithms.md"),
    "residual_pac": ("Residual-PAC privacy", "residual-pac.md"),
    "one_sided": ("One-sided noise", "one-sided-noise.md"),
    "srpp": ("Sliced Rényi Pufferfish privacy", "sliced-renyi-pufferfish.md"),
}
STATES = {
    "done": "shown at the paper's own setting, its figures held as data, or code with a test against independent "
    "truth; where data or hardware are not at hand, at the paper's size on the data or models that the row names",
    "partly": "at another setting, or without figures held as data: the row says which",
    "refuted": "computed, and not so: the row says why",
    "missing": "nothing to show",
}
NOT_DATA = "*The figures of this section are not held as data.*"
FIGURE = re.compile(r"\{([^{}|]+)\|([^{}]+)\}")
INTRODUCTION = """# Do the papers reproduce?

Every algorithm, theorem, table and figure of the five papers that states something. This page is written by
`python benchmarks/papers/index.py` from tables of rows and from results that are kept as data, and compared with them
by a test. `make reproduce` runs what takes ten minutes together and compares each figure with the stored one, within
its spread.
"""


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    """The whole page."""
    counts = {paper: Counter(row["state"] for row in rows(paper)) for paper in PAPERS}
    lines = [INTRODUCTION, table_line("paper", *STATES, "rows"), table_line(*["---"] * (len(STATES) + 2))]
    for paper, (title, file) in PAPERS.items():
        numbers = [counts[paper][state] for state in STATES]
        lines.append(table_line(f"[{title}]({file})", *numbers, sum(numbers)))
    totals = [sum(count[state] for count in counts.values()) for state in STATES]
    lines.append(table_line("**all**", *(f"**{number}**" for number in (*totals, sum(totals)))))
    lines += ["", *(f"- *{state}*: {meaning}." for state, meaning in STATES.items())]
    lines += ["", "Diagrams and illustrations are listed and not counted."]
    for paper, (title, file) in PAPERS.items():
        lines += ["", f"## {title}", "", f"[More]({file})", ""]
        lines += [
            table_line("item", "", "state", "paper", "ours", "experiment or test", "why"),
            table_line(*["---"] * 7),
        ]
        lines += [shown(row) for row in rows(paper)]
    lines += [
        "",
        "## Experiments",
        "",
        "Each is run again by `python benchmarks/papers/reproduce.py NAME --data-root data`.",
    ]
    lines += ["", table_line("name", "time", "command"), table_line("---", "---", "---")]
    lines += [experiment_line(name, experiment) for name, experiment in experiments().items()]
    return "\n".join(lines) + "\n"


def rows(paper: str) -> list[dict[str, str]]:
    """Rows of one paper."""
    found: list[dict[str, str]] = json.loads((FOLDER / paper / "rows.json").read_text())
    return found


def shown(row: dict[str, str]) -> str:
    """One line of a paper's table."""
    proof = [row.get("experiment"), row.get("test", "").rpartition("::")[2]]
    cells = (row["item"], row["about"], row["state"], row.get("paper", ""), ours(row))
    return table_line(*cells, ", ".join(f"`{part}`" for part in proof if part), row.get("why", ""))


def ours(row: dict[str, str]) -> str:
    """Our figures, filled in from the result of the row's experiment."""

    def fill(match: re.Match[str]) -> str:
        figures = Result.read(row["experiment"]).figures
        above, _, below = match[1].partition("/")
        return format(figures[above] / (figures[below] if below else 1.0), match[2])

    return FIGURE.sub(fill, row.get("ours", ""))


def experiment_line(name: str, experiment: dict[str, Any]) -> str:
    """Name, time and command of an experiment."""
    command = f"python {FOLDER.relative_to(REPOSITORY)}/{experiment['command']}"
    command = command.format(output=f"runs/{name}", data_root="data")
    time = experiment.get("needs", "no result stored yet")
    if name in stored():
        seconds = Result.read(name).seconds
        time = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    return table_line(f"`{name}`", time, f"`{command}`")


def table_line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def claimed(text: str) -> set[str]:
    """Figures that a Markdown text states: decimals, numbers with an exponent, and in tables those with a comma."""
    prose = re.sub(r"```.*?```|`[^`]*`|\$[^$]*\$|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    prose = re.sub(r"(Figure|Table|Theorem|Corollary|Proposition|Lemma|Section)s? [A-Z]?\d*\.\d+", " ", prose)
    found = set(re.findall(r"(?<![\w^.,-])-?\d[\d,]*\.\d+(?:e-?\d+)?|(?<![\w^.,-])\d+e-?\d+", prose))
    for line in prose.splitlines():
        if line.startswith("|"):
            found |= set(re.findall(r"(?<![\w^.,-])\d{1,3}(?:,\d{3})+(?![\d.])", line))
    return found


def is_held(figure: str, values: list[float]) -> bool:
    """Whether one of the values prints as this figure, as a number or in percent."""
    number, digits = float(figure.replace(",", "")), figure.replace(",", "").lstrip("-")
    mantissa, _, exponent = digits.partition("e")
    last_place = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return any(abs(scale * value - number) <= 0.5001 * last_place for value in values for scale in (1.0, 100.0))


def sections(text: str) -> list[str]:
    """Parts of a page, each from a heading to the next."""
    return re.split(r"^(?=#{1,3} )", text, flags=re.MULTILINE)


def not_held(section: str) -> list[str]:
    """Figures of a section that none of the results it names holds.

    A section names them in a comment, `<!-- results: PAPER/NAME, ...; given: 0.5, ... -->`. Given are settings and
    figures of the paper; those in `published.json` of its folder need not be repeated.
    """
    named = re.search(r"<!-- results: (.+?)(?:; given: (.+?))? -->", section, flags=re.DOTALL)
    if named is None:
        return [] if NOT_DATA in section else sorted(claimed(section))
    values = [float(value) for value in (named[2] or "").split(",") if value.strip()]
    for name in re.split(r",\s*", named[1].strip()):
        values += Result.read(name).figures.values()
        values += published(FOLDER / name.partition("/")[0])
    body = section.replace(named[0], "")
    return sorted(figure for figure in claimed(body) if not is_held(figure, values))


def published(folder: Path) -> list[float]:
    """The figures that a paper prints, where they are kept."""
    path = folder / "published.json"
    return [value for _, value in leaves(json.loads(path.read_text()))] if path.exists() else []


if __name__ == "__main__":
    main()
