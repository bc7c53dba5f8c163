"""Replayed releases against the releases themselves."""

from pathlib import Path

import numpy as np
import pytest

from lightning_pac.mechanisms import AdaptiveComposition, PACResponder
from lightning_pac.mechanisms.responses import RecordedAnswers
from lightning_pac.mechanisms.responses.replay import replay_releases
from lightning_pac.scenarios import BalancedSubsets


def test_replay_gives_back_every_release(tmp_path: Path) -> None:
    pool = BalancedSubsets(50, 8, seed=0)
    votes = np.random.default_rng(0).integers(0, 3, size=(40, 8))
    votes[::4] = votes[::4, :1]
    with PACResponder(
        lambda rows: votes[rows], pool.draw_secret(tmp_path / "s.key"), 2**-6, tmp_path / "r.db"
    ) as asked:
        released = [
            asked.release(np.arange(start, start + 10), requests=[f"q{i}" for i in range(start, start + 10)])
            for start in range(0, 40, 10)
        ]
        replayed = list(asked.recorded_releases())
        assert asked.place_of("q13") == (1, 3)
        assert asked.place_of("q40") is None
        assert asked.space is pool
        labels = [replayed[entry].labels[at] for entry, at in map(asked.place_of, (f"q{i}" for i in range(40)))]
        assert labels == np.concatenate([batch.labels for batch in released]).tolist()
    for again, batch in zip(replayed, released, strict=True):
        assert np.array_equal(again.classes, batch.classes)
        assert np.array_equal(again.costs, batch.costs)
        assert np.allclose(again.masses, batch.masses, rtol=1e-9)
        assert np.array_equal(again.values, batch.values, equal_nan=True)
    # The masses move with the belief, so that a replay without updates would be noticed.
    assert not np.allclose(replayed[-1].masses[:, 0] * 8 % 1, 0)


def test_secrets_that_are_impossible_have_no_class() -> None:
    prior, votes = [0.5, 0.0, 0.5], np.array([[1, 7, 2], [1, 7, 1]])
    batch = AdaptiveComposition(prior, secret=0).release_batch(votes, 0.5)
    again = next(replay_releases([RecordedAnswers.of(votes, batch, 0.5)], prior))
    assert np.array_equal(again.classes, batch.classes)
    assert np.allclose(again.masses, batch.masses)


def test_scores_have_no_masses() -> None:
    scores = np.random.default_rng(0).normal(size=(2, 3, 2))
    batch = AdaptiveComposition(np.full(3, 1 / 3), secret=0).release_batch(scores, 0.5)
    with pytest.raises(ValueError, match="The recorded answers are scores"):
        next(replay_releases([RecordedAnswers.of(scores, batch, 0.5)], np.full(3, 1 / 3)))
