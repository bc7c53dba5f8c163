"""The ensemble of a subset pool for learners that are not torch networks."""

import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.utilities import rank_zero_warn
from rich.progress import track
from torch import Tensor
from typing_extensions import Self, override

from lightning_pac._validation import Seed, validated
from lightning_pac.data.records import digest
from lightning_pac.data.with_index import batch_inputs
from lightning_pac.modules.ensembles.ensemble_record import (
    KEY,
    EnsembleRecord,
    check_complete,
    from_checkpoint,
    member_indices,
    show_members,
)
from lightning_pac.scenarios import SecretSpace

# Records for which members are asked whether they share what they learned.
_ROWS_SHOWN = 1000


class Learner(Protocol):
    """The interface of scikit-learn's classifiers, and of many others."""

    def fit(self, features: Any, labels: Any, /) -> Any:
        """Train on some records."""

    def predict(self, features: Any, /) -> Any:
        """One label per record."""


@validated
class LearnerEnsemble(pl.LightningModule):
    """Train one learner on each subset of a pool, one after another, behind the interface of `SubsetEnsemble`.

    For gradient boosting, forests and whatever else has `fit` and `predict`. Fix the learner's seeds: they are public,
    and with one seed for all members the subsets alone make them differ. A pipeline that chooses its hyperparameters is
    a learner too, as long as it chooses them on the records that `fit` is given.

    The labels must be the integers 0 to k - 1: a vote is one of them.

    Args:
        learner: Makes one untrained learner; a function without arguments.
        pool: The subsets, whose table is public.
        members: Which members this object holds; as for `SubsetEnsemble`.
        seed: Public number for the checkpoint's record; give the learner its own seed in `learner`.

    Example:
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> from lightning_pac.scenarios import BalancedSubsets
        >>> features, labels = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
        >>> pool = BalancedSubsets(num_records=20, num_subsets=4)
        >>> ensemble = LearnerEnsemble(lambda: DecisionTreeClassifier(random_state=0), pool)
        >>> ensemble.fit(features, labels, progress=False).votes(features[:3]).shape
        torch.Size([3, 4])

    References:
        PAC-private responses, section 4.2.2: any deterministic learning pipeline.
    """

    def __init__(
        self,
        learner: Callable[[], Learner],
        pool: SecretSpace,
        members: str | Sequence[int] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.members = member_indices(members, pool.num_secrets)
        self.seed = seed
        self._make_learner = learner
        self._learners: list[Learner] = []

    @property
    def record(self) -> EnsembleRecord:
        """The public facts that a checkpoint carries."""
        return EnsembleRecord(self.pool.table_hash, self.pool.num_secrets, self.members, self.seed)

    def fit(self, features: Any, labels: Any, progress: bool = True) -> Self:
        """Train every member on its subset of the records.

        Members also `predict` up to 1,000 records of the pool, which shows whether they share what they learned.

        Args:
            features: All records of the pool: an array, a sparse matrix, a pandas frame, or a list.
            labels: Their labels, integers from 0.
            progress: Whether to show a bar over the members.

        Raises:
            ValueError: If the number of records is not the pool's, the labels are not such integers, or training a
                member changes the one before, or what that predicts.
        """
        try:
            targets = np.asarray(labels)
        except ValueError as error:
            raise ValueError(f"labels must be a row of integers, one for each record: {error}.") from error
        if targets.ndim != 1:
            raise TypeError("labels must be a row of integers, one for each record.")
        if not hasattr(features, "shape") and not isinstance(features, Sequence):
            raise TypeError(f"features are of type {type(features).__name__}, but must be an array, a frame or a list.")
        features = features.tocsr() if hasattr(features, "tocsr") else features  # not all sparse formats have rows
        num_records = features.shape[0] if hasattr(features, "shape") else len(features)
        if len(targets) != self.pool.num_records or num_records != self.pool.num_records:
            raise ValueError(
                f"features are {num_records} records with {len(targets)} labels, but the pool was made for "
                f"{self.pool.num_records}: make the pool with num_records=len(features)."
            )
        _check_labels(targets, "labels")
        learners: list[Learner] = []
        shown = _rows(features, np.arange(min(_ROWS_SHOWN, num_records)))
        for index in track(self.members, description="Members", disable=not progress):
            own = self.pool.subset(index)
            learner = self._make_learner()
            before = learners[-1] if learners else None
            said = None if before is None else _steady_predictions(before, shown)
            held = None if before is None else _contents(before)
            learner.fit(_rows(features, own), targets[own])
            learners.append(learner)
            if before is not None and (
                learner is before
                or _contents(before) != held
                or (said is not None and not np.array_equal(before.predict(shown), said))
            ):
                raise ValueError(
                    "learner gives one object twice, or two that share a part (a generator too), a file or an "
                    "attribute of their class, so that training one member changes another: make a new one in each "
                    "call, as lambda: clone(estimator) does."
                )
        self._learners = learners
        _warn_if_alike(learners, shown)
        return self

    @override
    def forward(self, features: Any) -> Tensor:
        """The votes of all members; integers of shape (batch, num_members)."""
        return self.votes(features)

    def votes(self, features: Any) -> Tensor:
        """The class that each member predicts; integers of shape (batch, num_members).

        Raises:
            RuntimeError: If the members are not trained.
            ValueError: If a member predicts something else than integers from 0.
        """
        if not self._learners:
            raise RuntimeError("The members are not trained: call fit(features, labels) or load a checkpoint first.")
        table = features.numpy(force=True) if isinstance(features, Tensor) else features
        columns = [np.asarray(learner.predict(table)).reshape(-1) for learner in self._learners]
        for column in columns:
            _check_labels(column, "a member's predictions")
        return torch.from_numpy(np.stack(columns, axis=1).astype(np.int64))

    def member(self, index: int) -> Learner:
        """The trained learner of member `index` (its number in the pool).

        Raises:
            ValueError: If this object does not hold that member, or it is not trained.
        """
        if index not in self.members or not self._learners:
            held = show_members(self.members) if self._learners else "no trained member"
            raise ValueError(f"index is {index}, and this ensemble holds {held}.")
        return self._learners[self.members.index(index)]

    def save(self, path: str | Path) -> None:
        """Write the members and their record to a file, by pickle: load it only where you trust its writer."""
        with open(path, "wb") as file:
            pickle.dump({KEY: self.record.to_dict(), "learners": self._learners}, file)

    @classmethod
    def gather(
        cls, checkpoints: Iterable[str | Path], learner: Callable[[], Learner], pool: SecretSpace, seed: Seed = 0
    ) -> "LearnerEnsemble":
        """Join saved shards, or load the one file of a whole ensemble.

        Args:
            checkpoints: Files written by `save`; together they hold each member once.
            learner: As in training.
            pool: The pool of training.
            seed: As in training.

        Raises:
            ValueError: If a member is missing or comes twice, or a file is of another table or seed.
        """
        ensemble = cls(learner, pool, seed=seed)
        found: dict[int, Learner] = {}
        held: list[int] = []
        for path in checkpoints:
            with open(path, "rb") as file:
                saved = pickle.load(file)
            ensemble.record.check_same_pool(saved, str(path))
            members = from_checkpoint(saved).members
            held += members
            found.update(zip(members, saved["learners"], strict=True))
        check_complete(held, pool.num_secrets)
        ensemble._learners = [found[index] for index in range(pool.num_secrets)]
        return ensemble

    @override
    def predict_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Tensor:
        """The votes of all members, which are not private: `PACResponses` replaces them by one private label each."""
        return self.votes(batch_inputs(batch))


def _contents(learner: Learner) -> bytes | None:
    """A hash of what a learner holds, None where that cannot be looked into."""
    try:
        return digest(learner)
    except TypeError:
        return None


def _steady_predictions(learner: Learner, shown: Any) -> npt.NDArray[Any] | None:
    """What a learner predicts, None where it draws that at random."""
    first, second = (np.asarray(learner.predict(shown)) for _ in range(2))
    return first if np.array_equal(first, second) else None


def _warn_if_alike(learners: Sequence[Learner], shown: Any) -> None:
    """Warn where all members answer as the first: answers are free then, and those of a subset that is public."""
    first = np.asarray(learners[0].predict(shown))
    if len(learners) > 1 and all(np.array_equal(learner.predict(shown), first) for learner in learners[1:]):
        rank_zero_warn(
            f"LearnerEnsemble: all {len(learners)} members predict the same for the first {len(first)} records. Unless "
            "these are easy, the members may all load one file: answers would then cost nothing, and be those of one "
            "public subset. Keep what a member learns in the object, or under a path of its own."
        )


def _rows(features: Any, index: npt.NDArray[np.int64]) -> Any:
    if not hasattr(features, "shape"):
        return [features[row] for row in index]
    return features.iloc[index] if hasattr(features, "iloc") else features[index]


def _check_labels(labels: npt.NDArray[Any], what: str) -> None:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.number):
        raise ValueError(
            f"{what} have type {labels.dtype} and shape {labels.shape}: use integers from 0, one per record."
        )
    if labels.size and not (np.isfinite(labels).all() and (labels == np.floor(labels)).all() and labels.min() >= 0):
        raise ValueError(f"{what} are not integers from 0: encode the classes as 0 to k - 1.")
