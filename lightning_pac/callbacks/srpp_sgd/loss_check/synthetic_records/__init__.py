"""Records with the structure of real ones and none of their values."""

from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.examples import shown_records
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.groups import (
    emptied,
    naming_parts,
    number_parts,
    parts_of_one_length,
    short_parts,
    unlike_in,
    with_number,
    with_parts_of,
)
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.leaves import GROUP
from lightning_pac.callbacks.srpp_sgd.loss_check.synthetic_records.records import (
    LAWS,
    OF_LENGTHS,
    SyntheticRecords,
    Variation,
)

__all__ = [
    "GROUP",
    "LAWS",
    "OF_LENGTHS",
    "SyntheticRecords",
    "Variation",
    "emptied",
    "naming_parts",
    "number_parts",
    "parts_of_one_length",
    "short_parts",
    "shown_records",
    "unlike_in",
    "with_number",
    "with_parts_of",
]
