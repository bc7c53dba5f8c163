"""What stands in several records: a row, a file, a name, or most of a window."""

from lightning_pac.data.records.shared_contents.columns import check_columns
from lightning_pac.data.records.shared_contents.copies import copies_of_a_record, names_of_several, some_records
from lightning_pac.data.records.shared_contents.file_names import check_file_names
from lightning_pac.data.records.shared_contents.rows_read_again import row_read_again
from lightning_pac.data.records.shared_contents.windows import are_overlapping_windows

__all__ = [
    "are_overlapping_windows",
    "check_columns",
    "check_file_names",
    "copies_of_a_record",
    "names_of_several",
    "row_read_again",
    "some_records",
]
