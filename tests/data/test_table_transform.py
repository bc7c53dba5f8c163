"""Tables become numbers by ranges and vocabularies that are declared, or found under a promise."""

import io
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pandas
import pytest
import torch
import yaml
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import DPSGD, Poisson, PrivacyLedger, SecureGenerator, TableTransform, TwoWorldScenario
from lightning_pac.accountants import ledger_events, privacy_curve
from lightning_pac.data.columns import noised_columns
from lightning_pac.exceptions import BudgetExceededError, LedgerMismatchError

CELLS: dict[str, list[Any]] = {
    "age": [20, "60", 40.0, None, "", "unknown", math.nan, math.inf, -math.inf, 10**400, 7],
    "job": ["clerk", " cook ", "poet", None, "", math.nan, 3, "clerk", "cook", "clerk", "cook"],
    "zip": ["10115", 10115, None, "", "b", "c", "d", "e", "f", "g", "h"],
}
COLUMNS = {"age": [20, 60], "job": ["clerk", "cook"], "zip": 4}


@pytest.mark.parametrize("column", [32, ["01067", "1068"]])
def test_one_code_that_is_no_number_leaves_how_others_are_read(column: Any) -> None:
    """Pandas reads "01067" as 1067 where every cell of the column is a number."""
    others = [
        TableTransform({"code": column})(pandas.read_csv(io.StringIO(f"code\n{first}\n01067\n1068\n")))[1:]
        for first in ("01234", "D-01234", "NA")
    ]
    assert np.array_equal(others[0], others[1])
    assert np.array_equal(others[0], others[2])


def test_cells_are_scaled_and_named() -> None:
    transform = TableTransform(COLUMNS)
    features = transform(CELLS)
    assert features.shape == (11, 2 + 3 + 4) == (11, len(transform.features))
    scaled, missing = features[:, 0], features[:, 1]
    assert scaled.tolist() == [-1, 1, 0, 0, 0, 0, 0, 1, -1, 0, -1]
    assert missing.tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0]
    assert features[:, 2:5].argmax(1).tolist() == [0, 1, 2, 2, 2, 2, 2, 0, 1, 0, 1]
    assert (features[:, 2:].reshape(11, -1).sum(1) == 2).all()
    assert (features[0, 5:] == features[1, 5:]).all()  # a number and its text are one category


def test_each_row_is_transformed_alone_in_whichever_form_it_comes() -> None:
    transform = TableTransform(yaml.safe_load(yaml.safe_dump(TableTransform(COLUMNS).columns)))
    rows = [dict(zip(CELLS, cells, strict=True)) for cells in zip(*CELLS.values(), strict=True)]
    together = transform(CELLS)
    assert np.array_equal(together, transform(rows))
    assert np.array_equal(together, np.concatenate([transform([row]) for row in rows]))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "must name at least one column"),
        ({"a": [2, 1]}, "must be a range"),
        ({"a": [0, math.inf]}, "must be a range"),
        ({"a": [-1.7e308, 1.7e308]}, "must be a range"),
        ({"a": [1, 2, 3]}, "must be a range"),
        ({"a": ["x", "x"]}, "each once"),
        ({"a": ["Pro", "pro "]}, "each once: case"),
        ({"a": ["1", "1.0"]}, "each once"),
        ({"a": ["2025-12-31", "2025-01-01"]}, "first date must be before"),
        ({"a": [1, "x"]}, "numbers in quotes"),
        ({"a": []}, "at least one text"),
    ],
)
def test_a_bad_column_is_refused_by_name(columns: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TableTransform(columns)


def test_people_and_spreadsheets_may_write_a_category_as_they_like() -> None:
    """A table held "Pro" and "pro", and pandas writes 3 as 3.0 where a cell of the column is missing."""
    transform = TableTransform({"plan": ["Basic", "pro"], "tier": ["1", "3"], "town": 8})
    spelled = {
        "plan": ["BASIC", " Pro ", "p ro", "pro"],
        "tier": ["3.0", 3.0, "03", "3.5"],
        "town": ["Ulm", "ulm ", "ULM", "Ulm"],
    }
    features = transform(spelled)
    assert features[:, :3].argmax(1).tolist() == [0, 1, 2, 1]
    assert features[:, 3:6].argmax(1).tolist() == [1, 1, 1, 2]
    assert len(np.unique(features[:, 6:], axis=0)) == 1


@pytest.mark.parametrize("number", [20, 16777217, 2**53, 10**16, 3 * 10**17])
def test_a_whole_number_has_one_bucket_whether_another_row_lacks_its_cell(number: int) -> None:
    transform = TableTransform({"code": 50})
    (alone,), (beside, _) = (transform(pandas.DataFrame({"code": cells})) for cells in ([number], [number, None]))
    assert alone.tolist() == beside.tolist()


def test_two_columns_of_one_name_are_refused() -> None:
    table = pandas.DataFrame(np.array([["a", "b"], ["b", "a"], ["a", "a"]]), columns=["code", "code"])
    for column in (["a", "b"], 8, (0, 1)):
        with pytest.raises(ValueError, match="table has several columns 'code': give each a name of its own"):
            TableTransform({"code": column})(table)


def test_a_range_of_dates_counts_days() -> None:
    days = ["2024-01-01", "2024-01-05", "2024-01-03 23:59:59", "", "05.01.2024", "2023-06-01", None]
    transform = TableTransform({"day": ["2024-01-01", "2024-01-05"]})
    features = transform({"day": days})
    assert features[:, 0].tolist() == [-1, 1, 0, 0, 0, -1, 0]
    assert features[:, 1].tolist() == [0, 0, 0, 1, 1, 0, 1]
    parsed = pandas.DataFrame({"day": pandas.to_datetime(pandas.Series(days), errors="coerce", format="ISO8601")})
    assert np.array_equal(features, transform(parsed))
    assert np.array_equal(features, TableTransform(yaml.safe_load("day: [2024-01-01, 2024-01-05]"))({"day": days}))


def test_a_range_of_dates_is_narrowed_to_dates(tmp_path: Path) -> None:
    days = [f"2024-{month:02}-{day:02}" for month in (5, 6) for day in range(1, 31)] * 50
    found = TableTransform.private(
        {"day": days}, {"day": ["2000-01-01", "2030-01-01"]}, ledger=tmp_path / "a.db", epsilon=1.0, delta=1e-6
    ).columns["day"]
    assert isinstance(found, list)
    assert "2024-01-01" < str(found[0]) < "2024-05-15"
    assert "2024-06-15" < str(found[1]) < "2024-11-01"


def test_what_pandas_calls_missing_is_missing() -> None:
    """Its NA compares to nothing, and a column of texts with one ended the run."""
    table = pandas.DataFrame({"age": pandas.array([20, None], "Int64"), "job": pandas.array(["cook", None], "string")})
    transform = TableTransform({"age": [20, 60], "job": ["clerk", "cook"], "zip": 2})
    table["zip"] = table["job"]
    expected = transform({"age": [20, None], "job": ["cook", None], "zip": ["cook", None]})
    assert np.array_equal(transform(table), expected)


class Odd:
    def __float__(self) -> float:
        raise ZeroDivisionError

    __str__ = __ne__ = __float__  # type: ignore[assignment]


@pytest.mark.parametrize("cell", [10**5000, Decimal("sNaN"), torch.ones(2), Odd()], ids=["long", "sNaN", "rows", "odd"])
def test_no_cell_ends_the_run_which_would_tell_of_its_record(cell: Any, tmp_path: Path) -> None:
    columns: dict[str, Any] = {"n": (0, 1), "d": ("2020-01-01", "2021-01-01"), "c": ["a", "b"], "h": 3}
    rows = [dict.fromkeys(columns, cell), {"n": 1, "d": "2020-05-05", "c": "a", "h": "x"}, {"n": 0, "c": "b"}]
    features = TableTransform(columns)(rows)
    alone = TableTransform(columns)(rows[1:])
    assert np.array_equal(features[1:], alone)
    TableTransform.private(rows, columns, ledger=tmp_path / "a.db", epsilon=1.0, delta=1e-6)


def test_a_bad_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no column 'zip' but only 'age', 'job': "):
        TableTransform(COLUMNS)({"age": [1], "job": [""]})
    with pytest.raises(ValueError, match="another length in its column"):
        TableTransform(COLUMNS)({**CELLS, "age": [1]})


def test_one_record_moves_the_counts_by_no_more_than_the_noise_is_made_for() -> None:
    columns = {"age": [20.0, 60.0], "job": ["clerk", "cook"]}

    def counts(kept: list[int]) -> Any:
        return np.concatenate(
            [noised_columns._count([CELLS[name][row] for row in kept], column, 16) for name, column in columns.items()]
        )

    every = list(range(11))
    moved = [counts(every) - counts([other for other in every if other != row]) for row in every]
    assert all(0 <= np.linalg.norm(move) <= math.sqrt(2) for move in moved)
    assert max(np.linalg.norm(move) for move in moved) == math.sqrt(2)
    # Two records that trade places differ by what the accountant takes for a replaced record, and no more.
    assert all(np.linalg.norm(first - second) <= 2 * math.sqrt(2) for first in moved for second in moved)


@pytest.fixture(scope="module")
def people() -> dict[str, Any]:
    draws = np.random.default_rng(0)
    jobs = draws.choice(["clerk", "cook", "poet"], p=[0.6, 0.3999, 0.0001], size=20_000)
    return {"age": draws.normal(40, 5, 20_000), "job": jobs.tolist()}


def test_ranges_and_vocabularies_are_narrowed_within_the_promise(
    people: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    with pytest.warns(UserWarning, match="for tests only"):
        generator = SecureGenerator(seed=0)
    release = generator.release_

    def noted(counts: torch.Tensor, deviation: float) -> torch.Tensor:
        used.append(deviation)
        return release(counts, deviation)

    monkeypatch.setattr(generator, "release_", noted)
    monkeypatch.setattr(noised_columns, "secure_generator", lambda: generator)
    columns = {"age": [0, 128], "job": ["clerk", "cook", "poet", "pope"], "zip": 4}
    found = TableTransform.private(people, columns, ledger=tmp_path / "a.db", epsilon=1.0, delta=1e-6).columns
    low, high = found["age"]
    # Beyond the found range lies 2 % at most and what the noise hides.
    clipped = float(np.mean((people["age"] < low) | (people["age"] > high)))
    assert 0 < clipped < 0.02 + 2 * 6 * used[0] * math.sqrt(60) / 20_000
    assert 20 < low < 35
    assert 45 < high < 60
    assert found["job"] == ["clerk", "cook"]
    assert found["zip"] == 4
    with PrivacyLedger.read_only(tmp_path / "a.db") as ledger:
        (account,) = ledger.accounts()
        (charge,) = account.events()
    assert charge.event is not None
    # The curve of Gaussian noise, in closed form (Balle and Wang 2018), at the noise that was drawn for two columns.
    mu = math.sqrt(2) / used[0]
    assert charge.event["mu_squared"] == pytest.approx(mu**2)
    delta = stats.norm.cdf(mu / 2 - 1 / mu) - math.e * stats.norm.cdf(-mu / 2 - 1 / mu)
    assert 0.99e-6 < delta <= 1e-6


def test_what_noise_drowns_stays_generous(tmp_path: Path) -> None:
    few = {"age": [30.0] * 20, "job": ["clerk"] * 20}
    columns = {"age": [0, 128], "job": ["clerk", "cook"]}
    found = TableTransform.private(few, columns, ledger=tmp_path / "a.db", epsilon=0.1, delta=1e-6).columns
    assert found == {"age": [0.0, 128.0], "job": ["clerk", "cook"]}


def test_nothing_is_released_that_the_ledger_does_not_pay_for(people: dict[str, Any], tmp_path: Path) -> None:
    terms: dict[str, Any] = {"ledger": tmp_path / "a.db", "epsilon": 1.0, "delta": 1e-6}
    with PrivacyLedger(tmp_path / "a.db", budget={"rpp": 1e-3}), pytest.raises(BudgetExceededError):
        TableTransform.private(people, {"age": [0, 128]}, **terms)
    with pytest.raises(ValueError, match="nothing has to be found"):
        TableTransform.private(people, {"job": 4}, **terms)
    with pytest.raises(ValueError, match="epsilon and delta, or world_success_bound"):
        TableTransform.private(people, {"age": [0, 128]}, ledger=tmp_path / "b.db")
    TableTransform.private(people, {"age": [0, 128]}, **{**terms, "ledger": tmp_path / "b.db"})
    with pytest.raises(LedgerMismatchError, match="columns"):
        TableTransform.private(people, {"age": [0, 64]}, **{**terms, "ledger": tmp_path / "b.db"})


class Linear(pl.LightningModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, 2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def test_it_composes_with_training_in_one_ledger(people: dict[str, Any], tmp_path: Path) -> None:
    table = {name: cells[:200] for name, cells in people.items()}
    columns = {"age": [0, 128], "job": ["clerk", "cook"]}
    transform = TableTransform.private(table, columns, ledger=tmp_path / "a.db", epsilon=1.0, delta=1e-6)
    features = torch.from_numpy(transform(table))
    data = TensorDataset(features, torch.zeros(200, dtype=torch.long))
    private = DPSGD(epsilon=2.0, delta=1e-6, sampling=Poisson(rate=0.1, batch_size=20), ledger=tmp_path / "a.db")
    trainer = pl.Trainer(
        max_steps=2,
        logger=False,
        callbacks=[private],
        accelerator="cpu",
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Linear(features.shape[1]), DataLoader(data, batch_size=20))
    assert private.arguments.scenario.coupling() == TwoWorldScenario.differential_privacy().coupling()
    with PrivacyLedger.read_only(tmp_path / "a.db") as ledger:
        together = privacy_curve(ledger_events(ledger)).epsilon(2e-6)
    assert 2 < together < 3


def test_invented_rows_are_of_the_declared_columns_alone() -> None:
    """Each value of a range or vocabulary is as frequent: with 4,000 rows, off by five deviations 1 time in 10^5."""
    days = ("2020-02-28", "2020-03-01")
    transform = TableTransform({"age": (-1, 3), "share": (0.5, 2), "job": ["a", "b"], "since": days, "zip": 7})
    rows = transform.invented_rows(4000, seed=3)
    assert rows == transform.invented_rows(4000, seed=3) != transform.invented_rows(4000, seed=4)
    for name, values in {"age": range(-1, 4), "job": "ab", "since": [days[0], "2020-02-29", days[1]]}.items():
        for value in values:
            expected = 4000 / len(values)
            assert abs(sum(row[name] == value for row in rows) - expected) < 5 * expected**0.5
    assert all(0.5 <= row["share"] <= 2 for row in rows)
    assert abs(sum(row["share"] < 1.25 for row in rows) - 2000) < 5 * 1000**0.5
    features = transform(rows)
    assert not any(features[:, transform.features.index(name)].any() for name in ("age is missing", "job = other"))
    buckets = features[:, [name.startswith("zip in") for name in transform.features]].sum(0)
    assert (abs(buckets - 4000 / 7) < 5 * (4000 / 7) ** 0.5).all()
