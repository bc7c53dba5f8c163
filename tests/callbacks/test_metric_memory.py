"""Metrics that are handed more than rows, or that keep more than their states: both are refused."""

import functools
import itertools
import math
import warnings
from collections import deque
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torchmetrics
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger
from slow_cases import mostly_slow, slow
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset, TensorDataset
from torchmetrics import Metric
from torchmetrics.functional.classification import binary_f1_score

from lightning_pac import PrivateMetrics, TwoWorldScenario
from lightning_pac.callbacks.metrics.noised_metric import PrivateMetric
from lightning_pac.callbacks.srpp_sgd import rows_of_metrics
from lightning_pac.data import RankShare, rebuild_loader
from lightning_pac.data.records import digest
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.scenarios import Sequential

LOSSES = torch.linspace(0.01, 2.0, 127)


def private(metric: Metric, max_contribution: float = 1.0) -> PrivateMetric:
    made = PrivateMetric(metric, max_contribution, noise_multiplier=1.0, charge=lambda: True)
    made.is_private = True
    return made


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"weight": 1 / LOSSES.max()}, "a tensor without rows"),
        ({"weight": float(1 / LOSSES.max())}, "a float"),
        ({"weight": 1}, "a int"),
        ({"weight": True}, "a bool"),
        ({"weight": np.ones(127)}, "a ndarray"),
        ({"weight": np.float64(0.5)}, "a float64"),
        ({"weight": [0.5] * 127}, "a float"),
    ],
)
def test_numbers_beside_rows_are_refused(arguments: dict[str, Any], named: str) -> None:
    metric = torchmetrics.MeanMetric()
    private(metric, max_contribution=2.0)
    with pytest.raises(MisconfigurationException, match=f"updated with {named}, which may be made of other records"):
        metric.update(LOSSES, **arguments)


SEEN: list[Tensor] = []


def keep(values: Tensor, kept: list[Tensor] = []) -> None:  # noqa: B006
    kept.append(values)


@functools.cache
def seen_first(value: float) -> float:
    return value


class Kept(Metric):
    """A mean that also keeps what it saw, in a place that is named."""

    shared: ClassVar[list[Tensor]] = []

    def __init__(self, place: str) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")
        self.place = place
        self.last: Any = None
        self.values: list[Tensor] = []
        self.cache: dict[str, Any] = {"inner": {"deep": deque([0.0])}}
        self.inner = torchmetrics.SumMetric()
        self.register_buffer("running", torch.zeros(1))
        self.random = np.random.default_rng(0)
        kept: list[Tensor] = []
        self.closure = lambda: kept

    def update(self, values: Tensor) -> None:
        self.total += values.sum()
        self.count += len(values)
        if self.place == "attribute":
            self.last = values.mean()
        elif self.place == "number":
            self.last = float(values.mean())
        elif self.place == "list":
            self.values.append(values)
        elif self.place == "nested cache":
            self.cache["inner"]["deep"].append(float(values.mean()))
        elif self.place == "inner metric":
            self.inner.update(values)
        elif self.place == "buffer":
            self.running += values.mean()
        elif self.place == "class":
            type(self).shared.append(values)
        elif self.place == "new state":
            self.add_state(f"state_{len(self._defaults)}", values.mean(), dist_reduce_fx="sum")
        elif self.place == "default":
            self._defaults["total"] = values.mean()
        elif self.place == "generator":
            self.random.random()
        elif self.place == "closure":
            self.closure().append(values)
        elif self.place == "global":
            SEEN.append(values.mean())
        elif self.place == "default argument":
            keep(values)
        elif self.place == "function":
            keep.__dict__["last"] = values
        elif self.place == "cache of a function":
            seen_first(float(values.mean()))

    def compute(self) -> Tensor:
        return self.total / self.count if self.last is None else torch.as_tensor(self.last)


PLACES = (
    "attribute",
    "number",
    "list",
    "nested cache",
    "inner metric",
    "buffer",
    "class",
    "new state",
    "default",
    "generator",
    "closure",
    "global",
    "default argument",
    "function",
    "cache of a function",
)


class Logging(pl.LightningModule):
    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self.metric = metric
        self.seen: list[float] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.metric.update(batch[0])
        self.log("mean", self.metric)


def validate(
    folder: Path,
    model: Logging,
    times: int = 1,
    loaders: Any = None,
    callbacks: tuple[pl.Callback, ...] = (),
    scenario: TwoWorldScenario | None = None,
    **options: Any,
) -> list[float]:
    scenario = scenario or TwoWorldScenario(1)
    ledger = folder / f"{scenario.adjacency}.db"
    callback = PrivateMetrics(["mean"], scenario, epsilon=1.4306e-6, renyi_order=16, ledger=ledger)
    trainer = pl.Trainer(
        **{"accelerator": "cpu", "logger": False, **options},
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback, *callbacks],
        default_root_dir=folder,
    )
    loaders = loaders or DataLoader(TensorDataset(LOSSES), 127)
    return [trainer.validate(model, loaders, verbose=False)[0]["mean"] for _ in range(times)]


@pytest.mark.parametrize("place", PLACES)
def test_a_metric_that_keeps_what_it_saw_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(MisconfigurationException, match="Kept keeps something of what it saw outside of its states"):
        validate(tmp_path, Logging(Kept(place)))
    Kept.shared.clear()
    seen_first.cache_clear()


def test_a_metric_that_keeps_its_states_only_is_noised_each_time(tmp_path: Path) -> None:
    # Noise of deviation 4e6 over a count that it hides as well: as near as 1e-3 with chance below 1e-3 each.
    for value in validate(tmp_path, Logging(Kept("")), times=2):
        assert value != pytest.approx(float(LOSSES.mean()), abs=1e-3)


class Best(Kept):
    """Remembers its best value whenever it is computed, as MinMaxMetric does."""

    def __init__(self) -> None:
        super().__init__("")
        self.best = -1.0

    def compute(self) -> Tensor:
        self.best = max(self.best, float(self.total / self.count))
        return torch.tensor(self.best)


def test_what_is_remembered_of_an_exact_value_is_refused(tmp_path: Path) -> None:
    class Computing(Logging):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            assert len(batch[0]) == 127  # which hides from synthetic records that the metric is private
            self.metric(batch[0])  # computes the value of the batch
            self.log("mean", self.metric)

    with pytest.raises(MisconfigurationException, match="keeps something of what it saw"):
        validate(tmp_path, Computing(Best()))


@pytest.mark.parametrize(
    "metric",
    [
        torchmetrics.MinMaxMetric(torchmetrics.MeanMetric()),
        torchmetrics.BootStrapper(torchmetrics.MeanMetric(), num_bootstraps=2),
        torchmetrics.MeanMetric() + torchmetrics.SumMetric(),
        torchmetrics.CatMetric(),
        torchmetrics.MaxMetric(),
        torchmetrics.RunningMean(window=2),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_wrappers_and_unbounded_states_are_refused(tmp_path: Path, metric: Metric) -> None:
    with pytest.raises(MisconfigurationException, match=r"has no bound|keeps something of what it saw"):
        validate(tmp_path, Logging(metric))


def test_a_reduction_that_is_only_called_a_sum_is_refused(tmp_path: Path) -> None:
    def dim_zero_sum(values: Tensor) -> Tensor:
        return values.max()

    metric = Kept("")
    metric._reductions["total"] = dim_zero_sum
    with pytest.raises(MisconfigurationException, match="has no bound"):
        validate(tmp_path, Logging(metric))


@pytest.mark.parametrize(
    "metric",
    [
        torchmetrics.MeanMetric(),
        torchmetrics.SumMetric(compute_on_cpu=True),
        torchmetrics.MeanSquaredError(),
        torchmetrics.R2Score(),
        torchmetrics.ExplainedVariance(),
        torchmetrics.Accuracy("multiclass", num_classes=3),
        torchmetrics.ConfusionMatrix("multiclass", num_classes=3),
        torchmetrics.F1Score("multiclass", num_classes=3, average="macro"),
        torchmetrics.ExactMatch("multiclass", num_classes=3),
        torchmetrics.PrecisionRecallCurve("multiclass", num_classes=3, thresholds=5),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_ordinary_metrics_are_accepted(metric: Metric) -> None:
    made = private(metric)
    kind = type(metric).__name__
    labels = torch.randint(3, (6,), generator=torch.Generator().manual_seed(0))
    if kind in ("MeanMetric", "SumMetric"):
        metric.update(torch.rand(6))
    elif kind in ("MeanSquaredError", "R2Score", "ExplainedVariance"):
        metric.update(torch.rand(6), torch.rand(6))
    elif kind == "MulticlassExactMatch":
        metric.update(labels[:, None], labels[:, None])
    else:
        metric.update(torch.rand(6, 3).softmax(1), labels)
    assert made._problem is None
    assert float(made._total.abs().sum()) > 0


def test_digests_are_equal_where_values_are() -> None:
    class Held:
        def __init__(self, value: Any) -> None:
            self.value = value

    first: list[Any] = [torch.ones(2), {"a": (1, None, {3, 4})}, np.arange(3), Held(2.0), Path("x"), deque([1])]
    same: list[Any] = [torch.ones(2), {"a": (1, None, {4, 3})}, np.arange(3), Held(2.0), Path("x"), deque([1])]
    assert digest(first) == digest(same)
    for place, other in enumerate([torch.ones(2).bfloat16(), {"a": (1, None, {3})}, np.arange(4), Held(2), Path("y")]):
        assert digest(first) != digest([*first[:place], other, *first[place + 1 :]])
    assert digest(1) != digest(True) != digest(1.0)
    assert digest("secret", b"key") != digest("secret")
    first.append(first)  # holds itself
    assert digest(first) != digest(same)
    with pytest.raises(TypeError, match="can be neither looked into nor pickled"):
        digest(x for x in first)


class Rows(Logging):
    """Updates its metric with what a function makes of the batch's numbers."""

    def __init__(self, rows: Any, at_end: bool = False) -> None:
        super().__init__(torchmetrics.SumMetric())
        self.rows, self.at_end = rows, at_end

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.kept = batch[0]
        if not self.at_end:
            self.add()

    def on_validation_epoch_end(self) -> None:
        if self.at_end:
            self.add()

    def add(self) -> None:
        for rows in self.rows(self.kept):
            self.metric.update(rows)
        self.log("mean", self.metric)


MIXED: dict[str, Any] = {
    "half of the rows twice": lambda values: [values[: len(values) // 2]] * 2,
    "one row for all": lambda values: [values[:1].expand(len(values))],
    "over the largest": lambda values: [values / values.max()],
    "less the mean": lambda values: [values - values.mean()],
    "each with the next": lambda values: [values + values.roll(1)],
    "running sums": lambda values: [values.cumsum(0)],
    "none where one is not finite": lambda values: [values] * bool(values.isfinite().all()),
    "below the largest, which may be no number": lambda values: [values[values < values.max()]],
    "less the mean of more than eight": lambda values: [values - values.mean() * (len(values) > 8)],
    "less the mean of more than sixty": lambda values: [values - values.mean() * (len(values) > 60)],
}


FAST = [
    ("half of the rows twice", True),
    ("one row for all", False),
    ("over the largest", True),
    ("each with the next", True),
    ("none where one is not finite", False),
    ("below the largest, which may be no number", True),
    ("less the mean of more than sixty", False),
]


@pytest.mark.parametrize(("what", "at_end"), mostly_slow(itertools.product(MIXED, [False, True]), *FAST))
def test_rows_of_which_one_record_decides_several_are_refused(tmp_path: Path, what: str, at_end: bool) -> None:
    with pytest.raises(MisconfigurationException, match="rows that one record decides beside its own"):
        validate(tmp_path, Rows(MIXED[what], at_end))


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("seed", [0, *slow(1)])
def test_hits_among_the_records_of_a_batch_are_refused(tmp_path: Path, seed: int, at_end: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries, keys = torch.randn(2, 8, 1, generator=generator)

    def hits(values: Tensor) -> list[Tensor]:
        likeness = (values[:, None] * queries.T).sin() @ (values[:, None] * keys.T).cos().T
        return [(likeness.argmax(1) == torch.arange(len(values))).float()]

    with pytest.raises(MisconfigurationException, match="rows that one record decides beside its own"):
        validate(tmp_path, Rows(hits, at_end))


class OfGroups(Logging):
    """Has a row for each user: the mean of its values, the first of these, or of each value, beside its user."""

    def __init__(self, what: str) -> None:
        super().__init__(torchmetrics.MeanMetric())
        self.what = what

    def on_validation_epoch_start(self) -> None:
        self.values: dict[Any, list[Tensor]] = {}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        users = batch["user"] if isinstance(batch["user"], list) else batch["user"].tolist()
        users = [user[0] if isinstance(user, list) else user for user in users]
        for place, (user, value) in enumerate(zip(users, batch["value"], strict=True)):
            self.values.setdefault((user, batch_idx, place) if self.what == "own" else user, []).append(value)

    def on_validation_epoch_end(self) -> None:
        found = [torch.stack(values) for values in self.values.values()]
        self.metric.update(torch.stack([values[0] if self.what == "first" else values.mean() for values in found]))
        self.log("mean", self.metric)


class Users(Dataset[Any]):
    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"value": torch.tensor(index / 40), "user": self.kind(1000 + index * 37 % 200), "label": index % 3}


def among_others(number: int) -> Tensor:
    """A row of a table."""
    return torch.tensor([number, *[1.0] * 39])


KINDS = [int, str, float, among_others]


@pytest.mark.parametrize(
    ("what", "kind"),
    mostly_slow(itertools.product(["mean", "first"], KINDS), ("mean", str), ("mean", float), ("first", among_others)),
)
def test_rows_of_groups_are_refused_since_a_record_may_go_from_one_to_another(
    tmp_path: Path, what: str, kind: Any
) -> None:
    with pytest.raises(MisconfigurationException, match="with rows that one record decides beside its own"):
        validate(tmp_path, OfGroups(what), loaders=DataLoader(Users(kind), 10))


@pytest.mark.parametrize("kind", mostly_slow(KINDS, str, among_others))
def test_rows_of_single_records_pass_beside_their_groups(tmp_path: Path, kind: Any) -> None:
    validate(tmp_path, OfGroups("own"), loaders=DataLoader(Users(kind), 10))


class Thresholded(Logging):
    """Shows the F1 score at a threshold, which may be the one that is best for the records."""

    def __init__(self, seed: int, tuned: bool, at_end: bool) -> None:
        super().__init__(torchmetrics.F1Score("binary"))
        torch.manual_seed(seed)
        self.network, self.tuned, self.at_end = torch.nn.Linear(4, 1), tuned, at_end

    def on_validation_epoch_start(self) -> None:
        self.kept: list[Any] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.kept.append((self.network(batch[0])[:, 0].sigmoid(), batch[1]))
        if not self.at_end:
            self.show()
            self.kept.clear()

    def on_validation_epoch_end(self) -> None:
        if self.at_end:
            self.show()

    def show(self) -> None:
        scores, labels = (torch.cat(part) for part in zip(*self.kept, strict=True))
        candidates = (0.3, 0.4, 0.5, 0.6, 0.7) if self.tuned else (0.5,)
        best = max(candidates, key=lambda threshold: float(binary_f1_score(scores, labels, threshold=threshold)))
        self.metric.update((scores > best).long(), labels)
        self.log("mean", self.metric)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("seed", [0, *slow(1)])
def test_a_threshold_that_the_records_choose_is_refused(tmp_path: Path, seed: int, at_end: bool) -> None:
    features = torch.randn(40, 4, generator=torch.Generator().manual_seed(seed))
    loader = DataLoader(TensorDataset(features, (features[:, 0] > 1).long()), 10)
    validate(tmp_path, Thresholded(seed, tuned=False, at_end=at_end), loaders=loader)
    with pytest.raises(MisconfigurationException, match="rows that one record decides beside its own"):
        validate(tmp_path, Thresholded(seed, tuned=True, at_end=at_end), loaders=loader)


def test_rows_with_draws_of_their_own_pass(tmp_path: Path) -> None:
    for scenario in (TwoWorldScenario(num_differing=1), TwoWorldScenario.differential_privacy()):
        validate(tmp_path, Rows(lambda values: [values + torch.randn_like(values)]), scenario=scenario)


def following(values: Tensor) -> list[Tensor]:
    drawn = values + torch.randn_like(values)
    return [drawn - drawn.roll(1)]


def foreseen(values: Tensor) -> list[Tensor]:
    return [values + torch.randn(len(values), generator=torch.Generator().manual_seed(0)) + torch.randn(len(values))]


@pytest.mark.parametrize("rows", [foreseen, *slow(following)])
def test_rows_with_draws_that_absence_changes_are_refused(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(MisconfigurationException, match="rows that one record decides beside its own"):
        validate(tmp_path, Rows(rows), scenario=TwoWorldScenario.differential_privacy())


ABSENT: dict[str, Any] = {
    "the mean as one row": lambda values: [values.mean().reshape(1)],
    "all in one row": lambda values: [values[None]],
    "full batches only": lambda values: [values] * (len(values) == 8),
    "full batches of the loader only": lambda values: [values] * (len(values) == 127),
    "no single record": lambda values: [values] * (len(values) > 1),
}


class SomeBatches(Logging):
    def __init__(self, chosen: Any) -> None:
        super().__init__(torchmetrics.SumMetric())
        self.chosen = chosen

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.chosen(batch_idx):
            self.metric.update(batch[0])
        self.log("mean", self.metric)


NUMBERED: dict[str, Any] = {
    "every other batch": lambda number: number % 2 == 0,
    "the first ten": lambda number: number < 10,
    "from the hundredth on": lambda number: number >= 100,
}


FAST_ABSENT = ["the mean as one row", "full batches only", "no single record", "every other batch"]


@pytest.mark.parametrize("what", mostly_slow([*ABSENT, *NUMBERED], *FAST_ABSENT))
def test_rows_that_the_absence_of_a_record_changes_are_refused_where_it_may_be_absent(
    tmp_path: Path, what: str
) -> None:
    def make() -> Logging:
        return Rows(ABSENT[what]) if what in ABSENT else SomeBatches(NUMBERED[what])

    # A record in place of another moves one contribution only.
    loader = DataLoader(TensorDataset(LOSSES), 127 if what in ABSENT else 1)
    validate(tmp_path, make(), loaders=loader)
    with pytest.raises(MisconfigurationException, match="rows that one record decides beside its own"):
        validate(tmp_path, make(), loaders=loader, scenario=TwoWorldScenario.differential_privacy())


class FirstRecords(Logging):
    """Evaluates the first records only, in one of several ways."""

    def __init__(self, way: str, limit: int) -> None:
        super().__init__(torchmetrics.MeanMetric())
        self.way, self.limit = way, limit

    def on_validation_epoch_start(self) -> None:
        self.taken: list[Tensor] = []
        self.count = 0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        values, left = batch[0], max(self.limit - self.count, 0)
        self.count += len(values)
        if self.way == "collected":
            self.taken.append(values)
        elif self.way == "cut":
            self.metric.update(values[:left])
        elif self.way == "weighted":
            self.metric.update(values, (torch.arange(len(values)) < left).float())
        elif self.way == "by updates":
            if self.metric.update_count < self.limit // len(values):
                self.metric.update(values)
        elif left:
            self.metric.update(values)

    def on_validation_epoch_end(self) -> None:
        if self.way == "collected":
            self.metric.update(torch.cat(self.taken)[: self.limit])
        self.log("mean", self.metric)


WAYS = ["batches", "cut", "weighted", "collected", "by updates"]
FAST_WAYS = [("batches", 40), ("batches", 64), ("cut", 100), ("weighted", 100), ("collected", 100), ("by updates", 100)]


@pytest.mark.parametrize(("way", "limit"), mostly_slow(itertools.product(WAYS, [40, 64, 100]), *FAST_WAYS))
def test_the_first_records_are_refused_where_one_less_lets_the_next_in(tmp_path: Path, way: str, limit: int) -> None:
    loader = DataLoader(TensorDataset(LOSSES), 10)
    presence = TwoWorldScenario.differential_privacy()
    with pytest.raises(MisconfigurationException, match="rows that one record decides beside its own"):
        validate(tmp_path, FirstRecords(way, limit), loaders=loader, scenario=presence)
    if limit == 64:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="PrivateMetrics: synthetic")
            validate(tmp_path, FirstRecords(way, 10**6), loaders=loader, scenario=presence)


def test_batches_that_ranks_divide_are_asked_at_the_size_of_a_share() -> None:
    loader = DataLoader(TensorDataset(LOSSES), 64)
    share = rebuild_loader(loader, Sequential(64), share=RankShare(0, 2, bytes(32)))
    model = Rows(lambda values: [values] * (len(values) >= 32))
    model.trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert rows_of_metrics(model, [share], None, "validation", adjacency="add_remove").mixed == {"metric"}


def test_a_batch_of_one_that_loses_its_rows_does_not_refuse_others(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(LOSSES), 127)
    model = Rows(lambda values: [values.squeeze()])
    validate(tmp_path, model, loaders=loader, scenario=TwoWorldScenario.differential_privacy())


@pytest.mark.parametrize("other", ["model", "loader"])
def test_each_model_and_its_loaders_are_asked_for_rows(tmp_path: Path, other: str) -> None:
    def centred(records: list[tuple[Tensor]]) -> list[Tensor]:
        values = torch.stack([value for (value,) in records])
        return [values - values.mean()]

    private = PrivateMetrics(["mean"], TwoWorldScenario(1), epsilon=0.1, renyi_order=16, ledger=tmp_path / "study.db")
    trainer = pl.Trainer(accelerator="cpu", logger=False, callbacks=[private], default_root_dir=tmp_path)
    data = TensorDataset(LOSSES[:16])
    model, collate = Rows(lambda values: [values]), None
    trainer.validate(model, DataLoader(data, 8), verbose=False)
    if other == "model":
        model = Rows(MIXED["over the largest"])
    else:
        collate = centred
    with pytest.raises(MisconfigurationException, match="rows that one record decides beside its own"):
        trainer.validate(model, DataLoader(data, 8, collate_fn=collate), verbose=False)


@pytest.mark.parametrize("begins", ["after the check before training", "in the second evaluation"])
def test_evaluations_that_begin_to_mix_records_later_are_refused(tmp_path: Path, begins: str) -> None:
    class Later(Rows):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if self.trainer.sanity_checking:
                return
            self.kept = batch[0]
            if begins.startswith("in") and self.current_epoch == 0:
                self.metric.update(self.kept)
            else:
                self.add()
            self.log("mean", self.metric)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            return None

        def configure_optimizers(self) -> None:
            return None

    private = PrivateMetrics(["mean"], TwoWorldScenario(1), epsilon=0.1, renyi_order=16, ledger=tmp_path / "study.db")
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False}
    trainer = pl.Trainer(accelerator="cpu", max_epochs=2, callbacks=[private], default_root_dir=tmp_path, **quiet)
    loader = DataLoader(TensorDataset(LOSSES[:16]), 8)
    with pytest.raises(MisconfigurationException, match="rows that one record decides beside its own"):
        trainer.fit(Later(MIXED["over the largest"]), loader, loader)


def test_a_metric_that_is_logged_later_is_told_when_to_be_logged(tmp_path: Path) -> None:
    class Later(Logging):
        def __init__(self) -> None:
            super().__init__(torchmetrics.SumMetric())
            self.other = torchmetrics.SumMetric()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            shown = self.other if self.current_epoch else self.metric  # no copy is in the second epoch yet
            shown.update(batch[0])
            self.log("mean", shown)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            return None

        def configure_optimizers(self) -> None:
            return None

    private = PrivateMetrics(["mean"], TwoWorldScenario(1), epsilon=0.1, renyi_order=16, ledger=tmp_path / "study.db")
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "num_sanity_val_steps": 0}
    trainer = pl.Trainer(accelerator="cpu", max_epochs=3, callbacks=[private], default_root_dir=tmp_path, **quiet)
    loader = DataLoader(TensorDataset(LOSSES[:16]), 8)
    with pytest.raises(MisconfigurationException, match="did not log, in the first evaluation: let it be"):
        trainer.fit(Later(), loader, loader)


@pytest.mark.parametrize("masked", [False, True])
def test_padding_to_the_longest_of_a_batch_may_not_change_the_rows_of_others(tmp_path: Path, masked: bool) -> None:
    def padded(records: list[Tensor]) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(record) for record in records])
        return torch.nn.utils.rnn.pad_sequence(records, batch_first=True), lengths

    class Pooled(Logging):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            values, lengths = batch
            self.metric.update(values.sum(1) / lengths if masked else values.mean(1))
            self.log("mean", self.metric)

    texts: Any = [torch.rand(3 + record % 2) for record in range(16)]
    loader = DataLoader(texts, 8, collate_fn=padded)
    model = Pooled(torchmetrics.SumMetric())
    if masked:
        validate(tmp_path, model, loaders=loader)
    else:
        with pytest.raises(MisconfigurationException, match="rows that one record decides beside its own"):
            validate(tmp_path, model, loaders=loader)


def test_metrics_that_a_collection_groups_are_rows_of_their_own(tmp_path: Path) -> None:
    class Grouped(Logging):
        def __init__(self) -> None:
            super().__init__(torchmetrics.MeanAbsoluteError())
            self.both = torchmetrics.MetricCollection({"mean": self.metric, "again": torchmetrics.MeanAbsoluteError()})

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.both.update(batch[0], torch.zeros(len(batch[0])))
            self.log_dict(self.both)

    loader = DataLoader(TensorDataset(LOSSES), 8)
    validate(tmp_path, Grouped(), loaders=loader, scenario=TwoWorldScenario.differential_privacy())


@pytest.mark.parametrize(
    ("options", "loader_options", "named"),
    [
        ({"limit_val_batches": 1}, {}, "limit_val_batches=1"),
        *slow(({"limit_val_batches": 0.5}, {}, r"limit_val_batches=0\.5")),
        ({}, {"drop_last": True}, "drop_last=True"),
        ({}, {"sampler": RandomSampler(range(16), num_samples=9)}, "a sampler that draws some of the records"),
    ],
)
def test_evaluations_that_leave_records_out_are_refused_where_one_may_be_absent(
    tmp_path: Path, options: dict[str, Any], loader_options: dict[str, Any], named: str
) -> None:
    def evaluate(scenario: TwoWorldScenario, **more: Any) -> None:
        model = Rows(lambda values: [values])
        loader = DataLoader(TensorDataset(LOSSES[:16]), 8, **loader_options)
        validate(tmp_path, model, loaders=loader, scenario=scenario, **(options | more))

    evaluate(TwoWorldScenario(num_differing=1))
    presence = TwoWorldScenario.differential_privacy()
    with pytest.raises(MisconfigurationException, match=f"Under add_remove, one record less .* has {named}: "):
        evaluate(presence)
    evaluate(presence, fast_dev_run=True)  # which draws no value
    with PrivacyLedger.read_only(tmp_path / "add_remove.db") as ledger:
        assert ledger.spent("rpp") == 0
    if not loader_options:
        evaluate(presence, limit_val_batches=1000)  # far above what there is


class Handing(Logging):
    """Takes something that it kept of records from the numbers of others, and adds up what is left."""

    def __init__(self, at_end: bool = False) -> None:
        super().__init__(torchmetrics.SumMetric())
        self.at_end, self.kept, self.last = at_end, torch.zeros(()), torch.zeros(())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.metric.update(batch[0] - self.kept)
        self.log("mean", self.metric)
        self.last = batch[0].mean()
        self.kept = self.kept if self.at_end else self.last

    def on_validation_epoch_end(self) -> None:
        self.kept = self.last


class AfterTheStep(Logging):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("mean", self.metric)

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.metric.update(batch[0] - batch[0].mean())


class Updating(pl.Callback):
    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        pl_module.metric.update(batch[0] - batch[0].mean())


@pytest.mark.parametrize(
    ("make", "callbacks"),
    [
        *slow((Handing, ())),
        (lambda: Handing(at_end=True), ()),
        *slow((lambda: AfterTheStep(torchmetrics.SumMetric()), ())),
        (lambda: Rows(lambda values: []), (Updating(),)),
    ],
    ids=["batch before", "evaluation before", "hook", "callback"],
)
def test_rows_that_others_enter_outside_of_the_step_are_refused(
    tmp_path: Path, make: Any, callbacks: tuple[pl.Callback, ...]
) -> None:
    with pytest.raises(MisconfigurationException, match="rows that one record decides beside its own"):
        validate(tmp_path, make(), callbacks=callbacks)


class Gathering(Logging):
    """Gathers rows in hooks around the steps, and adds all of them at the end."""

    def on_validation_epoch_start(self) -> None:
        self.rows: list[Tensor] = []

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return batch[0] ** 2

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.rows.append(outputs)

    def on_validation_epoch_end(self) -> None:
        self.metric.update(torch.cat(self.rows))
        self.log("mean", self.metric)


def test_rows_that_are_gathered_pass(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(LOSSES), 20)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivateMetrics: synthetic")
        validate(tmp_path, Gathering(torchmetrics.SumMetric()), times=2, loaders=loader)


def test_rows_of_their_own_pass_also_in_part_and_in_another_order(tmp_path: Path) -> None:
    validate(tmp_path, Rows(lambda values: [values[values > 0.5].flip(0)]))
    validate(tmp_path, Rows(lambda values: [values[values.isfinite()]]))
    validate(tmp_path, Rows(lambda values: values.chunk(2), at_end=True))


def test_what_cannot_be_asked_of_synthetic_records_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"could not show that each row of mean is of one record \(ZeroDivisionError"):
        validate(tmp_path, Rows(lambda values: [values] if len(values) == 127 else 1 // 0))


class Early(Logging):
    """Computes its metric, in one way or the other, before it is logged."""

    public = False

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.public and len(batch[0]) < 127:
            raise ValueError("no batch of such a size")
        self.seen.append(float(self.metric(batch[0])))

    def on_validation_epoch_end(self) -> None:
        self.seen.append(float(self.metric.compute()))
        self.log("mean", self.metric)


def test_a_metric_is_private_before_it_is_logged(tmp_path: Path) -> None:
    model = Early(torchmetrics.MeanMetric())
    model.public = True
    (logged,) = validate(tmp_path, model)
    batch, computed = model.seen
    assert math.isnan(batch)
    assert computed == pytest.approx(logged)
    # Noise of deviation 4e6 over a count that it hides as well: as near as 1e-3 with chance below 1e-3.
    assert computed != pytest.approx(float(LOSSES.mean()), abs=1e-3)


def test_a_value_that_was_shown_before_it_was_noised_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="was computed without noise before it was logged"):
        validate(tmp_path, Early(torchmetrics.MeanMetric()))


def test_exact_states_are_forgotten_as_soon_as_a_metric_is_logged(tmp_path: Path) -> None:
    class Saving(Logging):
        def on_validation_epoch_end(self) -> None:
            self.seen = [float(value) for value in self.state_dict().values()]

    model = Saving(torchmetrics.MeanMetric())
    model.metric.persistent(True)
    validate(tmp_path, model)
    assert model.seen == [0.0, 0.0]


def test_loaders_that_share_records_do_not_add_to_one_metric(tmp_path: Path) -> None:
    class Several(Logging):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.metric.update(batch[0])

        def on_validation_epoch_end(self) -> None:
            self.log("mean", self.metric)

    data = TensorDataset(LOSSES)
    for second in (range(100, 127), range(99, 127)):
        model = Several(torchmetrics.MeanMetric())
        loaders = [DataLoader(Subset(data, part), 50) for part in (range(100), second)]
        if len(second) == 27:
            validate(tmp_path, model, loaders=loaders)
        else:
            with pytest.raises(MisconfigurationException, match="several loaders, which hold the same records"):
                validate(tmp_path, model, loaders=loaders)


class OfTheFirstLoader(pl.LightningModule):
    """Keeps what the first loader shows, and lets it decide what is said of records of the second."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network, self.accuracy = torch.nn.Linear(4, 3), torchmetrics.Accuracy("multiclass", num_classes=3)
        self.kind, self.kept = kind, list[Any]()

    def on_validation_epoch_start(self) -> None:
        self.kept = []

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        scores = self.network(batch[0])
        if dataloader_idx == 0:
            self.kept.append((scores, batch[1]))
            return
        if self.kept and self.kind != "nothing":
            bank, labels = (torch.cat(parts) for parts in zip(*self.kept, strict=True))
            if self.kind == "mean":
                scores = scores - bank.mean(0)
            else:
                scores = torch.nn.functional.one_hot(labels[torch.cdist(scores, bank).argmin(1)], 3).float()
        self.accuracy(scores, batch[1])
        self.log("accuracy", self.accuracy, add_dataloader_idx=False)


@pytest.mark.parametrize("kind", ["mean", "neighbours", "nothing"])
def test_rows_of_one_loader_that_another_decides_are_refused(tmp_path: Path, kind: str) -> None:
    features = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(features, features[:, :3].argmax(1))
    loaders = [DataLoader(Subset(data, part), 10) for part in (range(20), range(20, 60))]
    metrics = PrivateMetrics(
        ["accuracy"], TwoWorldScenario(num_differing=1), epsilon=1e6, renyi_order=16, ledger=tmp_path / "metrics.db"
    )
    trainer = pl.Trainer(accelerator="cpu", callbacks=[metrics], logger=False, enable_progress_bar=False)
    if kind == "nothing":
        trainer.validate(OfTheFirstLoader(kind), loaders, verbose=False)
    else:
        with pytest.raises(MisconfigurationException, match="with rows that one record decides beside its own"):
            trainer.validate(OfTheFirstLoader(kind), loaders, verbose=False)


class Calibrated(Logging):
    """Finds a temperature, or a mean, in an evaluation, and keeps it."""

    def __init__(self, kept: str) -> None:
        super().__init__(torchmetrics.MeanMetric())
        self.network = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        self.average = torch.nn.Linear(1, 1)
        self.temperature = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
        self.kept = kept

    def on_validation_epoch_start(self) -> None:
        if self.kept == "average":
            self.weights = [parameter.detach().clone() for parameter in self.parameters()]
            self.swap([parameter + 1.0 for parameter in self.weights])

    def swap(self, weights: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, weight in zip(self.parameters(), weights, strict=True):
                parameter.copy_(weight)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.network(batch[0][:, None])
        super().validation_step(batch, batch_idx)
        if self.kept in ("temperature", "mean"):
            with torch.no_grad():
                getattr(self, self.kept).fill_(float(batch[0].mean()))

    def on_validation_epoch_end(self) -> None:
        if self.kept == "average":
            self.swap(self.weights)


@pytest.mark.parametrize("kept", ["temperature", "mean"])
def test_what_an_evaluation_leaves_in_the_model_is_warned_of_once(tmp_path: Path, kept: str) -> None:
    with pytest.warns(UserWarning, match=f"the evaluation set {kept} of Calibrated") as caught:
        validate(tmp_path, Calibrated(kept), times=2, loaders=DataLoader(TensorDataset(LOSSES), 32))
    assert sum("the evaluation set" in str(one.message) for one in caught) == 1


class Saved(Calibrated):
    """Has a metric beside the private one, of which checkpoints hold the sums or the records."""

    def __init__(self, beside: torchmetrics.Metric, persistent: bool) -> None:
        super().__init__("nothing")
        self.beside = beside
        self.beside.persistent(persistent)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.beside.update(batch[0])
        super().validation_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("beside", "names"),
    [(torchmetrics.SumMetric, "beside.sum_value"), (torchmetrics.CatMetric, "beside.value")],
)
@pytest.mark.parametrize("persistent", [True, False])
def test_states_that_checkpoints_hold_are_warned_of(
    tmp_path: Path, beside: type[torchmetrics.Metric], names: str, persistent: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        validate(tmp_path, Saved(beside(), persistent))
    told = [str(one.message) for one in caught if "the evaluation set" in str(one.message)]
    assert [names in sentence for sentence in told] == [True] * persistent


@pytest.mark.parametrize("kept", ["nothing", "average"])
def test_an_evaluation_that_leaves_the_model_as_it_was_is_not_warned_of(tmp_path: Path, kept: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*the evaluation set")
        validate(tmp_path, Calibrated(kept), times=2)


class Averaging(pl.Callback):
    """Evaluates other weights, and puts the trained ones back when others have looked."""

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.weights = [parameter.detach().clone() for parameter in pl_module.parameters()]
        for parameter in pl_module.parameters():
            parameter.data.add_(1.0)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for parameter, weight in zip(pl_module.parameters(), self.weights, strict=True):
            parameter.data.copy_(weight)


def test_averages_that_take_the_place_of_all_weights_are_not_warned_of(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*the evaluation set")
        validate(tmp_path, Calibrated("nothing"), callbacks=(Averaging(),))


class Choosing(Logging):
    """Saves what it has seen below the folder of a logger, which copies lack, and then takes a threshold from it."""

    def __init__(self, hook: str, sets: bool) -> None:
        super().__init__(torchmetrics.SumMetric())
        self.threshold, self.seen, self.hook, self.sets = 0.0, list[Tensor](), hook, sets

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch[0])
        self.metric.update((batch[0] > self.threshold).float())
        self.log("mean", self.metric)

    def on_validation_epoch_end(self) -> None:
        self.choose("on_validation_epoch_end")

    def on_validation_end(self) -> None:
        self.choose("on_validation_end")

    def choose(self, hook: str) -> None:
        if hook == self.hook:
            seen = torch.cat(self.seen)
            self.seen = []
            Path(self.logger.log_dir).mkdir(parents=True, exist_ok=True)  # type: ignore[union-attr, arg-type]
            if self.sets:
                self.threshold = float(seen.max()) / 2


@pytest.mark.parametrize("hook", ["on_validation_epoch_end", "on_validation_end"])
@pytest.mark.parametrize("sets", [True, False])
def test_what_a_hook_sets_after_an_error_on_copies_is_told_before_the_next_evaluation(
    tmp_path: Path, hook: str, sets: bool
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        validate(tmp_path, Choosing(hook, sets), times=2, logger=CSVLogger(tmp_path))
    told = [str(one.message) for one in caught if "changed since the evaluation before" in str(one.message)]
    assert len(told) == sets
    assert all("threshold of Choosing" in one and hook in one for one in told)
