import itertools

import numpy as np
import pytest

from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import (
    BlockedPoisson,
    CyclicShuffle,
    EpochShuffle,
    FixedSize,
    Poisson,
    Sampling,
    Sequential,
    TwoWorldScenario,
    WithReplacement,
    sampling_from_dict,
)

DRAWS = 100_000
N, D = 50, 7


def shuffled_orders(rng: np.random.Generator, draws: int = DRAWS) -> np.ndarray:
    return rng.random((draws, N)).argsort(axis=1)


def simulate(sampling: Sampling, steps: int, rng: np.random.Generator) -> np.ndarray:
    """K_t of `steps` steps, shape (DRAWS, steps), drawn record by record; the first D records differ."""
    counts = []
    if isinstance(sampling, EpochShuffle):
        size = sampling.batch_size
        while len(counts) < steps:
            differs = shuffled_orders(rng) < D
            starts = range(0, N - size + 1 if sampling.drop_last else N, size)
            counts += [differs[:, start : start + size].sum(axis=1) for start in starts]
        return np.stack(counts[:steps], axis=1)
    for _ in range(steps):
        if isinstance(sampling, FixedSize):
            counts.append((shuffled_orders(rng)[:, : sampling.batch_size] < D).sum(axis=1))
        elif isinstance(sampling, WithReplacement):
            counts.append((rng.integers(N, size=(DRAWS, sampling.batch_size)) < D).sum(axis=1))
        else:
            assert isinstance(sampling, Poisson)
            counts.append((rng.random((DRAWS, N)) < sampling.rate)[:, :D].sum(axis=1))
    return np.stack(counts, axis=1)


@pytest.mark.parametrize(
    ("sampling", "steps"),
    [
        (FixedSize(12), 2),
        (Poisson(0.2), 2),
        (WithReplacement(12), 2),
        (EpochShuffle(12), 5),
        (EpochShuffle(12), 7),
        (EpochShuffle(12, drop_last=True), 4),
        (EpochShuffle(12, drop_last=True), 6),
        (EpochShuffle(5), 3),
    ],
)
def test_expectation_and_cap_against_simulation(sampling: Sampling, steps: int) -> None:
    squares = (simulate(sampling, steps, np.random.default_rng(0)).astype(float) ** 2).sum(axis=1)
    expected = sampling.expected_square_sum(D, N, steps)
    assert abs(squares.mean() - expected) < 5 * squares.std() / np.sqrt(
        DRAWS
    )  # false alarm 6e-7, and the seed is fixed
    assert squares.max() <= sampling.worst_case_square_sum(D, N, steps)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("records", "batch", "differing"), [(6, 2, 3), (7, 3, 4), (7, 3, 7), (5, 4, 3), (6, 4, 5)])
def test_pass_cap_is_the_largest_over_all_orders(records: int, batch: int, differing: int, drop_last: bool) -> None:
    sampling = EpochShuffle(batch, drop_last)
    for steps in range(1, sampling.steps_per_epoch(records) + 1):
        largest = 0
        for places in itertools.combinations(range(records), differing):
            counts = np.bincount(np.array(places) // batch, minlength=steps)[:steps]
            largest = max(largest, int((counts**2).sum()))
        assert sampling.worst_case_square_sum(differing, records, steps) == largest
        assert Sequential(batch, drop_last).worst_case_square_sum(differing, records, steps) == largest


@pytest.mark.parametrize(("size", "differing"), [(2, 1), (2, 3), (3, 2)])
def test_caps_of_fresh_batches_are_attained(size: int, differing: int) -> None:
    records = 4
    subsets = itertools.combinations(range(records), size)
    largest = max(sum(index < differing for index in subset) ** 2 for subset in subsets)
    assert FixedSize(size).worst_case_square_sum(differing, records, 1) == largest
    draws = itertools.product(range(records), repeat=size)
    largest = max(sum(index < differing for index in draw) ** 2 for draw in draws)
    assert WithReplacement(size).worst_case_square_sum(differing, records, 1) == largest
    assert Poisson(0.5).worst_case_square_sum(differing, records, 1) == differing**2


def test_restarts_open_new_passes() -> None:
    sampling = EpochShuffle(512)
    assert sampling.worst_case_square_sum(10, 50_000, 98) == 100
    assert sampling.worst_case_square_sum(10, 50_000, [97]) == 100
    assert sampling.worst_case_square_sum(10, 50_000, [97, 1]) == 200
    assert sampling.worst_case_square_sum(10, 50_000, [98 * 3 + 1, 1, 1]) == 600
    assert sampling.worst_case_square_sum(10, 50_000, []) == 0
    # Other samplers draw every batch afresh, so only the number of steps counts.
    assert FixedSize(512).worst_case_square_sum(10, 50_000, [97, 1]) == 9800


def test_restarts_cost_what_the_records_can_do_and_a_count_of_steps_does_not() -> None:
    """Crashed runs on a stock loader: whatever an attempt serves of an epoch comes from a permutation of its own."""
    rng = np.random.default_rng(1)
    records, batch, differing = 12, 3, 2
    sampling = EpochShuffle(batch)
    per_epoch = sampling.steps_per_epoch(records)
    too_low_by_steps = too_low_by_attempts = False
    for _ in range(300):
        first, attempts, stretches, happened = 0, [], [], 0
        for _ in range(rng.integers(1, 5)):
            last = first + int(rng.integers(1, 10))
            attempts.append(last - first)
            for epoch in range(first // per_epoch, (last - 1) // per_epoch + 1):
                stretches.append(min(last, (epoch + 1) * per_epoch) - max(first, epoch * per_epoch))
                happened += differing**2  # the worst permutation puts all that differ into the first batch served
            first = int(rng.integers(first, last + 1))
        assert sampling.worst_case_square_sum(differing, records, stretches) == happened
        too_low_by_steps |= sampling.worst_case_square_sum(differing, records, sum(attempts)) < happened
        too_low_by_attempts |= sampling.worst_case_square_sum(differing, records, attempts) < happened
    assert too_low_by_steps
    assert too_low_by_attempts


def test_short_passes_are_counted_as_passes() -> None:
    assert EpochShuffle(512, steps_per_pass=10).worst_case_square_sum(10, 50_000, 98) == 1000


@pytest.mark.parametrize("sampling", [Sequential(8), Poisson(0.1, secret_draws=False)])
def test_public_draws_have_no_expectation(sampling: Sampling) -> None:
    with pytest.raises(ValueError, match="use "):
        sampling.expected_square_sum(3, 100, 10)


def test_public_sizes() -> None:
    assert Poisson(0.01).expected_batch_size(50_000) == 500
    assert Poisson(0.01, batch_size=512).expected_batch_size(50_000) == 512
    with pytest.raises(ValueError, match="so state the batch size"):
        Poisson(0.01).expected_batch_size(None)
    assert EpochShuffle(512).expected_batch_size() == 512
    assert EpochShuffle(512).steps_per_epoch(50_000) == 98
    assert EpochShuffle(512, drop_last=True).steps_per_epoch(50_000) == 97
    assert FixedSize(512).steps_per_epoch(50_000) == WithReplacement(512).steps_per_epoch(50_000) == 98
    assert Poisson(0.01).steps_per_epoch() == 100


@pytest.mark.parametrize(
    "sampling", [EpochShuffle(8, True, 3), FixedSize(8), Poisson(0.1, 12, False), WithReplacement(8), Sequential(8)]
)
def test_descriptors_survive_a_dictionary(sampling: Sampling) -> None:
    assert sampling_from_dict(sampling.to_dict()) == sampling
    with pytest.raises(ValueError, match="not a sampling descriptor"):
        sampling_from_dict({"name": "Weighted"})


def test_bad_input_is_one_clear_sentence() -> None:
    with pytest.raises(ValueError, match=r"rate is 0\.0, but a sampling rate lies in \(0, 1\]\.$"):
        Poisson(0.0)
    with pytest.raises(ValueError, match=r"batch_size is 0, but it must be at least 1\.$"):
        EpochShuffle(0)
    with pytest.raises(TypeError, match=r"batch_size is 2\.5, but must be an integer\.$"):
        FixedSize(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_differing is 11, but there are only 10 records"):
        EpochShuffle(2).worst_case_square_sum(11, 10, 1)
    with pytest.raises(ValueError, match="needs it: state num_records in the scenario"):
        EpochShuffle(2).worst_case_square_sum(1, TwoWorldScenario(1).num_records, 1)
    with pytest.raises(ValueError, match="drop_last drops the only batch"):
        EpochShuffle(20, drop_last=True).steps_per_epoch(10)
    with pytest.raises(ValueError, match="a pass has 5 batches"):
        EpochShuffle(2, steps_per_pass=6).steps_per_epoch(10)
    with pytest.raises(ValueError, match="only 10 records to draw from"):
        FixedSize(20).expected_square_sum(1, 10, 1)
    with pytest.raises(ValueError, match="num_steps is -1, but must not be negative"):
        FixedSize(2).worst_case_square_sum(1, 10, -1)


def test_one_order_that_is_kept_brings_the_same_counts_in_every_pass() -> None:
    counts = CyclicShuffle(3).draw_counts([2, 1], 10, (50, 9), np.random.default_rng(0))
    assert counts.shape == (50, 9, 2)
    assert (counts[:, :4] == counts[:, 4:8]).all()
    assert (counts[:, :1] == counts[:, 8:]).all()
    assert (counts[:, :4].sum(axis=1) == [2, 1]).all()
    assert len(np.unique(counts[:, :4, 0], axis=0)) > 5


def test_blocks_take_turns_and_their_records_are_drawn_at_the_stated_rate() -> None:
    sampling, records = BlockedPoisson(rate=0.1, blocks=3), 30
    generator = SecureGenerator.from_key(bytes(48))
    drawn = np.zeros((sampling.steps_per_epoch(records), records))
    for _ in range(2000):
        for step, batch in enumerate(sampling.draw_pass(records, generator)):
            assert (batch % 3 == step % 3).all()
            drawn[step, batch] += 1
    assert drawn.shape == (12, 30)
    turns = drawn[np.arange(12)[:, None] % 3 == np.arange(30) % 3] / 2000
    assert np.abs(turns - 0.3).max() < 5 * (0.3 * 0.7 / 2000) ** 0.5  # one false alarm in 10,000
    assert sampling.separation(records) == 3
    assert sampling.of_passes(6, records) is sampling
    assert sampling.of_passes(7, records) is None


@pytest.mark.parametrize("stretches", [[7], [1, 1, 1], [3, 5], [12]])
def test_no_path_of_blocked_batches_surpasses_the_cap(stretches: list[int]) -> None:
    blocks = 3
    for differing in itertools.chain.from_iterable(itertools.combinations(range(6), d) for d in (1, 2, 3)):
        # Every record is drawn whenever its block has its turn; a stretch begins with the first block.
        counts = [sum(record % blocks == step % blocks for record in differing) for m in stretches for step in range(m)]
        cap = BlockedPoisson(0.1, blocks).worst_case_square_sum(len(differing), 6, stretches)
        assert sum(count**2 for count in counts) <= cap


def test_too_many_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="take fewer blocks, or a lower rate"):
        BlockedPoisson(rate=0.3, blocks=4)
