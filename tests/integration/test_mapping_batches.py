"""Batches that are mappings with attributes, as Hugging Face's collators make them."""

from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from tiny_fits import Classifier, make_data, make_private, make_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from lightning_pac.gradients import make_engine


def collate(records: list[Any]) -> Any:
    inputs, labels = default_collate(records)
    return UserDict(inputs=inputs, labels=labels)


class OfMapping(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step((batch["inputs"], batch["labels"]), batch_idx)


class Coupled(OfMapping):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        centred = batch["inputs"] - batch["inputs"].mean(dim=0)
        return nn.functional.cross_entropy(self.network(centred), batch["labels"])


def test_gradients_are_those_of_one_record_at_a_time() -> None:
    torch.manual_seed(0)
    model = OfMapping()
    records = [make_data()[index] for index in range(4)]
    lengths = []
    for record in records:
        model.zero_grad()
        model.training_step(collate([record]), 0).backward()
        lengths.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm())
    model.zero_grad()
    engine = make_engine()
    engine.attach(model, {"all": [name for name, _ in model.named_parameters()]})
    batch = collate(records)
    with engine.following((batch, 0)):
        loss = model.training_step(batch, 0)
    loss.backward()
    _, norms = engine.clipped_sum((1.0,))
    engine.detach()
    torch.testing.assert_close(norms[:, 0].float(), torch.stack(lengths), rtol=1e-3, atol=1e-6)


def test_a_model_of_mappings_trains_and_a_coupling_is_refused(tmp_path: Path) -> None:
    loader = DataLoader(make_data(), batch_size=10, shuffle=True, collate_fn=collate)
    make_trainer(tmp_path, make_private()).fit(OfMapping(), loader)
    with pytest.raises(MisconfigurationException, match="couples the records"):
        make_trainer(tmp_path, make_private()).fit(Coupled(), loader)
