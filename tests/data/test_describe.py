"""Reading a DataLoader: what it is called, and that what it does stays within what is claimed of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from lightning_pac.data import (
    EpochShuffle,
    FixedSize,
    FixedSizeBatchSampler,
    Poisson,
    PoissonBatchSampler,
    PrivateDataLoader,
    Sequential,
    ShuffledBatchSampler,
    WithIndex,
    WithReplacement,
    batch_sizes,
    count_records,
    describe_loader,
    order_is_public,
    private_loader,
)
from lightning_pac.randomness import SecureGenerator

DATA: Any = range(100)


class Repeating(DataLoader[Any]):
    """Every batch twice in a row, as for repeated augmentation."""

    def __iter__(self) -> Any:
        return (batch for batch in super().__iter__() for _ in range(2))


def load(**kwargs: Any) -> DataLoader[Any]:
    return DataLoader(DATA, **kwargs)


LOADERS = [
    (load(batch_size=8, shuffle=True), EpochShuffle(8)),
    (load(batch_size=8, shuffle=True, drop_last=True), EpochShuffle(8, drop_last=True)),
    (load(batch_size=8), Sequential(8)),
    (load(batch_size=8, shuffle=True, num_workers=2), EpochShuffle(8)),
    (load(batch_size=8, sampler=RandomSampler(DATA, replacement=True)), WithReplacement(8)),
    (load(batch_size=8, sampler=RandomSampler(DATA, num_samples=30)), EpochShuffle(8, steps_per_pass=4)),
    (load(batch_size=8, sampler=SubsetRandomSampler(range(50))), EpochShuffle(8)),
    (load(batch_sampler=BatchSampler(RandomSampler(DATA), 8, False)), EpochShuffle(8)),
    (load(batch_sampler=PoissonBatchSampler(100, 0.1)), Poisson(0.1)),
    (load(batch_sampler=FixedSizeBatchSampler(100, 8)), FixedSize(8)),
    (load(batch_sampler=ShuffledBatchSampler(100, 8)), EpochShuffle(8)),
    (load(batch_sampler=ShuffledBatchSampler(100, 8, shuffle=False)), Sequential(8)),
    (private_loader(DATA, Poisson(0.2, batch_size=20)), Poisson(0.2, batch_size=20)),
    (
        load(batch_sampler=UniformWithReplacementSampler(num_samples=100, sample_rate=0.1)),
        Poisson(0.1, secret_draws=False),
    ),
]


@pytest.mark.parametrize(("loader", "sampling"), LOADERS, ids=lambda value: type(value).__name__)
def test_a_loader_is_described_by_what_it_does(loader: DataLoader[Any], sampling: Any) -> None:
    assert describe_loader(loader) == sampling


BOUNDED = [case for case in LOADERS if not isinstance(case[1], Poisson)]


@pytest.mark.parametrize("case", BOUNDED, ids=lambda case: str(case[1]))
def test_no_epoch_draws_more_than_its_description_allows(case: tuple[DataLoader[Any], Any]) -> None:
    loader, sampling = case
    differing, worst = 12, 0
    indices = loader.batch_sampler
    assert indices is not None
    for _ in range(800):
        counts = [sum(index < differing for index in batch) for batch in indices]
        worst = max(worst, sum(count**2 for count in counts))
        steps = len(counts)
    assert worst <= sampling.worst_case_square_sum(differing, count_records(loader), steps)
    if isinstance(sampling, EpochShuffle):
        # Missed by 800 epochs with chance 4e-11 where only 30 of the records are drawn in each (3 % of them pass it).
        assert worst > EpochShuffle(sampling.batch_size).worst_case_square_sum(4, 100, steps)


def test_the_number_of_records_is_that_of_the_sampler() -> None:
    assert count_records(load(batch_size=8)) == 100
    assert count_records(load(batch_size=8, sampler=SubsetRandomSampler(range(50)))) == 50


def test_a_chosen_seed_makes_the_order_public() -> None:
    state = torch.get_rng_state()
    try:
        torch.manual_seed(0)
        assert order_is_public(load(batch_size=8, shuffle=True))
        torch.seed()  # 64 bits from the operating system: below 2**32 once in 4e9
        assert not order_is_public(load(batch_size=8, shuffle=True))
        assert order_is_public(load(batch_size=8, shuffle=True, generator=torch.Generator()))
        assert order_is_public(load(batch_size=8, sampler=RandomSampler(DATA, generator=torch.Generator())))
        assert order_is_public(load(batch_size=8))
        assert not order_is_public(private_loader(DATA, EpochShuffle(8)))
        assert order_is_public(private_loader(DATA, Sequential(8)))
        assert not order_is_public(load(batch_sampler=FixedSizeBatchSampler(100, 8)))
        with pytest.warns(UserWarning, match="protect nothing"):
            seeded = SecureGenerator(seed=0)
        assert order_is_public(load(batch_sampler=FixedSizeBatchSampler(100, 8, generator=seeded)))
    finally:
        torch.set_rng_state(state)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class Endless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Mine(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([0] * 100)

    def __len__(self) -> int:
        return 100


class StratifiedSampler(Mine):
    pass


class MyRandomSampler(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter([0] * 100)


class MyBatchSampler(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 0]])


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        ([1, 2], TypeError, "is of type list and no torch DataLoader"),
        (DataLoader(Stream(), batch_size=2), TypeError, "Stream is an iterable dataset"),
        (DataLoader(Subset(Stream(), [0, 1]), batch_size=2), TypeError, "Stream is an iterable dataset"),
        (DataLoader(Endless(), batch_size=2, sampler=range(4)), TypeError, "Endless has no length"),
        (load(batch_size=None), ValueError, r"no automatic batching \(batch_size=None\)"),
        (load(batch_size=8, sampler=WeightedRandomSampler([1.0] * 100, 100)), ValueError, "draws by weights or labels"),
        (load(batch_size=8, sampler=StratifiedSampler()), ValueError, "StratifiedSampler draws by weights or labels"),
        (
            load(batch_size=8, sampler=DistributedSampler(DATA, 3, 0)),
            ValueError,
            "pads its passes by repeating records",
        ),
        (load(batch_size=8, sampler=Mine()), ValueError, "The sampler Mine is unknown.*pass sampling="),
        (load(batch_size=8, sampler=MyRandomSampler(DATA)), ValueError, "The sampler MyRandomSampler is unknown"),
        (
            load(batch_sampler=MyBatchSampler(SequentialSampler(DATA), 8, False)),
            ValueError,
            "The sampler MyBatchSampler is unknown",
        ),
        (
            load(batch_size=8, sampler=RandomSampler(DATA, num_samples=150)),
            ValueError,
            "RandomSampler draws 150 of 100 records without replacement",
        ),
        (load(batch_size=8, sampler=SubsetRandomSampler([1, 1, 2])), ValueError, "SubsetRandomSampler holds records"),
        (load(batch_size=8, sampler=SubsetRandomSampler([1, -99])), ValueError, "SubsetRandomSampler holds records"),
        (Repeating(DATA, batch_size=2), ValueError, "Repeating iterates in its own way"),
        (DataLoader(Subset(DATA, [3, 3]), batch_size=2), ValueError, "Subset holds records twice"),
        (DataLoader(Subset(DATA, np.array([3, 3])), batch_size=2), ValueError, "Subset holds records twice"),
        (DataLoader(Subset(DATA, [-1, len(DATA) - 1]), batch_size=2), ValueError, "Subset holds records twice"),
        (DataLoader(ConcatDataset([DATA, DATA]), batch_size=2), ValueError, "ConcatDataset holds records twice"),
        (
            DataLoader(ConcatDataset([DATA, Subset(DATA, [1, 2])]), batch_size=2),
            ValueError,
            "ConcatDataset holds records twice",
        ),
        (
            DataLoader(ConcatDataset([Subset(DATA, [0, 3]), Subset(Subset(DATA, [2, 3]), [1])]), batch_size=2),
            ValueError,
            "ConcatDataset holds records twice",
        ),
    ],
)
def test_what_cannot_be_bounded_is_refused(loader: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        describe_loader(loader)


class Wrapper(Dataset[Any]):
    """Records of another dataset, at the places that a subclass decides on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


class Repeated(Wrapper):
    def __len__(self) -> int:
        return 3 * len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index % len(self.inner)]


class Tolerant(Wrapper):
    """Hides every ordinary error of the dataset inside."""

    def __getitem__(self, index: int) -> Any:
        try:
            return self.inner[index // 2]
        except Exception:
            return None


class AtOnce(Wrapper):
    """Torch's loaders prefer `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.inner[0] for _ in indices]


class AugmentedSubset(Subset[Any]):
    def __getitem__(self, index: int) -> Any:  # type: ignore[override]
        return -self.dataset[self.indices[index] // 2]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Mixed(Wrapper):
    def __getitem__(self, index: int) -> Any:
        return self.inner[index] + self.inner[(index + 7) % len(self.inner)]


class Zipped(Wrapper):
    """Partners from what is inside a second time, as it is or in part."""

    def __init__(self, inner: Any, other: Any) -> None:
        super().__init__(inner)
        self.other = other

    def __getitem__(self, index: int) -> Any:
        return self.inner[index], self.other[(index + 7) % len(self.other)]


class Alternating(Wrapper):
    def __getitem__(self, index: int) -> Any:
        return self.inner[index % 2][0]


class LastOfAll(Wrapper):
    """One record for all of a batch, and the right one for a batch of one."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.inner[indices[-1]] for _ in indices]


class Named(Wrapper):
    def __getitem__(self, index: int) -> Any:
        return self.inner["first"][index // 3]


RANGE = Wrapper(range(100))
ROWS = torch.arange(20.0).reshape(10, 2)


@pytest.mark.parametrize(
    "dataset",
    [
        WithIndex(Subset(RANGE, [0] * 50)),
        WithIndex(WithIndex(Subset(RANGE, [1, 2, 2]))),
        Subset(WithIndex(RANGE), [5, 5]),
        Repeated(RANGE),
        Wrapper(Repeated(RANGE)),
        Tolerant(RANGE),
        AtOnce(RANGE),
        AugmentedSubset(RANGE, [2, 3]),
        Alternating([RANGE, RANGE]),
        Named({"first": RANGE, "second": RANGE, "third": RANGE}),
        ConcatDataset([Wrapper(RANGE), WithIndex(Subset(RANGE, [4]))]),
        ConcatDataset([Subset(Subset(RANGE, [9, 8, 7]), [0]), Subset(RANGE, [9])]),
        Subset(Subset(ConcatDataset([RANGE, Wrapper(range(3))]), [101, 5, 102]), [0, 0]),
        ConcatDataset([TensorDataset(ROWS), TensorDataset(ROWS)]),
        ConcatDataset([TensorDataset(ROWS[:6]), TensorDataset(ROWS[5:])]),
        TensorDataset(ROWS[:1].expand(10, 2)),
        [(torch.zeros(2), 0)] * 5,
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_no_wrapper_hides_a_record_that_comes_twice(dataset: Any) -> None:
    with pytest.raises(ValueError, match="holds records twice"):
        describe_loader(DataLoader(dataset, batch_size=2))


@pytest.mark.parametrize(
    "dataset",
    [
        WithIndex(Subset(RANGE, [3, 1])),
        Wrapper(Subset(RANGE, [3, 1])),
        AugmentedSubset(RANGE, [2, 4]),
        ConcatDataset([Subset(Subset(RANGE, [9, 8, 7]), [1]), Subset(RANGE, [9])]),
        Subset(Subset(ConcatDataset([RANGE, Wrapper(range(3))]), [101, 5, 102]), [2, 0]),
        ConcatDataset([TensorDataset(ROWS[:5]), TensorDataset(ROWS[5:])]),
        TensorDataset(ROWS[:1].expand(10, 2), torch.arange(10)),
        [(torch.zeros(2), 0), (torch.zeros(2), 0)],
        [0, 0, 1],
        Wrapper([[0.0], [1.0]]),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_wrappers_around_different_records_pass(dataset: Any) -> None:
    assert describe_loader(DataLoader(dataset, batch_size=2)) == Sequential(2)


def test_a_record_that_is_made_of_two_is_refused() -> None:
    part = Subset(RANGE, range(50))
    describe_loader(DataLoader(Zipped(RANGE, Wrapper(range(100))), batch_size=2))
    for dataset in (Mixed(RANGE), LastOfAll(RANGE), Zipped(RANGE, RANGE), Zipped(RANGE, part), Zipped(part, RANGE)):
        with pytest.raises(ValueError, match=f"{type(dataset).__name__} makes a record of several"):
            describe_loader(DataLoader(dataset, batch_size=2))


class OtherIterator(DataLoader[Any]):
    def _get_iterator(self) -> Any:
        return iter([[0, 0]] * len(self))


class TwiceOurs(PrivateDataLoader):
    def __iter__(self) -> Any:
        return (batch for batch in super().__iter__() for _ in range(2))


def test_loaders_that_bring_batches_of_their_own_are_refused() -> None:
    ours = private_loader(DATA, FixedSize(8))
    ours.__class__ = TwiceOurs
    patched = load(batch_size=8)
    patched._get_iterator = lambda: iter([])  # type: ignore[method-assign, assignment]
    for loader in (OtherIterator(DATA, batch_size=8), ours, patched):
        with pytest.raises(ValueError, match="iterates in its own way"):
            describe_loader(loader)


@pytest.mark.parametrize(
    "loader",
    [
        load(batch_size=8, sampler=RandomSampler(range(50), num_samples=100)),
        load(batch_size=8, sampler=SequentialSampler(range(50))),
        load(batch_sampler=ShuffledBatchSampler(50, 8)),
        load(batch_sampler=UniformWithReplacementSampler(num_samples=50, sample_rate=0.1)),
    ],
)
def test_a_sampler_for_other_records_is_refused(loader: Any) -> None:
    with pytest.raises(ValueError, match="draws from 50 records, but the dataset has 100"):
        describe_loader(loader)


def test_parts_of_a_dataset_that_lie_apart_are_described() -> None:
    halves = ConcatDataset([Subset(DATA, [0, 3]), Subset(ConcatDataset([DATA]), [1, 2])])
    assert describe_loader(DataLoader(halves, batch_size=2)) == Sequential(2)


@pytest.mark.parametrize(
    ("loader", "sizes"),
    [
        (DataLoader(range(10), batch_size=4), (4, 4, 2)),
        (DataLoader(range(10), batch_size=4, drop_last=True), (4, 4)),
        (DataLoader(range(3), batch_size=4), (3,)),
        (DataLoader(range(10), batch_size=4, sampler=RandomSampler(range(10), num_samples=9)), (4, 4, 1)),
        (DataLoader(range(10), batch_sampler=ShuffledBatchSampler(10, 4)), (4, 4, 2)),
        (DataLoader(range(10), batch_sampler=FixedSizeBatchSampler(10, 4)), (4, 4, 4)),
    ],
)
def test_the_sizes_of_batches_are_those_that_come(loader: Any, sizes: tuple[int, ...]) -> None:
    assert batch_sizes(loader) == sizes == tuple(len(batch) for batch in loader)
    assert batch_sizes(DataLoader(range(10), batch_sampler=PoissonBatchSampler(10, 0.5))) is None
