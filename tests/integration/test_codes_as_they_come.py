"""Codes that names get as they come, wherever they are kept and however the records are loaded."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tiny_fits import Classifier, make_data, make_private, make_trainer
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

CITIES = ("rome", "oslo", "bern", "bonn")


class Named(Dataset[Any]):
    """Gives each record the code of its name."""

    def __init__(self) -> None:
        self.rows, self.own = make_data(), dict[str, int]()

    def __len__(self) -> int:
        return len(self.rows)

    def codes(self) -> dict[str, int]:
        return self.own

    def __getitem__(self, index: int) -> Any:
        inputs, label = self.rows[index]
        code = self.codes().setdefault(CITIES[index * index % 7 % 4], len(self.codes()))
        return torch.cat([inputs[1:], torch.tensor([float(code)])]), label


class Shared(Named):
    """Keeps the codes in its class."""

    of_all: ClassVar[dict[str, int]] = {}

    def codes(self) -> dict[str, int]:
        return self.of_all


class Wrapped(Dataset[Any]):
    def __init__(self, inner: Dataset[Any]) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


def collated(rows: list[Any]) -> Any:
    return default_collate(rows)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"collate_fn": collated}], ids=["", "worker", "collate"])
@pytest.mark.parametrize(
    "wrap", [None, Wrapped, lambda data: Subset(data, range(len(data)))], ids=["", "own", "Subset"]
)
@pytest.mark.parametrize("kind", [Named, Shared])
def test_no_check_fills_the_codes_that_a_later_one_asks_for(kind: Any, wrap: Any, options: Any, tmp_path: Path) -> None:
    """Records that were loaded for other checks had left codes for all names, and the run began."""
    Shared.of_all.clear()
    loader = DataLoader(wrap(kind()) if wrap else kind(), batch_size=10, **options)
    with pytest.raises(ValueError, match=f"{kind.__name__} gives a record otherwise after another one was loaded"):
        make_trainer(tmp_path, make_private()).fit(Classifier(), loader)
