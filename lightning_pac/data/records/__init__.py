"""Records as a dataset gives them: each once, made of nothing else, and the same at each time."""

from lightning_pac.data.records.collated_alone import check_collated_alone, fresh_collate
from lightning_pac.data.records.copied_dataset import apart, copy_of
from lightning_pac.data.records.delivered_rows import DeliveredRows, WatchedIterators, delivered_indices, watch_loader
from lightning_pac.data.records.libraries import is_installed
from lightning_pac.data.records.record_digest import (
    RECORDS_COMPARED,
    digest_loaded_records,
    digest_positions,
    digest_together,
    load_alone,
    own_generators,
)
from lightning_pac.data.records.records_alone import check_records_alone
from lightning_pac.data.records.repeated_records import TWICE, check_each_record_once, positions_of_records
from lightning_pac.data.records.shared_contents import (
    are_overlapping_windows,
    copies_of_a_record,
    names_of_several,
    row_read_again,
    some_records,
)
from lightning_pac.data.records.surroundings import LARGE, DataMemo, Scope, Surroundings, copy_small, outline
from lightning_pac.data.value_digest import digest

__all__ = [
    "LARGE",
    "RECORDS_COMPARED",
    "TWICE",
    "DataMemo",
    "DeliveredRows",
    "Scope",
    "Surroundings",
    "WatchedIterators",
    "apart",
    "are_overlapping_windows",
    "check_collated_alone",
    "check_each_record_once",
    "check_records_alone",
    "copies_of_a_record",
    "copy_of",
    "copy_small",
    "delivered_indices",
    "digest",
    "digest_loaded_records",
    "digest_positions",
    "digest_together",
    "fresh_collate",
    "is_installed",
    "load_alone",
    "names_of_several",
    "outline",
    "own_generators",
    "positions_of_records",
    "row_read_again",
    "some_records",
    "watch_loader",
]
