"""Learners that are not torch, one after another."""

import pickle
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from scipy.sparse import coo_matrix, csc_matrix, dok_matrix
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch.utils.data import DataLoader

from lightning_pac.modules.ensembles import LearnerEnsemble
from lightning_pac.scenarios import BalancedSubsets

FEATURES, LABELS = load_iris(return_X_y=True)
POOL = BalancedSubsets(len(FEATURES), 6, seed=2)


def tree() -> DecisionTreeClassifier:
    return DecisionTreeClassifier(random_state=0)


def test_each_member_is_the_learner_of_its_subset() -> None:
    ensemble = LearnerEnsemble(tree, POOL).fit(FEATURES, LABELS, progress=False)
    for index in range(6):
        own = POOL.membership(index)
        alone = tree().fit(FEATURES[own], LABELS[own])
        assert np.array_equal(ensemble.member(index).predict(FEATURES), alone.predict(FEATURES))
        assert np.array_equal(ensemble.votes(FEATURES)[:, index].numpy(), alone.predict(FEATURES))
    # A tree memorizes its records, so that the votes tell members from the others (and the wrong subset would show).
    right = ensemble.votes(FEATURES).numpy() == LABELS[:, None]
    inside = POOL.membership_table()
    assert right[inside].all()
    assert not right[~inside].all()


def test_predictions_run_through_a_trainer(tmp_path: Path) -> None:
    ensemble = LearnerEnsemble(tree, POOL).fit(FEATURES, LABELS, progress=False)
    run = pl.Trainer(logger=False, enable_progress_bar=False, accelerator="cpu", default_root_dir=tmp_path)
    loader = DataLoader(torch.from_numpy(FEATURES), batch_size=50)
    assert torch.equal(torch.cat(run.predict(ensemble, loader)), ensemble(torch.from_numpy(FEATURES)))


def test_shards_are_gathered_and_others_refused(tmp_path: Path) -> None:
    whole = LearnerEnsemble(tree, POOL).fit(FEATURES, LABELS, progress=False)
    for number, members in enumerate(("0-3", "4,5")):
        LearnerEnsemble(tree, POOL, members).fit(FEATURES, LABELS, progress=False).save(tmp_path / f"{number}.pkl")
    paths = [tmp_path / "1.pkl", tmp_path / "0.pkl"]
    assert torch.equal(LearnerEnsemble.gather(paths, tree, POOL).votes(FEATURES), whole.votes(FEATURES))
    with pytest.raises(ValueError, match="checkpoints lack members 0, 1, 2, 3 of 6"):
        LearnerEnsemble.gather(paths[:1], tree, POOL)
    with pytest.raises(ValueError, match="not of this pool's table"):
        LearnerEnsemble.gather(paths, tree, BalancedSubsets(len(FEATURES), 6, seed=3))


def test_members_that_share_what_they_learned_are_refused() -> None:
    one, scaler, first_two = tree(), StandardScaler(), iter([tree(), tree()])
    for shared in (
        lambda: one,
        lambda: make_pipeline(StandardScaler(), one),
        lambda: make_pipeline(scaler, tree()),
        lambda: next(first_two, one),
    ):
        # Of what all of them say, the last subset's learner says everything, and answers would be free.
        with pytest.raises(ValueError, match="learner gives one object twice, or two that share a part"):
            LearnerEnsemble(shared, POOL).fit(FEATURES, LABELS, progress=False)
    for apart in (lambda: clone(one), lambda: make_pipeline(StandardScaler(), tree())):
        votes = LearnerEnsemble(apart, POOL).fit(FEATURES, LABELS, progress=False).votes(FEATURES)
        assert (votes != votes[:, :1]).any()


class FromFile:
    """Keeps what it learned in a file, as the tools do that others wrap."""

    def __init__(self, folder: Path, new_names: bool = False) -> None:
        self.folder, self.new_names = folder, new_names

    def fit(self, features: Any, labels: Any) -> None:
        old = len(list(self.folder.iterdir())) if self.new_names else 0
        (self.folder / f"best-{old}").write_bytes(pickle.dumps(tree().fit(features, labels)))

    def predict(self, features: Any) -> Any:
        return pickle.loads((self.folder / "best-0").read_bytes()).predict(features)


def test_members_that_share_a_file_are_refused_or_named(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(ValueError, match="a file or an attribute of their class"):
        LearnerEnsemble(lambda: FromFile(tmp_path), POOL).fit(FEATURES, LABELS, progress=False)
    folders = (tmp_path / str(number) for number in range(6))

    def apart() -> FromFile:
        (folder := next(folders)).mkdir()
        return FromFile(folder)

    LearnerEnsemble(apart, POOL).fit(FEATURES, LABELS, progress=False)
    assert not recwarn
    (tmp_path / "all").mkdir()
    with pytest.warns(UserWarning, match="all 6 members predict the same for the first 150 records"):
        LearnerEnsemble(lambda: FromFile(tmp_path / "all", True), POOL).fit(FEATURES, LABELS, progress=False)


def test_all_sparse_formats_are_taken() -> None:
    dense = LearnerEnsemble(tree, POOL).fit(FEATURES, LABELS, progress=False).votes(FEATURES)
    for sparse in (coo_matrix, csc_matrix, dok_matrix):
        votes = LearnerEnsemble(tree, POOL).fit(sparse(FEATURES), LABELS, progress=False).votes(FEATURES)
        assert torch.equal(votes, dense)


def test_a_list_of_texts_is_taken() -> None:
    texts = [f"length{row[0]:.0f} width{row[2]:.0f}" for row in FEATURES]
    votes = [
        LearnerEnsemble(lambda: make_pipeline(CountVectorizer(), tree()), POOL)
        .fit(features, LABELS, progress=False)
        .votes(texts)
        for features in (texts, np.array(texts))
    ]
    assert torch.equal(*votes)


class Shouting:
    def fit(self, features: Any, labels: Any) -> None:
        pass

    def predict(self, features: Any) -> Any:
        return np.full(len(features), np.nan)


def test_bad_records_labels_and_predictions_are_refused() -> None:
    ensemble = LearnerEnsemble(tree, POOL)
    with pytest.raises(RuntimeError, match="not trained: call fit"):
        ensemble.votes(FEATURES)
    with pytest.raises(ValueError, match="no trained member"):
        ensemble.member(0)
    with pytest.raises(ValueError, match="149 records with 149 labels, but the pool was made for 150"):
        ensemble.fit(FEATURES[1:], LABELS[1:])
    with pytest.raises(ValueError, match="use integers from 0"):
        ensemble.fit(FEATURES, np.array(["a"] * 150))
    with pytest.raises(ValueError, match="encode the classes as 0 to k - 1"):
        ensemble.fit(FEATURES, LABELS - 1)
    with pytest.raises(ValueError, match="a member's predictions are not integers"):
        LearnerEnsemble(Shouting, POOL).fit(FEATURES, LABELS, progress=False).votes(FEATURES)
