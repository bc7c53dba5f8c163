"""Real records that are looked at for their structure."""

from typing import Any

__all__ = ["EXAMPLES", "shown_records"]

EXAMPLES = 32
"""Records from all over a dataset that are looked at."""


def shown_records(dataset: Any) -> list[Any]:
    """Records from all over a dataset, since its first may be of one class."""
    size = len(dataset)
    return [dataset[index] for index in sorted({size * number // EXAMPLES for number in range(EXAMPLES)}) if size]
