"""Registering a sampling scheme: what its draws do is held against what it declares."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from lightning_pac import SRPPSGD
from lightning_pac.accountants import SRPPAccountant
from lightning_pac.audits import likelihood_ratio_attack
from lightning_pac.data import private_loader
from lightning_pac.randomness import SecureGenerator
from lightning_pac.scenarios import (
    EpochShuffle,
    FixedSize,
    Poisson,
    Sampling,
    Sequential,
    TwoWorldScenario,
    WithReplacement,
    register_sampling,
    sampling_from_dict,
)
from lightning_pac.scenarios.sampling import declaration, scheme


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[Sampling]]:
    """What a test registers is forgotten after it."""
    copy = dict(scheme.REGISTERED)
    monkeypatch.setattr(scheme, "REGISTERED", copy)
    monkeypatch.setattr("lightning_pac.scenarios.sampling.registry.REGISTERED", copy)
    return copy


@dataclass(frozen=True)
class Pairs(Sampling):
    """Each record twice in a row, so that a batch of B rows holds B / 2 records; each test breaks one thing of it."""

    batch_size: int = 4

    condition: ClassVar[str] = "Every record comes twice in one batch of a pass."
    factor: ClassVar[int] = 4

    @property
    def once(self) -> EpochShuffle:
        return EpochShuffle(self.batch_size // 2)

    def worst_case_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> int:
        return self.factor * self.once.worst_case_square_sum(num_differing, num_records, num_steps)

    def expected_square_sum(self, num_differing: int, num_records: int | None, num_steps: int | Sequence[int]) -> float:
        return 4 * self.once.expected_square_sum(num_differing, num_records, num_steps)

    def expected_batch_size(self, num_records: int | None = None) -> float:
        return float(self.batch_size)

    def steps_per_epoch(self, num_records: int | None = None) -> int:
        return self.once.steps_per_epoch(num_records)

    def draw_pass(self, num_records: int, generator: SecureGenerator) -> Iterator[np.ndarray]:
        for batch in self.once.draw_pass(num_records, generator):
            yield np.repeat(batch, 2)

    @classmethod
    def small_cases(cls) -> Sequence[Any]:
        return [cls(4)]


def test_a_scheme_that_holds_what_it_declares_can_be_trained_with_and_saved() -> None:
    assert register_sampling(Pairs) is Pairs
    assert sampling_from_dict(Pairs(10).to_dict()) == Pairs(10)
    SRPPSGD(TwoWorldScenario(2), noise_multiplier=1.0, sampling=Pairs(10))
    batches = [batch.tolist() for batch in private_loader(range(20), Pairs(10))]  # type: ignore[arg-type]
    assert sorted(record for batch in batches for record in batch) == sorted([*range(20), *range(20)])
    assert all(batch[::2] == batch[1::2] for batch in batches)


def test_what_is_not_registered_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="Pairs is not registered, so nothing has held its draws against its price"):
        SRPPSGD(TwoWorldScenario(2), noise_multiplier=1.0, sampling=Pairs(10))
    with pytest.raises(TypeError, match="Pairs is not registered"):
        private_loader(range(20), Pairs(10))  # type: ignore[arg-type]


def test_a_price_below_what_the_draws_reach_is_refused() -> None:
    @dataclass(frozen=True)
    class Cheap(Pairs):
        factor: ClassVar[int] = 3

    with pytest.raises(ValueError, match=r"declares that 1 of .* but its own draws bring it to 4"):
        register_sampling(Cheap)


def test_a_price_that_forgets_the_second_pass_is_refused() -> None:
    @dataclass(frozen=True)
    class OnePass(Pairs):
        def worst_case_square_sum(self, num_differing: int, num_records: Any, num_steps: Any) -> int:
            steps = min(np.sum(num_steps), self.steps_per_epoch(num_records))
            return super().worst_case_square_sum(num_differing, num_records, int(steps))

    with pytest.raises(ValueError, match=r"over \[1, 1\] steps, but its own draws"):
        register_sampling(OnePass)


@pytest.mark.parametrize("share", [2, 1.0])
def test_an_expectation_below_that_of_the_draws_is_refused(share: float) -> None:
    @dataclass(frozen=True)
    class Mean(Pairs):
        def expected_square_sum(self, num_differing: int, num_records: Any, num_steps: Any) -> float:
            return super().expected_square_sum(num_differing, num_records, num_steps) / share

    if share == 1:
        register_sampling(Mean)
    else:
        with pytest.raises(ValueError, match="on average, but its own draws bring it to"):
            register_sampling(Mean)


def drawing(draw: Any, **fields: Any) -> type[Pairs]:
    return dataclass(frozen=True)(type("Odd", (Pairs,), {"draw_pass": draw, "__module__": __name__, **fields}))


REFUSED = {
    "drew a record twice in a pass": drawing(Pairs.draw_pass, each_record_once=True),
    "take all randomness from the generator": drawing(
        lambda self, n, generator: iter(np.array_split(np.random.default_rng().permutation(n), -(-n // 2)))
    ),
    "drew 1 batches in a pass over 3 records, but its steps_per_epoch says 2": drawing(
        lambda self, n, generator: iter([np.arange(1)])
    ),
    "count them from 0": drawing(lambda self, n, generator: (batch + 1 for batch in self.once.draw_pass(n, generator))),
    "small_cases": drawing(Pairs.draw_pass, small_cases=classmethod(lambda cls: [])),
    "draws from none of 2 to 6 records": drawing(
        lambda self, n, generator: (_ for _ in ()).throw(ValueError("too few"))  # type: ignore[misc]
    ),
    "does not survive to_dict and from_dict": drawing(
        Pairs.draw_pass, to_dict=lambda self: {"name": "Odd", "batch_size": 2}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_draws_that_are_not_what_is_said_of_them_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        register_sampling(REFUSED[message])


@dataclass(frozen=True)
class Lean(Poisson):
    """Our Poisson sampling in name only."""

    def draw_batch(self, num_records: int, generator: SecureGenerator) -> np.ndarray:
        return np.arange(num_records)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (int, "is not a sampling scheme"),
        (Lean, "Lean derives from Poisson, whose proof does not cover it"),
        (type("Bare", (Pairs,), {}), "decorate it with @dataclass"),
        (drawing(Sampling.draw_pass), "does not say how it draws"),
        (drawing(Pairs.draw_pass, condition=""), "has no condition"),
        (drawing(Pairs.draw_pass, independent_draws=True), "amplification or independence"),
        (drawing(Pairs.draw_pass, amplified_rate=0.1), "amplification or independence"),
        (dataclass(frozen=True)(type("Open", (Sampling,), {})), "leaves draw|leaves expected_batch_size"),
    ],
)
def test_a_class_that_is_no_scheme_of_its_own_is_refused(kind: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        register_sampling(kind)


def test_two_schemes_of_one_name_are_refused_and_a_class_that_is_defined_anew_is_not() -> None:
    register_sampling(Pairs)
    register_sampling(dataclass(frozen=True)(type("Pairs", (Pairs,), {"__module__": __name__})))
    other = dataclass(frozen=True)(type("Pairs", (Pairs,), {"__module__": "elsewhere"}))
    with pytest.raises(ValueError, match="Pairs is the name of another registered sampling"):
        register_sampling(other)


def test_draws_of_a_users_own_are_neither_amplified_nor_trusted_with_the_number_of_records() -> None:
    accountant = SRPPAccountant(TwoWorldScenario(2, adjacency="zero_out"), Lean(0.01))
    assert not accountant.is_amplified
    assert accountant.epsilon(1.0, 10) == pytest.approx(16.0 * 2**2 / 2 * 10)
    assert SRPPAccountant(accountant.scenario, Poisson(0.01)).is_amplified
    assert any("declared by the user, in Lean" in text for text in accountant.conditions())
    ours = SRPPAccountant(accountant.scenario, Poisson(1))
    assert not any("declared by the user" in text for text in ours.conditions())
    for make in (
        lambda: SRPPAccountant(TwoWorldScenario(2, adjacency="add_remove"), Lean(0.01, 10)),
        lambda: SRPPSGD(TwoWorldScenario(2, adjacency="add_remove"), None, 1.0, sampling=Lean(0.01, 10)),
    ):
        with pytest.raises((ValueError, TypeError), match=r"use Poisson sampling|is not registered"):
            make()


def test_an_attack_counts_the_draws_of_any_scheme() -> None:
    rng = np.random.default_rng(0)
    counts = Pairs(4).draw_counts([1, 2], 6, (300, 7), rng)
    assert counts.shape == (300, 7, 2)
    assert set(np.unique(counts)) <= {0, 2, 4}
    passes = counts[:, :6].reshape(300, 2, 3, 2).sum(axis=2)
    assert (passes == [2, 4]).all()  # each record twice a pass
    # By exchangeability 4 * 1/3 a step. Six deviations of 300 independent runs: a false alarm below 1e-7.
    assert abs(counts[:, 6, 1].mean() - 4 / 3) < 6 * counts[:, 6, 1].std() / np.sqrt(300)
    result = likelihood_ratio_attack(TwoWorldScenario(2, num_records=6), Pairs(4), 0.5, 3, num_runs=200, rng=0)
    assert result.success > 0.9


@pytest.mark.parametrize(
    "sampling",
    [
        EpochShuffle(2),
        EpochShuffle(4, drop_last=True),
        EpochShuffle(2, steps_per_pass=1),
        Sequential(2),
        FixedSize(2),
        WithReplacement(2),
        Poisson(0.5),
    ],
    ids=str,
)
def test_our_own_schemes_pass_the_check_that_others_must(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(sampling), "small_cases", lambda: [sampling])
    declaration.check_price(type(sampling))
    monkeypatch.setattr(
        type(sampling), "worst_case_square_sum", lambda self, d, n, steps: int(np.sum(steps)) * d**2 // 2
    )
    with pytest.raises(ValueError, match="but its own draws bring it to"):
        declaration.check_price(type(sampling))


def test_the_check_counts_every_set_of_records() -> None:
    """A scheme whose first record comes far more often than the others: some set is dear though most are cheap."""

    @dataclass(frozen=True)
    class Favourite(Pairs):
        def draw_pass(self, num_records: int, generator: SecureGenerator) -> Iterator[np.ndarray]:
            for batch in self.once.draw_pass(num_records, generator):
                yield np.zeros(3, dtype=np.int64) if 0 in batch else np.repeat(batch, 2)

    assert Pairs(4).worst_case_square_sum(1, 6, 3) == 4
    with pytest.raises(ValueError, match=r"declares that 1 of . records bring sum K\^2 to 4 .* bring it to 9"):
        register_sampling(Favourite)
