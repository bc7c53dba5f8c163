"""Writes what was found about the networks into the page of the documentation."""

from pathlib import Path
from typing import Any

import pytest

FOUND: dict[str, tuple[float, float]] = {}
"""Largest error and largest move by a record, by network, as far as it was run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", type=Path, help="page whose table of networks is written anew")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":  # also of a worker's test, in the process that writes the page
        FOUND.update(value for key, value in report.user_properties if key == "error and move of a network")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    page: Any = session.config.getoption("--table", default=None)
    if page is None or exitstatus or hasattr(session.config, "workerinput"):
        return
    from page import with_table

    page.write_text(with_table(page.read_text(), FOUND))
