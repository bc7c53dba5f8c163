"""Marks at a witness elsewhere: named with a path, in any way, and never overwritten by less than they know."""

import copy
import pickle
import shutil
from pathlib import Path

import pytest

from lightning_pac.exceptions import LedgerError
from lightning_pac.ledger import LedgerHandle, PrivacyLedger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "ledger").mkdir()
    return tmp_path / "ledger" / "study.db"


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere" / "study.mark"


def charge(path: Path, witness: Path | None = None) -> None:
    with LedgerHandle(path, witness) as ledger:
        ledger.account("fit", "rpp").charge(0.5)


def snapshot(path: Path) -> Path:
    kept = path.parent.with_name("snapshot")
    shutil.copytree(path.parent, kept)
    return kept


def put_back(kept: Path, path: Path) -> None:
    # In place, as a snapshot of a disk does: devices and inodes are those of before.
    for file in path.parent.iterdir():
        if not (kept / file.name).exists():
            file.unlink()
        else:
            file.write_bytes((kept / file.name).read_bytes())


def test_a_ledger_put_back_with_its_old_marks_is_found_by_the_witness_that_is_named_again(
    path: Path, witness: Path
) -> None:
    """The marks put back name no witness, so naming it anew must read it, and not write over what it knows."""
    charge(path)
    kept = snapshot(path)
    charge(path, witness)
    charge(path, witness)
    known = witness.read_bytes()
    put_back(kept, path)
    with pytest.raises(LedgerError, match=r"was rolled back: .* has 1 charges .*study\.mark knows of 3"):
        charge(path, witness)
    assert witness.read_bytes() == known


def test_a_new_ledger_does_not_take_over_the_witness_of_one_that_is_gone(path: Path, witness: Path) -> None:
    charge(path, witness)
    known = witness.read_bytes()
    shutil.rmtree(path.parent)
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"was replaced: .*study\.mark knows another ledger"):
            charge(path, witness)
    assert witness.read_bytes() == known


def test_a_file_that_holds_anything_else_is_no_witness(path: Path, tmp_path: Path) -> None:
    charge(path)
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "empty").touch()
    for other in (tmp_path / "thesis.tex", tmp_path / "empty", path):
        content = other.read_bytes()
        with pytest.raises(LedgerError, match=r"is no file of marks or is damaged"):
            charge(path, other)
        assert other.read_bytes() == content
    charge(path)


def test_marks_can_come_back_beside_the_ledger(path: Path, witness: Path) -> None:
    charge(path, witness)
    charge(path, path.with_name("study.db-mark"))
    witness.unlink()
    charge(path)
    with PrivacyLedger.read_only(path) as ledger:
        assert ledger.spent("rpp") == 1.5


def test_a_handle_carries_its_witness(path: Path, witness: Path) -> None:
    handle = LedgerHandle(LedgerHandle(path, witness))
    for carried in (pickle.loads(pickle.dumps(handle)), copy.deepcopy(handle)):
        assert (carried.path, carried.witness) == (path, witness)
    with handle as ledger, LedgerHandle(path, witness) as shared:
        assert shared is ledger
        with pytest.raises(ValueError, match=r"^witness is for the path of a ledger"):
            LedgerHandle(ledger, witness)
    assert witness.exists()


def test_a_ledger_that_is_open_already_is_given_the_witness_of_the_next_who_names_one(
    path: Path, witness: Path
) -> None:
    with LedgerHandle(path) as ledger, LedgerHandle(path, witness):
        ledger.account("fit", "rpp").charge(0.5)
    assert b"fit" in witness.read_bytes()


def test_every_file_of_a_ledger_may_be_named_by_a_configuration(path: Path, witness: Path) -> None:
    from jsonargparse import ArgumentParser

    from lightning_pac.callbacks import SRPPSGD

    parser = ArgumentParser()
    parser.add_class_arguments(SRPPSGD, "private")
    handle = {
        "class_path": "lightning_pac.ledger.LedgerHandle",
        "init_args": {"given": str(path), "witness": str(witness)},
    }
    scenario = {"class_path": "lightning_pac.scenarios.TwoWorldScenario", "init_args": {"num_differing": 1}}
    config = parser.parse_object(
        {"private": {"scenario": scenario, "epsilon": 1.0, "renyi_order": 4.0, "ledger": handle}}
    )
    private = parser.instantiate(config).private
    with LedgerHandle(private.arguments.ledger) as ledger:
        ledger.account("fit", "rpp").charge(0.5)
    assert b"fit" in witness.read_bytes()


@pytest.mark.parametrize("former", ["emptied", "another database"])
def test_a_file_that_is_there_and_holds_nothing_is_no_new_ledger(path: Path, former: str) -> None:
    """Ledgers of format 1 have no marks that could tell that they were emptied."""
    if former == "emptied":
        path.touch()
    else:
        import sqlite3

        sqlite3.connect(path).execute("VACUUM").connection.close()
    with pytest.raises(LedgerError, match=r"may be a ledger that was emptied: put it back .* or remove it"):
        charge(path)
    path.unlink()
    charge(path)


@pytest.mark.parametrize("moment", ["marks", "file"])
def test_a_kill_while_a_ledger_is_made_leaves_none_that_is_refused(
    path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as context:
        if moment == "marks":
            context.setattr("lightning_pac.ledger.storage.AccountMarks.write", kill)
        else:
            context.setattr("lightning_pac.ledger.storage.create_schema", kill)
        with pytest.raises(Killed):
            charge(path)
    charge(path)
