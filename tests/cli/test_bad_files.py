"""Every command with every file argument that is none: one sentence, no traceback, and the folder as it was."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lightning_pac import cli
from lightning_pac.accountants import GaussianRelease, LedgerPlan
from lightning_pac.evidence import write_evidence
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import PACResponder
from lightning_pac.modules import SubsetEnsemble
from lightning_pac.modules.ensembles.ensemble_record import KEY
from lightning_pac.scenarios import BalancedSubsets
from lightning_pac.serve import APIKeys

POOL = "--records 20 --subsets 8"
SERVE = f"--network my_project.make_network {POOL}"
CALIBRATE = "--num-records=1000 --num-differing=2 --batch-size=50 --steps=20"

# What is read: nothing of this can be that. A mapping that is empty is no settings, no plan and no ledger.
CONTENTS = {
    "empty": b"",
    "half": b"{",
    "bytes": bytes(range(256)),
    "wide": '{"a": 1}'.encode("utf-16"),
    "list": b"[1]",
    "number": b"1",
    "text": b'"x"',
    "nothing": b"null",
    "mapping": b"{}",
    "deep": b"[" * 20_000,
    "long-number": b"[" + b"9" * 5000 + b"]",
    "circle": b"&a [*a]",
}
# One command for everything that reads files, and the others that read them in the same way.
READS = [
    "account FILE",
    "account plan new.db FILE",
    f"audit membership responses.db {POOL} --secret FILE",
    "keys list FILE",
    "report FILE",
    "fit --config FILE",
    f"serve new.db --ensemble FILE {SERVE}",
]
READS_TOO = [
    "account budget FILE 9 --currency rpp",
    "account total FILE",
    "evidence FILE --output out",
    "evidence ledger.db --output out --key FILE",
    "evidence ledger.db --output out --statements FILE",
    "verify FILE",
    "verify evidence --key FILE",
    "account adopt FILE",
    "account backup FILE copy.db",
    "account restore FILE --amount 0",
    "account restore ledger.db FILE --amount 0",
    f"audit membership FILE {POOL}",
    "audit training FILE",
    "audit metrics FILE",
    "keys remove FILE alice",
    "keys budget FILE alice --budget 1",
    "keys list keys.json --ledger FILE",
    "validate --config FILE",
    "test --config FILE",
    "predict --config FILE",
    "check --config FILE",
    "tune --config FILE --space FILE --score val/accuracy --ledger new.db",
    f"serve new.db --ensemble a.ckpt {SERVE} --keys FILE",
    f"serve responses.db --ensemble a.ckpt {SERVE} --secret FILE",
]
WRITES = [
    "account budget FILE --epsilon 3 --delta 1e-5",
    "account adopt ledger.db --witness FILE",
    "account backup ledger.db FILE",
    "account restore FILE ledger.db --amount 0",
    "account plan FILE plan.json",
    f"audit membership responses.db {POOL} --plot FILE",
    "bounds --plot FILE",
    "evidence ledger.db --output FILE",
    f"calibrate {CALIBRATE} --plot FILE",
    "noise leakage --states 4 --leakage 1 --plot FILE",
    "plan --num-records 100 --values a=1 --epsilon 3 --delta 1e-5 --ledger FILE",
    "plan --num-records 100 --values a=1 --epsilon 3 --delta 1e-5 --plot FILE",
    "keys add FILE bob",
    "report run --output FILE",
    f"serve FILE --ensemble a.ckpt {SERVE}",
    f"serve ledger.db --ensemble a.ckpt {SERVE} --witness FILE",
    f"serve new.db --ensemble a.ckpt {SERVE} --secret FILE",
]
WORDS = [
    "account ledger.db ledger.db",
    "account budget ledger.db 9 --account [none]",
    "account budget ledger.db 9 --currency [none]",
    "account budget ledger.db 0.5 --currency rpp",
    "account budget ledger.db --epsilon 3",
    "account restore ledger.db --amount x",
    "account restore ledger.db --amount [none]=1",
    "account restore ledger.db --amount fit=nan",
    "account restore ledger.db --amount fit=-1",
    "account restore ledger.db --amount fit=1e308",
    "account restore ledger.db",
    f"audit membership ledger.db {POOL}",
    f"audit membership responses.db {POOL} --account [none]",
    f"audit membership responses.db {POOL} --trials 0",
    "audit membership responses.db --records 21 --subsets 8",
    "audit membership responses.db --records 20 --subsets 7",
    f"audit training ledger.db {POOL}",
    "audit training ledger.db --account [none]",
    "audit training ledger.db",
    "audit metrics ledger.db",
    "audit responses responses.db",
    "bounds --budget 2^x",
    "bounds --budget 2^9999",
    "bounds --success-bound 2",
    f"calibrate {CALIBRATE} --import [none]",
    f"calibrate {CALIBRATE} --rate 2",
    "completion fish",
    "evidence ledger.db --output out --delta 2",
    "evidence ledger.db --output out --key keys.json",
    "evidence ledger.db --output out --released [none]",
    "evidence ledger.db --output run",
    "verify evidence --key keys.json",
    "verify run",
    "keys add keys.json alice",
    "keys add keys.json [bob]",
    "keys remove keys.json [bob]",
    "noise pac --max-value 1",
    "noise dp --epsilon 1 --max-value 1.5",
    "plan --num-records 100 --epsilon 3 --delta 1e-5",
    "plan --num-records 100 --values a=1",
    "plan --num-records 100 --values a=1 --epsilon 3 --delta 1e-5 --ledger ledger.db",
    "plan --num-records 100 --values a --epsilon 3 --delta 1e-5",
    "plan --num-records 100 --values a=[none] --epsilon 3 --delta 1e-5",
    "plan --num-records 100 --values a=1 --answers a=1 --epsilon 3 --delta 1e-5",
    "plan --num-records 100 --answers a=1 --membership-success-bound 0.4",
    "plan --num-records 100 --batch-size 10 --epsilon 3 --delta 1e-5",
    "plan --num-records 100 --batch-size 1000 --epochs 1 --epsilon 3 --delta 1e-5",
    "plan --num-records 100 --runs 5 --values a=1 --epsilon 3 --delta 1e-5",
    "fit --recipe [none]",
    "fit --config settings.yaml --ckpt_path a.ckpt/x",
    "fit --config settings.yaml --trainer.callbacks [[[[",
    "check --config settings.yaml --no-such-option 1",
    f"serve new.db --ensemble a.ckpt --network none {POOL}",
    f"serve new.db --ensemble a.ckpt --network my_project.none {POOL}",
    f"serve new.db --ensemble a.ckpt --network none.none {POOL}",
    "serve new.db --ensemble a.ckpt --network my_project.make_network --records 21 --subsets 8",
    f"serve new.db --ensemble a.ckpt {SERVE} --host 1.2.3.4",
    f"serve new.db --ensemble a.ckpt {SERVE} --port 80",
    f"serve new.db --ensemble a.ckpt {SERVE} --rate-limit often",
    f"serve new.db --ensemble a.ckpt {SERVE} --timeout -1",
    f"serve new.db --ensemble a.ckpt {SERVE} --budget -1",
    f"serve new.db --ensemble a.ckpt {SERVE} --device [none]",
    f"serve new.db --ensemble a.ckpt {SERVE} --seed 5",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A ledger, a responder's ledger with its secret, keys, a run, a checkpoint, and what is none of them."""
    folder = tmp_path_factory.mktemp("files")
    with PrivacyLedger(folder / "ledger.db", budget={"rpp": 5.0}) as ledger:
        ledger.account("fit", "rpp").charge(1.0)
    pool = BalancedSubsets(num_records=20, num_subsets=8)
    votes = np.random.default_rng(0).integers(0, 3, size=(9, 8))
    with PACResponder(
        lambda rows: votes[rows], pool.draw_secret(folder / "s.key"), 2**-7, folder / "responses.db"
    ) as asked:
        asked(np.arange(9))
    APIKeys(folder / "keys.json").add("alice", 1.0)
    (folder / "run").mkdir()
    (folder / "run" / "metrics.csv").write_text("step,privacy/rpp_epsilon\n1,2\n")
    (folder / "my_project.py").write_text("from torch import nn\n\n\ndef make_network():\n    return nn.Linear(2, 3)\n")
    ensemble = SubsetEnsemble(lambda: nn.Linear(2, 3), pool)
    torch.save({"state_dict": ensemble.state_dict(), KEY: ensemble.record.to_dict()}, folder / "a.ckpt")
    (folder / "settings.yaml").write_text("trainer: {}\n")
    (folder / "plan.json").write_text(json.dumps(LedgerPlan([GaussianRelease(0.1)]).to_dict()))
    (folder / "empty-folder").mkdir()
    write_evidence(folder / "ledger.db", folder / "evidence")
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    os.symlink("loop", folder / "loop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr("lightning_pac.serve.server._check_port", _serve_no_more)
        yield folder


def _serve_no_more(host: str, port: int) -> None:
    raise AssertionError("it would serve")


def _files(folder: Path) -> dict[str, bytes | None]:
    """Content of everything but locks and what SQLite and Python make for themselves."""
    passing = ("-shm", "-wal", "-writer", ".lock", ".pyc", "__pycache__")
    found = (path for path in folder.rglob("*") if not path.name.endswith(passing))
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


def check_refused(folder: Path, capsys: pytest.CaptureFixture[str], lines: list[list[str]]) -> None:
    """Every command line ends in one sentence, and leaves the folder as it was."""
    before, unclear = _files(folder), []
    for words in lines:
        try:
            code = cli.main(words)
        except SystemExit as error:  # of argparse, which shows the usage first
            code = error.code
        output, errors = capsys.readouterr()
        sentences = [line for line in errors.splitlines() if f"lightning-pac {words[0]}: error: " in line]
        after = _files(folder)
        if (
            code not in (1, 2)
            or output
            or len(sentences) != 1
            or errors.splitlines()[-1] != sentences[0]
            or "(`--debug` shows where)" in errors
            or "Traceback" in errors
            or after != before
        ):
            changed = sorted({name for name, _ in set(before.items()) ^ set(after.items())})
            unclear.append(f"{' '.join(words)[:90]!r}: {code} {output[-80:]!r} {errors[-200:]!r} {changed}")
        before = after
    assert not unclear, "\n".join(unclear)


def lines_of(templates: list[str], files: list[str]) -> list[list[str]]:
    return [[file if word == "FILE" else word for word in line.split()] for line in templates for file in files]


def test_every_command_is_here() -> None:
    (commands,) = (action for action in cli.build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert {line.split()[0] for line in READS + READS_TOO + WRITES + WORDS} == set(commands.choices)


def test_what_cannot_be_read_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["none", "[none]", "a.ckpt/x", "empty-folder", "loop", "~nobody-here/x", "x" * 300, "a\nb"]
    allowed = [["keys", "list", "mapping"]]  # no keys yet
    lines = lines_of(READS, [*names, *CONTENTS]) + lines_of(READS_TOO, ["none", "empty-folder", "half"])
    check_refused(folder, capsys, [words for words in lines if words not in allowed])


def test_what_cannot_be_written_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a.ckpt/x.png", "empty-folder", "loop", "x" * 300, "/proc/none/x.png"]
    check_refused(folder, capsys, lines_of(WRITES, names))


def test_words_that_mean_nothing_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(folder, capsys, lines_of(WORDS, [""]))
