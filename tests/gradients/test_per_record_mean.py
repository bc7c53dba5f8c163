"""A model that averages over all targets of a batch trains record by record after one line."""

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from per_example_loop import assert_same, clipped_sum_by_loop
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lightning_pac import per_record_mean
from lightning_pac.callbacks.srpp_sgd.loss_check import check_loss
from lightning_pac.gradients import make_engine

LABELS = torch.tensor([[1, 2, 3, 4], [-100, -100, 0, 5], [2, -100, -100, -100], [0, 1, 2, -100], [3, 3, 3, 3]])
TOKENS = torch.randint(6, (5, 4), generator=torch.Generator().manual_seed(0))


class LanguageModel(nn.Module):
    """As libraries write it: the loss of shifted targets, divided by the number of those in the batch that count."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.options = nn.Embedding(6, 5), nn.Linear(5, 6), options

    def forward(self, tokens: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.table(tokens).tanh())
        targets = F.pad(labels, (0, 1), value=-100)[:, 1:]
        return {"loss": F.cross_entropy(logits.reshape(-1, 6), targets.reshape(-1), **self.options), "logits": logits}


def own_loss(module: nn.Module, batch: Any) -> Tensor:
    loss = module(*batch)["loss"]
    return torch.where((batch[1][:, 1:] != -100).any(), loss, 0 * module.head.bias.sum())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.2},
        {"weight": torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 1.0])},
        {"size_average": True, "reduction": "sum"},  # of which the old name decides
        {"reduce": True},
    ],
)
@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
def test_records_have_the_gradients_that_they_have_alone(options: Any) -> None:
    model, engine = LanguageModel(**options), make_engine()
    double = {name: value.double() if isinstance(value, Tensor) else value for name, value in options.items()}
    truth = LanguageModel(**double)
    truth.load_state_dict(model.state_dict())
    expected = clipped_sum_by_loop(truth, [TOKENS, LABELS], own_loss, 0.3)
    engine.attach(model)
    per_record_mean(model, {"tokens": TOKENS, "labels": LABELS}).backward()
    assert_same(*engine.clipped_sum(0.3), expected, 1e-5)
    engine.detach()
    assert torch.equal(per_record_mean(model, [TOKENS[:1], LABELS[:1]]), model(TOKENS[:1], LABELS[:1])["loss"])


class Stock(pl.LightningModule):
    def __init__(self, line: bool) -> None:
        super().__init__()
        self.model, self.line = LanguageModel(), line

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return per_record_mean(self.model, batch) if self.line else self.model(**batch)["loss"]


def test_the_refusal_names_the_line_that_cures_it() -> None:
    data = [{"tokens": tokens, "labels": labels} for tokens, labels in zip(TOKENS, LABELS, strict=True)] * 3
    found = [check_loss(Stock(line), DataLoader(data, batch_size=4)) for line in (False, True)]
    assert "per_record_mean(model, batch)" in str(found[0].problem)
    assert (found[1].problem, found[1].unchecked) == (None, None)


@pytest.mark.parametrize("options", [{"size_average": False}, {"reduce": True, "size_average": False}])
@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
def test_a_sum_under_its_old_name_stays_a_sum(options: dict[str, bool]) -> None:
    model = LanguageModel(**options)
    assert torch.equal(per_record_mean(model, [TOKENS, LABELS]), model(TOKENS, LABELS)["loss"])


def test_what_it_cannot_take_apart() -> None:
    flat = {"tokens": TOKENS.new_zeros(4, 3), "labels": TOKENS.new_zeros(4, 3)}

    class Cut(LanguageModel):
        def forward(self, tokens: Tensor, labels: Tensor) -> Any:
            return F.cross_entropy(self.head(self.table(tokens)).reshape(-1, 6)[1:], labels.reshape(-1)[1:])

    with pytest.raises(ValueError, match="11 rows of targets for the 4 records"):
        per_record_mean(Cut(), flat)
    with pytest.raises(ValueError, match="Linear returned no loss"):
        per_record_mean(nn.Linear(3, 2), torch.ones(4, 3))
