import json
import stat
from pathlib import Path

import pytest

from lightning_pac import cli
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.serve import APIKeys, build_server
from lightning_pac.serve.batch_answers import KEY_CURRENCY


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
        ("alice", -1.0, "budget of a key must be finite and at least 0"),
        ("alice", float("nan"), "budget of a key must be finite and at least 0"),
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
    for text in ("{", "[1]", '{"name": "alice"}', '[{"name": "alice"}]'):
        path.write_text(text)
        with pytest.raises(ValueError, match="is not a file of API keys"):
            APIKeys(path)


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
    assert "has no key 'alice'" in capsys.readouterr().err
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


def test_the_command_changes_a_budget_and_lists_what_was_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ledger = str(tmp_path / "keys.json"), str(tmp_path / "responses.db")
    for name in ("alice", "bob"):
        assert cli.main(["keys", "add", path, name, "--budget", "1e-6"]) == 0
    text = capsys.readouterr().out.split()[0]
    with PrivacyLedger(ledger) as opened:
        opened.account("key alice", KEY_CURRENCY, {"api_key": "alice"}).charge_many([5e-7, 0.0])
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
        (["budget", path, "carol", "--budget", "1"], "has no key 'carol'"),
        (["budget", path, "bob", "--budget", "-1"], "budget of a key must be finite and at least 0"),
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
        ({"max_batch_size": 0}, "max_batch_size must be at least 1, got 0"),
        ({"max_request_bytes": 0}, "max_request_bytes must be at least 1, got 0"),
        ({"keys": "nobody.json"}, "nobody.json has no API keys: add one by"),
    ],
)
def test_servers_that_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_server(print, "responses.db", **options)
