import json
import multiprocessing
import os
import stat
import threading
from pathlib import Path

import pytest
from prepared import Child, prepared_context

from lightning_pac import cli
from lightning_pac.ledger import KEY_CURRENCY, PrivacyLedger, backup_ledger, restore_ledger
from lightning_pac.serve import APIKeys, build_server, serve


def test_the_file_holds_hashes_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    text = APIKeys(path).add("alice", 1e-6)
    assert text not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keys = APIKeys(path)
    assert keys.find(text) == next(iter(keys))
    assert keys.find(text[:-1]) is None
    assert keys.find(next(iter(keys)).sha256) is None
    keys.remove("alice")
    assert APIKeys(path).find(text) is None


@pytest.mark.parametrize(
    ("name", "budget", "message"),
    [
        ("a b", None, "1 to 64 letters"),
        ("", None, "1 to 64 letters"),
        ("é", None, "1 to 64 letters"),
        ("alice", -1.0, "budget is -1.0, but must be finite and not negative"),
        ("alice", float("nan"), "budget is nan"),
        ("bob", None, "has a key 'bob' already"),
    ],
)
def test_keys_that_cannot_be(tmp_path: Path, name: str, budget: float | None, message: str) -> None:
    keys = APIKeys(tmp_path / "keys.json")
    keys.add("bob")
    before = keys.path.read_text()
    with pytest.raises(ValueError, match=message):
        keys.add(name, budget)
    assert keys.path.read_text() == before


def test_a_file_that_holds_no_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    alice = json.dumps({"name": "alice", "sha256": 64 * "0"})
    for text in (
        "{",
        "[1]",
        '{"name": "alice"}',
        "{}",
        '[{"name": "alice"}]',
        '[{"name": "alice", "sha256": 5}]',
        '[{"name": "alice", "sha256": ""}]',
        f"[{alice}, {alice}]",
        "[" * 10_000,
        "\0",
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match="is not a file of API keys"):
            APIKeys(path)
        assert path.read_text() == text
    assert not (tmp_path / "keys.json.lock").exists()


def test_a_flipped_bit_gives_nobody_another_name_or_budget(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = APIKeys(path)
    keys.add("alice", 0.25)
    keys.add("bob")
    whole = path.read_bytes()
    for position in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            found = {key.name: key.budget for key in APIKeys(path)}
        except ValueError:
            continue
        assert found == {"alice": 0.25, "bob": None}
    # As earlier versions wrote it.
    path.write_text(json.dumps([{"name": "alice", "sha256": 64 * "0", "budget": 0.5}]))
    assert [key.budget for key in APIKeys(path)] == [0.5]


def test_what_others_may_change_and_what_is_no_file_hold_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    APIKeys(path).add("alice")
    path.chmod(0o620)
    with pytest.raises(ValueError, match="may be changed by other users"):
        APIKeys(path)
    path.chmod(0o640)
    assert APIKeys(path).find("\ud800") is None
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match="is a folder, a device or a pipe"):
            APIKeys(name)


def test_the_command_prints_a_key_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "keys.json")
    assert cli.main(["keys", "add", path, "alice", "--budget", "1e-6"]) == 0
    text = capsys.readouterr().out.strip()
    assert cli.main(["keys", "add", path, "bob", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] != text
    assert cli.main(["keys", "list", path, "--json"]) == 0
    listed = capsys.readouterr().out
    assert json.loads(listed) == [{"name": "alice", "budget": 1e-6}, {"name": "bob", "budget": None}]
    assert cli.main(["keys", "list", path]) == 0
    assert text not in listed + capsys.readouterr().out
    assert APIKeys(path).find(text).name == "alice"
    assert cli.main(["keys", "remove", path, "alice"]) == 0
    assert APIKeys(path).find(text) is None
    assert cli.main(["keys", "remove", path, "alice"]) == 1
    assert "name is 'alice', and" in capsys.readouterr().err
    for words in (["keys", "add", path], ["keys", "list", path, "bob"]):
        with pytest.raises(SystemExit, match="2"):
            cli.main(words)


def test_a_change_by_another_process_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys, other = APIKeys(path), APIKeys(path)
    text = other.add("alice")
    assert keys.find(text) is None
    keys.refresh()
    assert keys.find(text).name == "alice"
    other.set_budget("alice", 1e-6)
    keys.refresh()
    assert keys.find(text).budget == 1e-6
    other.remove("alice")
    keys.refresh()
    assert keys.find(text) is None
    text = other.add("alice")
    keys.refresh()
    path.unlink()
    keys.refresh()
    assert keys.find(text) is None


def test_what_a_key_had_spent_is_booked_to_it_where_a_restored_ledger_lacks_it(tmp_path: Path) -> None:
    """It came back as an account of another kind, which the server then refused for good."""
    ledger, older = tmp_path / "responses.db", tmp_path / "older.db"
    declared = ("key alice", KEY_CURRENCY, {"api_key": "alice"})
    with PrivacyLedger(ledger) as opened:
        opened.account("responses")
        backup_ledger(ledger, older)
        opened.account(*declared, kind="api_key").charge(5e-7)
    assert restore_ledger(ledger, {}, older, otherwise=1e-6) == {"key alice": 1e-6, "responses": 1e-6}
    with PrivacyLedger(ledger) as opened:
        account = opened.account(*declared, kind="api_key")
        assert (account.api_key, account.spent) == ("alice", 1e-6)


def test_the_command_changes_a_budget_and_lists_what_was_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ledger = str(tmp_path / "keys.json"), str(tmp_path / "responses.db")
    for name in ("alice", "bob"):
        assert cli.main(["keys", "add", path, name, "--budget", "1e-6"]) == 0
    text = capsys.readouterr().out.split()[0]
    with PrivacyLedger(ledger) as opened:
        opened.account("key alice", KEY_CURRENCY, {"api_key": "alice"}, kind="api_key").charge_many([5e-7, 0.0])
        opened.account("responses").charge(5e-7)
    assert cli.main(["keys", "budget", path, "alice", "--budget", "2e-6"]) == 0
    assert "The budget of alice was 1e-06 nats and is 2e-06 nats" in capsys.readouterr().out
    assert APIKeys(path).find(text).budget == 2e-6
    assert cli.main(["keys", "list", path, "--ledger", ledger, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "alice", "budget": 2e-6, "answers": 2, "spent": 5e-7, "left": 1.5e-6},
        {"name": "bob", "budget": 1e-6, "answers": 0, "spent": 0.0, "left": 1e-6},
    ]
    for words, message in (
        (["budget", path, "carol", "--budget", "1"], "name is 'carol', and"),
        (["budget", path, "bob", "--budget", "-1"], "budget is -1.0, but must be finite and not negative"),
        (["list", path, "--ledger", path + "x"], "There is no ledger at"),
        (["list", path + "x"], "There is no file"),
        (["remove", path + "x", "bob"], "There is no file"),
    ):
        assert cli.main(["keys", *words]) == 1
        assert message in capsys.readouterr().err
    for words in (
        ["budget", path, "bob"],
        ["remove", path, "bob", "--budget", "1"],
        ["add", path, "c", "--ledger", "x"],
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["keys", *words])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "everybody who reaches this machine could spend the budget"),
        ({"host": "example.org"}, "host must be one of"),
        ({"rate_limit": "often"}, "rate_limit must read like '100/second'"),
        ({"max_batch_size": 0}, "max_batch_size is 0, but must be at least 1"),
        ({"max_request_bytes": 0}, "max_request_bytes is 0, but must be at least 1"),
        ({"keys": "nobody.json"}, "keys is nobody.json, which has none: add one by"),
    ],
)
def test_servers_that_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_server(print, "responses.db", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ledger": 3}, "ledger is 3, but must be a string or a Path"),
        ({"port": "8000"}, "port is '8000', but must be an integer"),
        ({"port": 80}, "port must lie in 1024"),
        ({"log_level": 3}, "log_level is 3, but must be a string"),
        ({"announce": None}, "announce is None, but must be a function"),
        ({"max_batch_size": 0}, "max_batch_size is 0, but must be at least 1"),
    ],
)
def test_a_server_that_is_refused_does_not_start(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        serve(print, **{"ledger": tmp_path / "responses.db", **options})
    assert not list(tmp_path.iterdir())


def change_keys(path: Path, me: str, all_have_read: "multiprocessing.synchronize.Barrier") -> None:
    old = APIKeys(path)
    all_have_read.wait(60)
    for number in range(10):
        keys = old if number % 2 else APIKeys(path)
        keys.add(f"{me}-{number}")
        keys.add(f"{me}-gone-{number}")
        keys.set_budget(f"{me}-{number}", number)
        keys.remove(f"{me}-gone-{number}")


def test_changes_by_several_processes_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    APIKeys(path).add("first")
    all_have_read = prepared_context().Barrier(4)
    writers = [Child(change_keys, path, f"w{number}", all_have_read) for number in range(4)]
    assert [writer.finish() for writer in writers] == [b""] * 4
    assert [writer.poll() for writer in writers] == [0] * 4
    kept = {key.name: key.budget for key in APIKeys(path)}
    assert kept == {"first": None} | {f"w{writer}-{number}": number for writer in range(4) for number in range(10)}
    assert not list(tmp_path.glob("*.partial"))


def test_an_object_that_read_the_file_earlier_brings_nothing_back(tmp_path: Path) -> None:
    early, other = APIKeys(tmp_path / "keys.json"), APIKeys(tmp_path / "keys.json")
    text = early.add("alice")
    other.refresh()
    other.remove("alice")
    early.add("bob")
    assert APIKeys(early.path).find(text) is None
    assert early.find(text) is None
    other.set_budget("bob", 1.0)
    with pytest.raises(ValueError, match=r"name is 'alice', and .* has bob"):
        early.remove("alice")


def test_a_server_that_refreshes_in_several_threads_never_finds_a_removed_key(tmp_path: Path) -> None:
    keys, served = APIKeys(tmp_path / "keys.json"), APIKeys(tmp_path / "keys.json")
    wrong, done = [], threading.Event()
    removed: list[str] = []

    def ask() -> None:
        while not done.is_set():
            gone = list(removed)
            served.refresh()
            wrong.extend(text for text in gone[-3:] if served.find(text) is not None)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(60):  # of one size, and within one tick of the clock of many file systems
        text = keys.add("alice")
        keys.remove("alice")
        removed.append(text)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_two_files_of_one_size_and_one_time_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, served = APIKeys(tmp_path / "keys.json"), APIKeys(tmp_path / "keys.json")
    text = keys.add("alice")
    monkeypatch.setattr("lightning_pac.serve.api_keys._stamp", lambda path: (1, 2**62, 2**62, 3))
    served.refresh()
    assert served.find(text) is not None
    keys.remove("alice")
    served.refresh()
    assert served.find(text) is None


def test_a_full_disk_leaves_the_keys_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = APIKeys(tmp_path / "keys.json")
    text = keys.add("alice")
    before = keys.path.read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keys.remove("alice")
    assert keys.path.read_text() == before
    assert keys.find(text) is not None
    assert not list(tmp_path.glob("*.partial"))
    assert not list(tmp_path.glob(".*.partial"))


def test_a_link_is_followed_and_a_second_name_is_refused(tmp_path: Path) -> None:
    path, link = tmp_path / "keys.json", tmp_path / "link.json"
    APIKeys(path).add("alice")
    link.symlink_to(path)
    APIKeys(link).remove("alice")
    assert link.is_symlink()
    assert not len(APIKeys(path))
    os.link(path, tmp_path / "second.json")
    with pytest.raises(ValueError, match="has 2 names, and a change would reach only this one"):
        APIKeys(path).add("bob")
