import json
import math
import os
import shutil
import signal
import sqlite3
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lightning_pac.accountants.bounds import membership_success_bound
from lightning_pac.cards import at_most
from lightning_pac.exceptions import BudgetExceededError, LedgerError, LedgerMismatchError
from lightning_pac.ledger import PrivacyLedger, adopt_ledger, backup_ledger, restore_ledger
from lightning_pac.mechanisms import PACResponder
from lightning_pac.mechanisms.responses import card, responder_card
from lightning_pac.scenarios import BalancedSubsets, SubsetTable

POOL = BalancedSubsets(num_records=50, num_subsets=8)
BUDGET = 2**-4


class Ensemble:
    """What a `SubsetEnsemble` shows of itself."""

    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)

    def __call__(self, inputs: object) -> None:
        raise AssertionError("an ensemble is asked for its votes")


class Folder:
    """A ledger and a secret in one folder, opened as often as a test likes."""

    def __init__(self, path: Path, pool=POOL) -> None:
        self.ledger, self.key, self.pool = path / "responses.db", path / "secret.key", pool
        pool.draw_secret(self.key).path.chmod(0o600)

    def open(self, model=np.asarray, budget_per_response=BUDGET, ledger=None, **arguments) -> PACResponder:
        secret = self.pool.load_secret(self.key)
        return PACResponder(model, secret, budget_per_response, ledger=ledger or self.ledger, **arguments)

    def dump(self) -> list[str]:
        connection = sqlite3.connect(f"{self.ledger.as_uri()}?mode=ro", uri=True)
        try:
            return list(connection.iterdump())
        finally:
            connection.close()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def random_votes(count: int, num_classes: int = 3, seed: int = 0, num_secrets: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, num_classes, (count, num_secrets))


def posterior(answers, rule: str, prior: np.ndarray, secret: int | None = None) -> np.ndarray:
    """Algorithm 1 in dense linear algebra, from what the ledger recorded."""
    belief = prior.copy()
    for entry in answers:
        for outputs, value, budget in zip(entry.outputs, entry.values, entry.budgets, strict=True):
            if outputs.ndim == 1:
                classes = np.unique(outputs)
                vectors = (outputs[:, None] == classes).astype(float)
                value = value[: len(classes)]
            else:
                vectors = outputs.astype(float)
            if (vectors == vectors[0]).all():
                continue
            mean = belief @ vectors
            covariance = (vectors - mean).T @ np.diag(belief) @ (vectors - mean)
            eigenvalues, basis = np.linalg.eigh(covariance)
            kept = eigenvalues > 1e-12 * eigenvalues.max()
            eigenvalues, basis = eigenvalues[kept], basis[:, kept]
            assert rule == "linear"
            noise = np.sqrt(eigenvalues) * np.sqrt(eigenvalues).sum() / (2 * budget)
            distance = (((value - vectors) @ basis) ** 2 / noise).sum(axis=1)
            weights = np.log(belief) - distance / 2
            belief = np.exp(weights - weights.max())
            belief /= belief.sum()
    return belief


def test_answers_are_voted_labels_and_cost_what_was_asked(folder: Folder) -> None:
    votes = random_votes(30)
    votes[::3] = votes[::3, :1]
    with folder.open() as responder:
        labels = responder(votes)
        assert labels.shape == (30,)
        assert all(label in row for label, row in zip(labels, votes, strict=True))
        assert (labels[::3] == votes[::3, 0]).all()
        assert responder.spent == pytest.approx(min(20 * BUDGET, math.log(8)))
        assert isinstance(responder(votes[0]), int)
        assert responder.num_responses == 31


def test_the_belief_is_that_of_the_algorithm_done_plainly(folder: Folder) -> None:
    with folder.open(rule="linear", budget_per_response=2**-5) as responder:
        for votes in random_votes(10):
            responder(votes)
        responder(random_votes(5, seed=1), budget=[2**-6, 2**-4, 2**-5, 2**-6, 2**-3])
        scores = np.random.default_rng(2).normal(size=(3, 8, 4)).astype(np.float32)
        responder(scores)
        expected = posterior(responder.recorded_answers(), "linear", POOL.prior)
        assert responder.belief == pytest.approx(expected, rel=1e-6)
        assert responder.belief.std() > 1e-3
    with folder.open(rule="linear") as responder:
        assert responder.belief == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_reopened_belief_is_the_live_one_to_the_last_bit(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, snapshots: bool
) -> None:
    if snapshots:
        monkeypatch.setattr("lightning_pac.mechanisms.responses.responder._ANSWERS_BETWEEN_SNAPSHOTS", 8)
    live, spent = None, 0.0
    for session in range(4):
        with folder.open(budget_per_response=2**-9) as responder:
            if live is not None:
                assert (responder.belief == live).all()
                assert responder.spent == spent
            for votes in random_votes(7, seed=session):
                responder(votes)
            responder(random_votes(11, seed=100 + session))
            responder(np.random.default_rng(session).normal(size=(8, 3)))
            live, spent = responder.belief, responder.spent
    assert ('INSERT INTO "snapshots"' in "\n".join(folder.dump())) == snapshots


def test_the_cost_never_passes_the_entropy_of_the_prior(folder: Folder) -> None:
    with folder.open(budget_per_response=0.9, budget=10.0) as responder:
        for votes in random_votes(6):
            responder(votes)
        assert responder.spent == pytest.approx(math.log(8))
        spent = responder.spent
    with folder.open(budget_per_response=0.9) as responder:
        assert responder.spent == spent
        responder(random_votes(3, seed=1))
        assert responder.spent == pytest.approx(math.log(8))


def test_a_weighted_table_keeps_its_prior(tmp_path: Path) -> None:
    table = np.random.default_rng(0).random((20, 4)) < 0.5
    folder = Folder(tmp_path, SubsetTable(table, weights=[0.5, 0.25, 0.25, 0.0]))
    with folder.open() as responder:
        assert responder.belief.tolist() == [0.5, 0.25, 0.25, 0.0]
        assert responder([1, 1, 1, 2]) == 1  # the last has no say
        assert responder.spent == 0.0


def test_users_see_labels_and_auditors_everything(folder: Folder) -> None:
    with folder.open() as responder:
        release = responder.release(random_votes(5))
        assert release.labels.shape == (5,)
        assert release[0].covariance.shape == (len(release[0].classes),) * 2
        (recorded,) = responder.recorded_answers()
        assert (recorded.outputs == random_votes(5)).all()
        assert (recorded.labels == release.labels).all()
        assert np.array_equal(recorded.values, release.values, equal_nan=True)
        assert recorded.budgets.tolist() == [BUDGET] * 5


def test_a_named_request_is_answered_once(folder: Folder) -> None:
    with folder.open() as responder:
        labels = responder.release(random_votes(3), requests=["a", None, "c"]).labels
    with folder.open() as responder:
        before = folder.dump()
        assert (responder.recorded_answer("a"), responder.recorded_answer("c")) == (labels[0], labels[2])
        assert responder.recorded_answer("b") is None
        for requests in (["d", "a"], ["d", "d"]):
            with pytest.raises(ValueError, match="A request is answered once"):
                responder.release(random_votes(2), requests=requests)
        with pytest.raises(ValueError, match="2 answers and 1 requests"):
            responder.release(random_votes(2), requests=["d"])
        assert folder.dump() == before


def test_a_batch_is_one_transaction(folder: Folder) -> None:
    with folder.open() as responder:
        responder(random_votes(40))
        rows = sqlite3.connect(folder.ledger).execute("SELECT sequence, num_answers FROM entries").fetchall()
        assert rows == [(1, 40)]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (np.full((8, 3), np.nan), "not finite"),
        (np.full((2, 8, 3), np.inf), "not finite"),
        (np.zeros((0, 8), int), "batch is empty"),
        (np.zeros((8, 1)), r"one column \(d = 1\)"),
        (np.zeros((2, 7), int), "8 secrets need 8 votes"),
        (np.zeros((7, 3)), "8 secrets need 8 rows"),
        (np.full(8, -1), "labels must not be negative"),
        (np.zeros(8), "Scores must have shape"),
        (np.array(["a"] * 8), "integer labels or real scores"),
        (np.zeros((1, 1, 8), int), "Labels must have shape"),
    ],
)
def test_outputs_that_do_not_fit_change_nothing(folder: Folder, outputs: np.ndarray, message: str) -> None:
    with folder.open() as responder:
        responder(random_votes(3))
        before, belief = folder.dump(), responder.belief
        with pytest.raises(ValueError, match=message):
            responder(outputs)
        assert folder.dump() == before
        assert (responder.belief == belief).all()


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, math.inf])
def test_a_budget_that_is_none_is_refused(folder: Folder, budget: float) -> None:
    for arguments in ({"budget_per_response": budget}, {"budget": budget}):
        with pytest.raises(ValueError, match=r"^budget(_per_response)? is "):
            folder.open(**arguments)
    with folder.open() as responder:
        before = folder.dump()
        for budgets in (budget, [BUDGET, budget, BUDGET]):
            with pytest.raises(ValueError, match="must be positive and finite"):
                responder(random_votes(3), budget=budgets)
        assert folder.dump() == before


def test_a_query_past_the_budget_is_refused_before_the_model_is_asked(folder: Folder) -> None:
    asked = []

    def model(votes):
        asked.append(len(votes))
        return votes

    disagreeing = np.tile(np.arange(8), (5, 1))
    with folder.open(model, budget=3.5 * BUDGET) as responder:
        responder(disagreeing[:2])
        before, belief = folder.dump(), responder.belief
        with pytest.raises(BudgetExceededError, match="would exceed the budget of account 'responses'"):
            responder(disagreeing[:2])
        assert (folder.dump(), responder.belief.tolist()) == (before, belief.tolist())
        responder(disagreeing[0])
        asked.clear()
        with pytest.raises(BudgetExceededError):
            responder(disagreeing[0])
        assert asked == []
        assert responder(disagreeing[0], budget=BUDGET / 2) in range(8)


def test_the_total_of_the_ledger_holds_for_the_responder(folder: Folder) -> None:
    with PrivacyLedger(folder.ledger, budget={"mutual_information": 0.1}) as ledger:
        ledger.account("clusters").charge(0.05)
        with folder.open(ledger=ledger, budget_per_response=0.04) as responder:
            responder([0, 1] * 4)
            with pytest.raises(BudgetExceededError, match="budget of the ledger"):
                responder([0, 1] * 4)
        assert not ledger.closed


def test_a_full_disk_withholds_the_answer_and_changes_nothing(folder: Folder) -> None:
    with folder.open() as responder:
        responder(random_votes(3))
        before, belief = folder.dump(), responder.belief
        connection = responder.ledger.storage._connection
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(LedgerError, match="the disk is full: nothing was charged"):
            responder(random_votes(5000, seed=1))
        assert (folder.dump(), responder.belief.tolist()) == (before, belief.tolist())
        connection.execute("PRAGMA max_page_count = 100000")
        responder(random_votes(5000, seed=1))
        belief = responder.belief
    with folder.open() as responder:
        assert (responder.belief == belief).all()


def test_an_interrupt_leaves_belief_and_ledger_in_step(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    with folder.open() as responder:
        responder(random_votes(3))
        belief = responder.belief
        account = responder._account

        def interrupt(*arguments: object) -> float:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(account, "add", interrupt)
            with pytest.raises(KeyboardInterrupt):
                responder(random_votes(3, seed=1))
        assert (responder.belief == belief).all()
        with monkeypatch.context() as patch:
            # The entry is committed, but its mark is not: the answer is paid for and withheld.
            patch.setattr(responder._transcript._mark, "advance", interrupt)
            with pytest.raises(KeyboardInterrupt):
                responder(random_votes(3, seed=1))
        assert (responder.belief != belief).any()
        assert responder.num_responses == 6
        responder(random_votes(3, seed=2))
        belief = responder.belief
    with folder.open() as responder:
        assert (responder.belief == belief).all()
        assert responder.num_responses == 9


def test_without_the_commit_an_answer_would_escape_the_ledger(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    with folder.open() as responder:
        monkeypatch.setattr(responder._transcript, "append", lambda *arguments: None)
        responder(random_votes(3))
        belief = responder.belief
    with folder.open() as responder:
        assert (responder.belief != belief).any()


def test_one_responder_a_secret(folder: Folder, tmp_path: Path) -> None:
    with folder.open() as responder:
        with pytest.raises(LedgerError, match="already open for writing in this process"):
            folder.open()
        with pytest.raises(LedgerError, match=r"secret\.key is already open .*: close the responder"):
            folder.open(ledger=responder.ledger)
        with pytest.raises(LedgerMismatchError, match=r"Account 'responses' .* already answers about this table"):
            folder.open(ledger=responder.ledger, account="again")
        second = POOL.draw_secret(tmp_path / "second.key")
        with pytest.raises(LedgerMismatchError, match="holds the answers of another secret"):
            PACResponder(np.asarray, second, BUDGET, responder.ledger)
        assert responder(random_votes(1)[0]) in range(3)
    with pytest.raises(LedgerMismatchError, match="answers through another ledger"):
        folder.open(ledger=tmp_path / "new.db")


def test_an_entry_of_another_writer_ends_the_answers(folder: Folder) -> None:
    # As when both lock files were deleted under a live responder: its belief would lack the other one's answer.
    with folder.open() as responder:
        responder(np.arange(8))
        connection = sqlite3.connect(folder.ledger)
        connection.execute("INSERT INTO entries SELECT account, 2, num_answers, cost, payload, X'00' FROM entries")
        connection.commit()
        connection.close()
        before = responder.belief
        for _ in range(2):
            with pytest.raises(LedgerError):
                responder(np.arange(8))
            assert (responder.belief == before).all()


def test_a_closed_responder_answers_nothing(folder: Folder) -> None:
    with PrivacyLedger(folder.ledger) as ledger:
        responder = folder.open(ledger=ledger)
        responder.close()
        before = folder.dump()
        with pytest.raises(LedgerError, match="is closed: open it again"):
            responder(random_votes(1))
        assert folder.dump() == before


def test_a_ledger_or_a_model_of_another_pool_is_refused(folder: Folder, tmp_path: Path) -> None:
    folder.open().close()
    other = BalancedSubsets(num_records=51, num_subsets=8)
    secret = other.draw_secret(tmp_path / "other.key")
    before = folder.dump()
    with pytest.raises(LedgerMismatchError, match="table"):
        PACResponder(np.asarray, secret, BUDGET, folder.ledger)
    with pytest.raises(LedgerMismatchError, match=r"rule \(.logdet., now .linear.\)"):
        folder.open(rule="linear")
    assert folder.dump() == before
    model = Ensemble(pool=other, votes=np.asarray)
    with pytest.raises(LedgerMismatchError, match="draw the secret from the model's own pool"):
        folder.open(model)
    incomplete = Ensemble(pool=POOL, votes=np.asarray, members=(0, 1, 2))
    with pytest.raises(ValueError, match="3 of 8 members"):
        folder.open(incomplete)


def test_a_copy_is_refused_until_it_is_adopted(folder: Folder, tmp_path: Path) -> None:
    with folder.open() as responder:
        responder(random_votes(3))
        belief = responder.belief
    copy = tmp_path / "copy.db"
    shutil.copy(folder.ledger, copy)
    with pytest.raises(LedgerError, match=r"was copied, restored or moved .*lightning-pac account adopt"):
        folder.open(ledger=copy)
    shutil.copy(folder.ledger, folder.ledger.with_name("restored"))
    folder.ledger.with_name("restored").replace(folder.ledger)  # the same path, another file
    with pytest.raises(LedgerError, match="was copied, restored or moved"):
        folder.open()
    with PrivacyLedger(copy) as ledger:
        assert adopt_ledger(ledger) == ("responses",)
    with folder.open(ledger=copy) as responder:
        assert (responder.belief == belief).all()
        responder(random_votes(1))
    with PrivacyLedger(folder.ledger) as ledger:
        adopt_ledger(ledger)
    with pytest.raises(LedgerError, match="was rolled back"):
        folder.open()  # the copy that went on is ahead


def test_a_ledger_that_was_rolled_back_is_refused(folder: Folder) -> None:
    with folder.open() as responder:
        responder(random_votes(3))
    marks = folder.ledger.with_name("responses.db-mark")
    backup, known = folder.ledger.read_bytes(), marks.read_bytes()
    with folder.open() as responder:
        responder(random_votes(1))
    newest, newest_known = folder.ledger.read_bytes(), marks.read_bytes()
    folder.ledger.write_bytes(backup)  # in place, so that path and inode stay
    with pytest.raises(LedgerError, match=r"was rolled back: account 'responses' has 3 charges .* knows of 4"):
        folder.open()
    marks.write_bytes(known)  # even if the ledger's own marks are as old, the secret file knows
    with pytest.raises(LedgerError, match=r"was rolled back: it has 1 entries and .* knows of 2"):
        folder.open()
    folder.ledger.write_bytes(newest)
    marks.write_bytes(newest_known)
    folder.open().close()
    folder.ledger.unlink()
    with pytest.raises(LedgerError, match=r"holds nothing, but .* knows of 1 accounts"):
        folder.open()
    folder.ledger.unlink(missing_ok=True)
    marks.unlink()
    with pytest.raises(LedgerMismatchError, match="a ledger that was deleted cannot be replaced"):
        folder.open()


def test_a_ledger_one_entry_ahead_of_the_mark_is_an_honest_crash(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    responder = folder.open()
    responder(random_votes(3))
    monkeypatch.setattr(responder._transcript._mark, "advance", lambda sequence: None)
    responder(random_votes(2))
    belief = responder.belief
    responder.close()
    with folder.open() as responder:
        assert (responder.belief == belief).all()
    assert json.loads(folder.key.read_text())["high_water_mark"] == 2


def test_restoring_ledger_and_secret_together_cannot_be_told(folder: Folder) -> None:
    with folder.open() as responder:
        responder(random_votes(3))
    marks = folder.ledger.with_name("responses.db-mark")
    backup = folder.ledger.read_bytes(), folder.key.read_bytes(), marks.read_bytes()
    with folder.open() as responder:
        responder(random_votes(3))
    folder.ledger.write_bytes(backup[0])
    folder.key.write_bytes(backup[1])
    marks.write_bytes(backup[2])
    with folder.open() as responder:
        assert responder.num_responses == 3
        assert "restored together" in responder.card().to_markdown()


TAMPERINGS = [
    ("UPDATE entries SET cost = 0 WHERE sequence = 2", "the total"),
    ("UPDATE entries SET payload = (SELECT payload FROM entries WHERE sequence = 1) WHERE sequence = 2", "entry 2"),
    ("DELETE FROM entries WHERE sequence = 2", "the total"),
    ("UPDATE entries SET cost = 1 - sequence % 2 WHERE sequence > 1", "the total"),
    ("UPDATE entries SET sequence = 4 WHERE sequence = 3", "entry 3"),
    ("UPDATE accounts SET spent = 0", "the total"),
    ("UPDATE snapshots SET state = zeroblob(length(state))", "its snapshot"),
    ("UPDATE snapshots SET spent = 0", "the total"),
]


@pytest.mark.parametrize(("statement", "what"), TAMPERINGS)
def test_another_hand_is_noticed(folder: Folder, monkeypatch: pytest.MonkeyPatch, statement: str, what: str) -> None:
    if "snapshots" in statement:
        monkeypatch.setattr("lightning_pac.mechanisms.responses.responder._ANSWERS_BETWEEN_SNAPSHOTS", 8)
    with folder.open(budget_per_response=2**-9) as responder:
        for seed in range(3):
            responder(random_votes(4, seed=seed))
    folder.open().close()
    connection = sqlite3.connect(folder.ledger)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match=f"was changed by another hand .*{what}|rolled back"):
        folder.open()


def test_the_secret_file_keeps_its_mode_and_its_content(folder: Folder) -> None:
    before = json.loads(folder.key.read_text())
    with folder.open() as responder:
        for votes in random_votes(3):
            responder(votes)
    after = json.loads(folder.key.read_text())
    assert stat.S_IMODE(folder.key.stat().st_mode) == 0o600
    assert after.pop("high_water_mark") == 3
    assert len(after.pop("ledger")) == 32
    before.pop("high_water_mark")
    assert after == before
    folder.key.write_text("{}")
    with pytest.raises(LedgerError, match="is damaged or not a secret file"):
        folder.open()


def test_threads_are_answered_one_after_the_other(folder: Folder) -> None:
    with folder.open(budget_per_response=2**-9) as responder:
        threads = [
            threading.Thread(target=lambda seed=seed: [responder(v) for v in random_votes(20, seed=seed)])
            for seed in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        belief = responder.belief
        assert responder.num_responses == 100
    with folder.open() as responder:
        assert (responder.belief == belief).all()


def test_a_torch_module_answers_in_evaluation_mode(folder: Folder) -> None:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = torch.nn.Dropout(0.5)
            self.frozen = torch.nn.BatchNorm1d(3).eval()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            assert not self.training
            assert not self.dropout.training
            return self.dropout(inputs).to(torch.bfloat16)

    model = Model().train()
    model.frozen.eval()
    with folder.open(model) as responder:
        scores = torch.zeros(2, 8, 3)
        scores[..., 1] = 1.0
        assert responder(scores).tolist() == [1, 1]
        assert responder.spent == 0.0
    assert model.training
    assert model.dropout.training
    assert not model.frozen.training


def test_the_card_states_the_bound_of_what_was_spent(folder: Folder) -> None:
    with folder.open(budget_per_response=2**-8) as responder:
        assert responder.card().guarantees[0].value == 0.5
        responder(np.tile(np.arange(8), (16, 1)))
        assert responder.spent == 2**-4
        card = responder.card()
        assert card.guarantees[0].value == pytest.approx(0.67491, abs=5e-6)  # the check point of 2^-4 nats
        assert responder.membership_success_bound == card.guarantees[0].value
        assert "67.5 %" in card.to_markdown()  # rounded up, since it is a promise


@pytest.mark.parametrize("earlier", [False, True])
def test_a_prior_is_declared_no_lower_than_it_is(
    tmp_path: Path, earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SubsetTable([[True, False, False], [False, True, False], [False, False, True]])
    folder = Folder(tmp_path, table)
    with monkeypatch.context() as patched:
        if earlier:  # as version 0.1.0 declared it
            patched.setattr(
                card,
                "declare_space",
                lambda space, rule: {
                    "table": space.table_hash,
                    "num_records": 3,
                    "num_secrets": 3,
                    "membership_prior": 0.666666667,
                    "index_prior": 0.333333333,
                    "rule": rule,
                },
            )
        folder.open().close()
    with folder.open() as responder:
        figures = {figure.name: figure.value for figure in responder.card().guarantees}
    assert 2 / 3 <= figures["membership_success_bound"] < 2 / 3 + 2e-9
    assert 1 / 3 <= figures["index_success_bound"] < 1 / 3 + 2e-9


def test_the_card_says_whom_the_bounds_do_not_speak_of(folder: Folder) -> None:
    with folder.open() as responder:
        conditions = " ".join(responder.card().conditions)
    assert "and nobody's membership" in conditions
    assert "Someone who knows of about 3 records" in conditions


@pytest.mark.parametrize("budget", [None, 0.5])
def test_the_card_says_what_holds_where_answers_decide_how_many_there_are(folder: Folder, budget: float | None) -> None:
    with folder.open(budget=budget) as responder:
        responder(np.array([0, 1, 1, 0, 1, 0, 1, 0]))
        conditions, so_far = " ".join(responder.card().conditions), responder.membership_success_bound
    if budget is None:
        assert "only a budget of the ledger bounds what they tell" in conditions
    else:
        most = membership_success_bound(budget, 0.5)
        assert so_far < most
        assert f"told correctly at most {at_most(most)} of the time" in conditions


def test_the_card_speaks_of_the_largest_budget_that_stood(folder: Folder) -> None:
    with folder.open(budget=0.5) as responder:
        responder(np.array([0, 1, 1, 0, 1, 0, 1, 0]))
    for amount, words in ((0.2, "largest budget so far hold: "), (0.6, "so far hold if no answer would have raised")):
        with PrivacyLedger(folder.ledger) as ledger:
            ledger.accounts()[0].set_budget(amount)
            conditions = " ".join(responder_card(ledger.accounts()[0]).conditions)
        most = membership_success_bound(max(amount, 0.5), 0.5)
        assert words in conditions
        assert f"told correctly at most {at_most(most)} of the time" in conditions


def test_the_card_speaks_of_no_budget_where_a_backup_forgot_larger_ones(folder: Folder, tmp_path: Path) -> None:
    with PrivacyLedger(folder.ledger) as ledger:
        account = ledger.account("responses", "mutual_information", budget=0.5)
        backup_ledger(folder.ledger, tmp_path / "backup.db")
        account.set_budget(2.0)
    with pytest.warns(UserWarning, match="set after the backup are not in it"):
        restore_ledger(folder.ledger, {"responses": 0.0}, tmp_path / "backup.db")
    with PrivacyLedger.read_only(folder.ledger) as ledger:
        (account,) = ledger.accounts()
        assert account.budget == 0.5
        assert "told correctly at most 100 % of the time" in card._on_asking_on(account, 0.5)


def test_bounds_for_the_answers_given_fail_where_answers_end_them() -> None:
    """A made attacker stops once the likelihood ratio is decisive; false alarm rate below 1e-6."""
    generator, num_runs, shift, most = np.random.default_rng(0), 200_000, 0.25, 64
    grid = np.linspace(-12, 12, 20_001)
    density = (stats.norm.pdf(grid) + stats.norm.pdf(grid - shift)) / 2
    each = -np.sum(density * np.log(density)) * (grid[1] - grid[0]) - 0.5 * math.log(2 * math.pi * math.e)
    world = generator.integers(0, 2, num_runs)
    noise = generator.standard_normal((num_runs, most))
    ratios = np.cumsum(shift * (shift * world[:, None] + noise) - shift**2 / 2, axis=1)
    decisive = np.abs(ratios) > 1.0
    ends = np.where(decisive.any(axis=1), decisive.argmax(axis=1), most - 1)
    right = np.mean((ratios[np.arange(num_runs), ends] > 0) == world)
    given = np.array([membership_success_bound(each * (number + 1), 0.5) for number in range(most)])
    assert right > given[ends].mean() + 5 / math.sqrt(4 * num_runs)
    assert right < given[-1], "the budget's"


def test_a_record_in_every_subset_has_no_membership_to_hide(tmp_path: Path) -> None:
    table = SubsetTable([[True, True, True], [True, False, False], [False, True, False]])
    with Folder(tmp_path, table).open() as responder:
        responder(np.array([0, 1, 1]))
        assert responder.membership_success_bound == 1.0
        assert "their membership is no secret" in " ".join(responder.card().conditions)


def test_members_in_another_order_than_the_table_are_refused(tmp_path: Path) -> None:
    # The index of weight 0.9 would name the model of the subset of weight 0.1, and the stated prior would be wrong.
    table = SubsetTable([[True, False], [True, True]], weights=[0.9, 0.1])
    swapped = Ensemble(pool=table, votes=np.asarray, members=(1, 0))
    with pytest.raises(ValueError, match="not in the order of the table"):
        Folder(tmp_path, table).open(swapped)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_in_mid_answer_is_refused_at_once(tmp_path):
    """The thread that holds the locks of responder and ledger is not there to give them back."""
    asked, forked = threading.Event(), threading.Event()

    def answer_slowly(votes):
        with responder.ledger.storage.transaction():
            asked.set()
            forked.wait(30)
        return votes

    folder = Folder(tmp_path)
    with folder.open(answer_slowly) as responder:
        thread = threading.Thread(target=responder, args=(np.arange(8) % 2,))
        thread.start()
        asked.wait(30)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                responder(np.arange(8) % 2)
            except LedgerError:
                responder.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        forked.set()
        thread.join()
        assert responder.num_responses == 1


@pytest.mark.parametrize("outputs", [[[1.0], [1.0, 2.0]], np.ones((8, 2), np.longdouble)], ids=["ragged", "long"])
def test_outputs_that_are_no_array_of_numbers_are_refused_in_a_sentence(tmp_path, outputs):
    with Folder(tmp_path).open(lambda _: outputs) as responder:
        with pytest.raises(ValueError, match=r"^The model (must return|returned)"):
            responder(0)
        assert responder.num_responses == 0
