"""Leaves most cases of a test to `make test-slow`, where the others show the same."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*cases: Any) -> list[Any]:
    """Mark cases as slow; a tuple is one case of several arguments."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


def mostly_slow(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Mark all cases as slow but those that are kept."""
    cases = list(cases)
    assert all(case in cases for case in kept)
    return [given for case in cases for given in ([case] if case in kept else slow(case))]
