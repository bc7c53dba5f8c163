"""Real records that are looked at for their structure."""

import math
import time
from typing import Any

from lightning_pac.callbacks.srpp_sgd.loss_check.fixed_draws import SEEDS, seeded
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.named_parts import (
    EXAMPLES,
    MOST_VALUES,
    few_values,
    key_of,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.structure import MISSING, part_at

__all__ = ["shown_records"]

_SECONDS = 1.0  # that further records may take to load


def shown_records(dataset: Any, others: bool = True) -> tuple[list[Any], bool]:
    """Records from all over a dataset, since its first may be of one class, and others that hold rare values.

    Args:
        dataset: A map-style dataset.
        others: Whether to look, for a second, at more records for values that the first do not hold: integers, texts
            and other parts that are no numbers, of which there are few.

    Returns:
        The records, and whether all records were looked at where that matters.
    """
    size = len(dataset)
    first = sorted({size * number // EXAMPLES for number in range(EXAMPLES)}) if size else []
    records = [dataset[index] for index in first]
    known = few_values(records)
    if not (known and others):
        return records, not known
    # All over the data, in whatever order these are.
    step = next(step for step in range(round(size * 0.618) or 1, 2 * size + 1) if math.gcd(step, size) == 1)
    kinds = {path: {type(part) for key, part in values.items() if key is type(part)} for path, values in known.items()}
    end, placed, all_fit = time.perf_counter() + _SECONDS, set(first), True
    with seeded(SEEDS[0]):
        for index in (number * step % size for number in range(size)):
            if index in placed:
                continue
            if time.perf_counter() > end:
                return records, False
            try:
                record = dataset[index]
            except Exception:  # the loader will say so
                return records, False
            is_new = False
            for path, values in known.items():
                part = part_at(record, path)
                if part is MISSING:
                    continue
                key = type(part) if type(part) in kinds[path] else key_of(part)
                if key not in values and len(values) < MOST_VALUES:
                    values[key], is_new = part, True
                all_fit &= key in values
            if is_new:
                records.append(record)
    return records, all_fit
