"""Predictions whose visible number of queries is padded with dummies that every member answers."""

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac.callbacks import DummyPadding, PACResponses
from lightning_pac.callbacks.predictions.dummy_queries import append_dummies, check_paddable
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import PACResponder
from lightning_pac.mechanisms.one_sided import DPGuarantee, DPNoise, PositiveNoise
from lightning_pac.modules import SubsetEnsemble
from lightning_pac.scenarios import BalancedSubsets

POOL = BalancedSubsets(num_records=60, num_subsets=8, seed=0)
BUDGET = 2.0**-8
BATCH_SIZE = 10


class _Noise(DPNoise):
    """Designed noise that remembers what was drawn."""

    def __init__(self, compositions=10):
        designed = PositiveNoise.for_dp(1.0, 1e-2)
        super().__init__(designed.probabilities, DPGuarantee(1.0, 1e-2, compositions, 1, "exact"))
        self.draws = []

    def sample(self, size=()):
        draw = super().sample(size)
        self.draws.append(int(draw))
        return draw


class _Ensemble(SubsetEnsemble):
    """Remembers how many queries its members were asked, and calls `on_votes` first."""

    def __init__(self):
        super().__init__(lambda: nn.Linear(4, 3), POOL)
        self.sizes = []
        self.on_votes = lambda: None
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)

    def votes(self, inputs):
        self.on_votes()
        self.sizes.append(len(inputs))
        return super().votes(inputs)


def _queries(ensemble):
    """40 queries, the first of each batch one that the members disagree on: its copies would cost if they were paid."""
    queries = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    votes = SubsetEnsemble.votes(ensemble.eval(), queries)
    hard = (votes != votes[:, :1]).any(1)
    firsts, others = queries[hard][:4], torch.cat([queries[~hard][:30], queries[hard][4:10]])
    rows = torch.cat([firsts[:, None], others.view(4, BATCH_SIZE - 1, 4)], dim=1)
    return rows.view(40, 4)


def _predict(tmp_path, padding, ensemble, padding_first=False, logger=False):
    queries = _queries(ensemble)
    secret = (
        POOL.load_secret(tmp_path / "s.key") if (tmp_path / "s.key").exists() else POOL.draw_secret(tmp_path / "s.key")
    )
    with PACResponder(ensemble, secret, BUDGET, tmp_path / "responses.db") as responder:
        callbacks = [PACResponses(responder), padding]
        trainer = pl.Trainer(
            accelerator="cpu",
            logger=logger,
            enable_progress_bar=False,
            callbacks=callbacks[::-1] if padding_first else callbacks,
            default_root_dir=tmp_path,
        )
        labels = trainer.predict(ensemble, DataLoader(TensorDataset(queries), BATCH_SIZE))
        recorded = [answers.labels for answers in responder.recorded_answers()]
        return queries, labels, responder.spent, responder.num_responses, np.concatenate(recorded)


def _expected(ensemble, queries):
    votes = SubsetEnsemble.votes(ensemble, queries)
    unanimous = (votes == votes[:, :1]).all(1)
    return votes[:, 0], unanimous, BUDGET * int((~unanimous).sum())


@pytest.mark.parametrize("padding_first", [False, True])
def test_members_see_padded_batches_and_nothing_of_the_dummies_comes_out(tmp_path, padding_first):
    ensemble, noise = _Ensemble(), _Noise()
    queries, labels, spent, answers, recorded = _predict(tmp_path, DummyPadding(noise), ensemble, padding_first)
    first, unanimous, cost = _expected(ensemble, queries)
    assert ensemble.sizes == [BATCH_SIZE + draw for draw in noise.draws]
    # All four draws are 0 with probability p(0)^4, below 1e-8.
    assert max(noise.draws) > 0
    assert [len(batch) for batch in labels] == [BATCH_SIZE] * 4
    assert torch.equal(torch.cat(labels)[unanimous], first[unanimous])
    assert recorded.tolist() == torch.cat(labels).tolist()
    assert (spent, answers) == (pytest.approx(cost), 40)


def test_the_check_notices_dummies_that_are_answered(tmp_path, monkeypatch):
    release = PACResponder.release
    monkeypatch.setattr(PACResponder, "release", lambda self, inputs, num_dummies: release(self, inputs))
    ensemble = _Ensemble()
    queries, labels, spent, answers, _ = _predict(tmp_path, DummyPadding(_constant(3)), ensemble)
    assert len(torch.cat(labels)) == answers == 52
    assert spent > _expected(ensemble, queries)[2]


def _constant(value, compositions=10):
    return DPNoise([0.0] * value + [1.0], DPGuarantee(1.0, 0.1, compositions, 1, "exact"))


def test_a_batch_is_charged_before_the_members_are_asked_and_has_a_card(tmp_path):
    ensemble, padding, paid = _Ensemble(), DummyPadding(_constant(2), ledger=tmp_path / "sizes.db"), []

    def look():
        with PrivacyLedger.read_only(tmp_path / "sizes.db") as ledger:
            paid.append(ledger.spent("batch_size_releases"))

    ensemble.on_votes = look
    _predict(tmp_path, padding, ensemble)
    assert paid == [1.0, 2.0, 3.0, 4.0]
    with PrivacyLedger.read_only(tmp_path / "sizes.db") as ledger:
        (card,) = (account.card for account in ledger.accounts())
    assert card == padding.card()
    assert card.details["num_observations"] == 4
    assert card.guarantees[1].value == 1.0


def test_predicting_stops_when_the_releases_are_spent(tmp_path):
    ensemble = _Ensemble()
    with pytest.warns(UserWarning, match="stopped after 20 private answers: The noise of DummyPadding was"):
        _, labels, _, answers, _ = _predict(tmp_path, DummyPadding(_constant(2, compositions=2)), ensemble)
    assert len(torch.cat(labels)) == answers == 20
    assert ensemble.sizes == [12, 12]


def test_true_counts_are_not_logged(tmp_path):
    logger = CSVLogger(tmp_path)
    _predict(tmp_path, DummyPadding(_constant(2)), _Ensemble(), logger=logger)
    logger.save()
    assert not list(tmp_path.rglob("*privacy_card*"))
    header, *rows = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    assert sorted(header.split(",")) == ["privacy/batch_size_mean_overhead", "privacy/batch_size_releases", "step"]
    assert len(rows) == 4


def test_a_later_run_without_padding_is_not_padded(tmp_path):
    ensemble = _Ensemble()
    with PACResponder(ensemble, POOL.draw_secret(tmp_path / "s.key"), BUDGET, tmp_path / "responses.db") as responder:
        responses = PACResponses(responder)
        for callbacks in ([responses, DummyPadding(_constant(5))], [responses]):
            trainer = pl.Trainer(
                accelerator="cpu",
                logger=False,
                enable_progress_bar=False,
                callbacks=callbacks,
                default_root_dir=tmp_path,
            )
            trainer.predict(ensemble, DataLoader(TensorDataset(torch.zeros(4, 4)), 4))
    assert ensemble.sizes == [9, 4]


def test_padding_alone_cannot_hide_predictions(tmp_path):
    trainer = pl.Trainer(
        logger=False, accelerator="cpu", callbacks=[DummyPadding(_constant(1))], default_root_dir=tmp_path
    )
    with pytest.raises(MisconfigurationException, match="pads the queries of PACResponses when predicting: put both"):
        trainer.predict(_Ensemble(), DataLoader(TensorDataset(torch.zeros(4, 4)), 2))


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        (["first", "second"], "list"),
        ({"tokens": torch.zeros(3, 2), "mask": torch.zeros(4)}, "3, 4"),
        (torch.tensor(1.0), "None"),
    ],
)
def test_inputs_without_rows_are_refused(inputs, found):
    with pytest.raises(MisconfigurationException, match=f"one row for each query, and found {found}: collate"):
        check_paddable(inputs)


def test_dummies_are_copies_of_the_first_query():
    inputs = {"tokens": torch.tensor([[1, 2], [3, 4]]), "mask": torch.tensor([True, False])}
    padded = append_dummies(inputs, 2)
    assert padded["tokens"].tolist() == [[1, 2], [3, 4], [1, 2], [1, 2]]
    assert padded["mask"].tolist() == [True, False, True, True]
    assert append_dummies(inputs, 0)["mask"].tolist() == [True, False]


@pytest.mark.parametrize("num_dummies", [-1, 3, 4])
def test_a_responder_answers_at_least_one_real_query(tmp_path, num_dummies):
    votes = np.zeros((3, 8), dtype=np.int64)
    with (
        PACResponder(lambda _: votes, POOL.draw_secret(tmp_path / "s.key"), BUDGET, tmp_path / "r.db") as responder,
        pytest.raises(ValueError, match=f"less than the 3 queries, got {num_dummies}"),
    ):
        responder.release(None, num_dummies=num_dummies)
