"""Persons and views as what is drawn: whose rows a batch holds, how often, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import TensorDataset

from lightning_pac import Poisson
from lightning_pac.data import Persons, count_records, private_loader

OWNERS = [3, 1, 3, 2, 3, 1, 3]  # of records 0 to 6; at most two of each are used
RECORDS = [(torch.tensor(float(index)), owner) for index, owner in enumerate(OWNERS)]


def test_persons_are_drawn_independently_with_at_most_so_many_of_their_records() -> None:
    """By simulation, with a false alarm of 1e-6 for all three persons together."""
    loader = private_loader(RECORDS, Poisson(0.3), persons=Persons(of=1, at_most=2), views=2)
    assert count_records(loader) == 3
    drawn = np.zeros(3)
    batches = 0
    for _ in range(700):
        for values, owners in loader:
            batches += 1
            rows = list(zip(values.tolist(), owners.tolist(), strict=True))
            assert len(rows) == loader.num_rows
            assert loader.unused_rows is not None
            used = [row for row, unused in zip(rows, loader.unused_rows.tolist(), strict=True) if not unused]
            if loader.num_drawn == 0:
                continue
            # Each person's rows are side by side: two views of each of two records.
            blocks = [rows[start : start + 4] for start in range(0, len(rows), 4)]
            assert all(len({owner for _, owner in block}) == 1 for block in blocks)
            present = [block[0][1] for block in blocks]
            assert len(present) == len(set(present)) == loader.num_drawn
            for owner in present:
                first = [float(index) for index, other in enumerate(OWNERS) if other == owner][:2]
                assert sorted(value for value, other in used if other == owner) == sorted(first * 2)
            drawn[np.asarray(present) - 1] += 1
    for count in drawn:
        assert stats.binomtest(int(count), batches, 0.3).pvalue > 1e-6 / 3


def test_a_tensor_of_one_number_names_a_person() -> None:
    owners = TensorDataset(torch.zeros(7, 2), torch.tensor(OWNERS))
    assert Persons(of=1, at_most=2).records_of(owners) == Persons(of=1, at_most=2).records_of(RECORDS)


def test_a_function_may_read_names_of_several_kinds() -> None:
    records = [{"id": 1}, {"id": torch.tensor(1)}, {"id": np.int64(2)}]
    assert Persons(of=lambda record: record["id"], at_most=2).records_of(records) == [[0, 1], [2]]


def changing() -> Any:
    calls = iter(range(100))
    return lambda record: next(calls)


def by_order(pairs: bool) -> Any:
    """Numbers pairs of records by the order in which they come; or persons, who stay who they are."""
    seen: dict[Any, int] = {}
    return lambda record: seen.setdefault(float(record[0]) if pairs else record[1], len(seen) // (1 + pairs))


def test_persons_may_be_numbered_as_they_come() -> None:
    records = [(record, owner % 4) for record, owner in RECORDS] * 3
    assert Persons(of=by_order(pairs=False), at_most=9).records_of(records) == Persons(of=1, at_most=9).records_of(
        records
    )


@pytest.mark.parametrize(
    ("of", "records", "sentence"),
    [
        (1, [(0.0, (1, 2)), (0.0, (3,))], "a record belongs to one person, .* and got tuple: .* in two groups"),
        (1, [(0.0, None)], "got NoneType"),
        (1, [(0.0, True)], "got bool"),
        (1, [(0.0, 1), (0.0, torch.tensor(2))], "by tensors or arrays in some records and by plain numbers"),
        (1, [(0.0, 1), (0.0, "1")], "by numbers in some records and by texts in others, .* in two groups"),
        (1, [(0.0, "ann"), (0.0, " "), (0.0, " ")], "an empty text for a name, .* leave such records out"),
        (1, [(0.0, "Ann"), (0.0, "ann ")], "in spaces, capitals or the encoding of letters alone, .* in two groups"),
        (1, [(0.0, "Ann  Lee"), (0.0, "Ann Lee")], "in spaces"),
        (1, [(0.0, "Jos\u00e9"), (0.0, "Jose\u0301")], "the encoding of letters"),
        (changing(), RECORDS, "to one person and, when it is asked again or before others, .* in two groups"),
        (by_order(pairs=True), RECORDS, "to one person and, when it is asked again or before others, .* in two groups"),
        ("user", RECORDS, "a record, of type tuple, has no 'user' that says whose it is"),
        (5, RECORDS, "a record, of type tuple, has no 5 that says whose it is"),
    ],
)
def test_a_person_in_two_groups_is_refused(of: Any, records: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^unit: .*{sentence}"):
        Persons(of=of, at_most=2).records_of(records)
