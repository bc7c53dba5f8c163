"""Statistics of the records themselves are told from public, noised and chosen numbers."""

import json
import math
import types
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.parsing import AttributeDict
from sklearn.datasets import load_sample_image, load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler
from sklearn.utils.class_weight import compute_class_weight
from tiny_fits import RECORDS, Classifier, make_private, make_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

from lightning_pac import Poisson, TwoWorldScenario
from lightning_pac.callbacks.srpp_sgd.reporting.own_statistics import _held
from lightning_pac.data.own_statistics import is_part_by_place, is_scaled_by_itself, statistics_among
from lightning_pac.evidence import write_evidence
from lightning_pac.report import write_report

FEATURES, LABELS = load_wine(return_X_y=True)
TRAIN, HELD, TRAIN_LABELS, HELD_LABELS = train_test_split(FEATURES, LABELS, test_size=60, random_state=1)


def table(features: Any, labels: Any = TRAIN_LABELS) -> TensorDataset:
    return TensorDataset(torch.as_tensor(features).float(), torch.as_tensor(labels))


class Frame(Dataset[Any]):
    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(self.frame.iloc[index].to_numpy(float))


def scaled_as(kind: str) -> tuple[Any, list[Any]]:
    """What is trained on and evaluated, scaled in one of the usual ways."""
    both, own = StandardScaler().fit(FEATURES), StandardScaler().fit(TRAIN)
    single = torch.tensor(TRAIN).float()
    frame = pd.DataFrame(TRAIN)
    if kind == "by a scaler":
        return table(own.transform(TRAIN)), [table(own.transform(HELD), HELD_LABELS)]
    if kind == "before the split":
        return table(both.transform(TRAIN)), [table(both.transform(HELD), HELD_LABELS)]
    if kind == "before a random split":
        train, held = random_split(table(both.transform(FEATURES), LABELS), [0.7, 0.3])
        return train, [held]
    if kind == "by their ranges":
        ranges = MinMaxScaler().fit(FEATURES)
        return table(ranges.transform(TRAIN)), [table(ranges.transform(HELD), HELD_LABELS)]
    if kind == "by their quartiles":
        return table(RobustScaler().fit_transform(TRAIN)), []
    if kind == "in single precision":
        return table((single - single.mean(0)) / single.std(0)), []
    if kind == "with numpy in single precision":
        values = TRAIN.astype(np.float32)
        return table((values - values.mean(0)) / values.std(0)), []
    if kind == "in a frame":
        return Frame((frame - frame.mean()) / frame.std()), []
    if kind == "a target":
        return TensorDataset(single, (single[:, 0] - single[:, 0].mean()) / single[:, 0].std()), []
    flags = np.eye(20)[np.arange(len(TRAIN)) % 20]
    return table(np.hstack([own.transform(TRAIN)[:, :3], flags])), []


@pytest.mark.parametrize(
    "kind",
    [
        "by a scaler",
        "before the split",
        "before a random split",
        "by their ranges",
        "by their quartiles",
        "in single precision",
        "with numpy in single precision",
        "in a frame",
        "beside flags",
        "a target",
    ],
)
def test_records_that_were_scaled_by_themselves_are_known(kind: str) -> None:
    assert is_scaled_by_itself(*scaled_as(kind))


def scaled_pictures(kind: str) -> torch.Tensor:
    """Photographs that come with scikit-learn, cut into pieces of 20 x 20 pixels, channels first."""
    whole = np.concatenate([load_sample_image(name)[:420, :640] for name in ("china.jpg", "flower.jpg")])
    cut = whole.reshape(42, 20, 32, 20, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 20, 20)
    pictures = torch.from_numpy(cut).float() / 255
    if kind == "public":
        return (pictures - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / 0.22
    axes = {"all": (0, 1, 2, 3), "channels": (0, 2, 3), "last": (0, 2, 3), "places": 0, "each": (1, 2, 3)}[kind]
    pictures = (pictures - pictures.mean(axes, keepdim=True)) / pictures.std(axes, keepdim=True)
    return pictures.movedim(1, -1) if kind == "last" else pictures


@pytest.mark.parametrize("kind", ["all", "channels", "last", "places", "public", "each"])
def test_pictures_that_were_scaled_together_are_known(kind: str) -> None:
    """Those of a public scale, and those that were each scaled by itself, are not."""
    data = TensorDataset(scaled_pictures(kind))
    for dataset in (data, random_split(data, [0.8, 0.2])[0]):
        assert is_scaled_by_itself(dataset, []) == (kind not in ("public", "each"))


@pytest.mark.parametrize("seed", range(3))
def test_records_that_were_scaled_by_other_numbers_are_not(seed: int) -> None:
    draws = np.random.default_rng(seed)
    noised = (TRAIN - FEATURES.mean(0) - draws.normal(0, 0.01, 13)) / (
        FEATURES.std(0) * (1 + draws.normal(0, 0.01, 13))
    )
    public, by_record = StandardScaler().fit(HELD), torch.from_numpy(draws.normal(size=(50, 100)))
    by_record = (by_record - by_record.mean(1, keepdim=True)) / by_record.std(1, keepdim=True)
    for honest in (
        table(public.transform(TRAIN)),
        table(noised),
        table(RobustScaler().fit(HELD).transform(TRAIN)),
        table(np.round(TRAIN[:, :1]) - np.median(np.round(TRAIN[:, 0]))),
        table((TRAIN - FEATURES.mean(0) + 1).clip(-1, 1)),
        table(np.round((TRAIN - TRAIN.min(0)) / np.ptp(TRAIN, axis=0), 1)),
        TensorDataset(torch.from_numpy(np.append([[0, 0, 0], [1, 1, 1]], draws.integers(2, size=(50, 3)), 0)).float()),
        TensorDataset(torch.from_numpy(draws.normal(size=(len(TRAIN), 1000)))),
        TensorDataset(torch.from_numpy(draws.normal(size=(64, 3, 8, 8)))),
        TensorDataset(torch.full((64, 3), torch.nan)),
        [(torch.zeros(3), 0)] * 40,
        TensorDataset(by_record[:, None]),
        TensorDataset(by_record),
        TensorDataset(by_record / by_record.abs().amax(1, keepdim=True)),
        TensorDataset((2 * (torch.arange(50) % 2) - 1).float()[:, None]),
        TensorDataset(torch.empty(50, 0), torch.rand(50, 3).conj()),
    ):
        assert not is_scaled_by_itself(honest, [table(TRAIN)])


def test_weights_and_means_of_the_records_are_known() -> None:
    counts = np.bincount(TRAIN_LABELS)
    ours = {
        "inverse": 1 / counts,
        "normalized": torch.tensor(1 / counts / (1 / counts).sum()).float(),
        "balanced": compute_class_weight("balanced", classes=np.arange(3), y=TRAIN_LABELS),
        "root": list(counts**-0.5),
        "prior": torch.tensor(counts / counts.sum()),
        "of both": np.bincount(LABELS) / len(LABELS),
        "mean": TRAIN.astype(np.float32).mean(0),
        "deviation": torch.tensor(TRAIN).float().std(0),
        "logarithm": nn.Parameter(torch.tensor(np.log(counts / counts.sum())).float()),
    }
    others = {
        "chosen": np.array([0.2, 0.3, 0.5]),
        "rounded": np.round(counts / counts.sum(), 2),
        "equal": np.full(3, 1 / 3),
        "noised": (counts + np.array([1.3, -0.8, 0.4])) / counts.sum(),
        "mean of others": HELD.mean(0),
        "a constant": np.pi,
        "a name": "balanced",
        "many": torch.rand(5000),
        "none": None,
        "eight bits": torch.ones(3).to(torch.float8_e4m3fn),
        "half": torch.rand(3, dtype=torch.bfloat16),
    }
    assert statistics_among([*ours.items(), *others.items()], table(TRAIN), [table(HELD, HELD_LABELS)]) == [*ours]


def test_weights_that_lie_by_record_are_known() -> None:
    features, labels = TRAIN[:-4], TRAIN_LABELS[:-4]
    counts, positive = np.bincount(labels), labels == 1
    assert len(set(counts)) == 3
    of_one = np.where(positive, (~positive).sum() / positive.sum(), 1)
    for ours in (1 / counts[labels], counts[labels] / len(labels), of_one):
        for column in (torch.tensor(ours), torch.tensor(np.c_[features, ours]).float()):
            found = statistics_among([], TensorDataset(torch.tensor(features), column), [])
            assert found == ["a column of the training data"]
    chosen = np.array([0.2, 1, 0.7123])[labels]
    for others in (chosen, np.where(positive, np.e, 1), positive + 0.0, np.full(len(labels), 1 / 7.1)):
        assert statistics_among([], TensorDataset(torch.tensor(others)), []) == []


def test_the_weight_of_one_of_two_classes_is_known() -> None:
    labels = (torch.arange(100) < 23).float()
    data = TensorDataset(torch.rand(100, 3), labels)
    of_labels = torch.rand(100, 4, generator=torch.Generator().manual_seed(1)) < torch.tensor([0.1, 0.3, 0.4, 0.6])
    positive = of_labels.sum(0)
    several = TensorDataset(torch.rand(100, 3), of_labels.float())
    assert statistics_among([("weights", (100 - positive) / positive)], several, []) == ["weights"]
    ours = {
        "logit": torch.tensor([math.log(23 / 77)]),
        "pos_weight": torch.tensor([77 / 23]),
        "root": (77 / 23) ** 0.5,
        "two": np.array([100 / 154, 100 / 46]),
    }
    of_two_to_one = TensorDataset(torch.rand(99, 3), (torch.arange(99) < 33).float())
    roots = {"temperature": math.log(2), "gamma": math.sqrt(2), "scale": math.sqrt(0.5)}
    assert statistics_among([*roots.items()], of_two_to_one, []) == [], "which are anybody's"
    others = {"nine": 9.0, "third": torch.tensor([1 / 3]), "chosen": np.array([0.3, 0.7]), "other": [0.3001, 0.7]}
    assert statistics_among([*ours.items(), *others.items()], data, []) == [*ours]


MIXED = torch.randperm(1000, generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize(
    ("indices", "by_place"),
    [
        (range(800), True),
        (range(150, 1000), True),
        (MIXED[:666], False),
        (MIXED[:700], True),
        (random_split(range(1000), [0.9, 0.1])[0].indices, True),  # type: ignore[arg-type]
        ([row for row in MIXED if zlib.crc32(bytes([row % 251, row % 7])) % 4], False),
        ([row for row in range(1000) if row % 10], False),
        (range(977), False),
        (range(1000), False),
        ([], False),
    ],
)
def test_a_share_by_place_is_known(indices: Any, by_place: bool) -> None:
    data = TensorDataset(torch.rand(1000, 3))
    assert is_part_by_place(Subset(data, indices)) is by_place
    assert not is_part_by_place(data)


class Transformed(Dataset[Any]):
    """Scales its records by a scaler that was fitted to them, as it gives them."""

    def __init__(self) -> None:
        self.rows, self.transform = TRAIN, {"scale": StandardScaler().fit(TRAIN)}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(self.transform["scale"].transform(self.rows[index : index + 1])[0]).float()


class Odd(nn.Module):
    """Holds what refuses to be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.conjugate, self.eighth = torch.rand(3).cfloat().conj(), torch.ones(3).to(torch.float8_e4m3fn)
        self.numbers, self.lazy = math, types.SimpleNamespace(part=AttributeDict(mean=[1.5, 2.5]))


def test_statistics_are_found_in_transforms() -> None:
    dataset = Transformed()
    assert {name for name, _ in _held(dataset)} >= {"transform.scale.mean_", "transform.scale.scale_"}
    assert statistics_among(_held(dataset), dataset, []) == ["transform.scale.mean_", "transform.scale.scale_"]
    assert statistics_among(_held(Odd()), dataset, []) == []


class Weighted(Classifier):
    """Weights its classes by how often they come."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(network=nn.Linear(6, 2))
        self.loss = nn.CrossEntropyLoss(weight, reduction="none")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, labels = batch
        loss: Tensor = self.loss(self.network(inputs), labels).mean()
        return loss


def test_a_run_warns_of_all_three(tmp_path: Path) -> None:
    features = torch.rand(2 * RECORDS, 6)
    labels = (torch.arange(2 * RECORDS) % 7 == 0).long()
    counts = labels.bincount()
    data = TensorDataset((features - features.mean(0)) / features.std(0), labels)
    train, _ = random_split(data, [0.5, 0.5], torch.Generator().manual_seed(1))
    private = make_private(
        scenario=TwoWorldScenario.differential_privacy(),
        epsilon=3.0,
        delta=1e-5,
        sampling=Poisson(1 / 6, 10),
        ledger=tmp_path / "study.db",
    )
    with (
        pytest.warns(UserWarning, match=r"have mean 0 and deviation 1, or reach"),
        pytest.warns(UserWarning, match=r"loss\.weight holds means, deviations or counts of classes"),
        pytest.warns(UserWarning, match=r"a round share of other records"),
    ):
        make_trainer(tmp_path, private, max_steps=1).fit(Weighted(1 / counts), DataLoader(train, 10))
    # Whoever is handed the evidence saw no warning.
    document = json.loads(
        (write_evidence(tmp_path / "study.db", tmp_path / "evidence").parent / "evidence.json").read_text()
    )
    page = write_report(tmp_path).read_text()
    for found in ("mean 0 and deviation 1", "loss.weight holds means", "a round share of other records"):
        assert sum(found in sentence for sentence in document["not_covered"]) == 1
        assert page.count(found) == 2, "at the top and on the card"


def test_a_model_that_is_refused_is_told_of_its_data_as_well(tmp_path: Path) -> None:
    """Else a script is mended twice."""
    features = torch.rand(RECORDS, 6)
    data = TensorDataset((features - features.mean(0)) / features.std(0), torch.arange(RECORDS) % 3)
    model = Classifier(network=nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    with (
        pytest.warns(UserWarning, match="have mean 0 and deviation 1"),
        pytest.raises(MisconfigurationException, match="BatchNorm1d"),
    ):
        make_trainer(tmp_path, make_private(), max_steps=1).fit(model, DataLoader(data, 10, shuffle=True))
