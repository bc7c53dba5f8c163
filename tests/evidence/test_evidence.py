"""Evidence that is handed over: that it says what is true, that nothing secret is in it, and what verifying finds."""

import dataclasses
import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from scipy import optimize, stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_pac import SRPPSGD, SRPPAccountant, TableTransform, TwoWorldScenario
from lightning_pac.accountants import (
    EpsilonDelta,
    GaussianRelease,
    LedgerPlan,
    NumberOfRuns,
    PlannedLedger,
    SelectionPrice,
)
from lightning_pac.cards import Estimate, PrivacyCard
from lightning_pac.cards.card import UNCOVERED
from lightning_pac.cli import main
from lightning_pac.evidence import verify_evidence, write_evidence
from lightning_pac.evidence.chain import decode_chain, digest, encode_chain
from lightning_pac.evidence.document import describe_evidence
from lightning_pac.evidence.page import render_page
from lightning_pac.evidence.wording import _CHECKS, NOT_CHECKED, RELEASED, SOURCES
from lightning_pac.ledger import PrivacyLedger, restore_ledger
from lightning_pac.mechanisms import PACResponder
from lightning_pac.scenarios import BalancedSubsets, FixedSize, Poisson, WithReplacement
from lightning_pac.serve import APIKeys

SCENARIO = TwoWorldScenario(num_differing=2)
NOISE, STEPS = 6.0, 6
SCHEMA = Path(__file__).parents[2] / "lightning_pac" / "evidence" / "evidence.schema.json"


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(6, 3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def train(folder: Path) -> None:
    """A real run: six steps of shuffled epochs, so that two records are in one batch of six at the worst."""
    data = TensorDataset(torch.randn(60, 6), torch.randint(3, (60,)))
    private = SRPPSGD(SCENARIO, noise_multiplier=NOISE, ledger=folder / "study.db")
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[private], default_root_dir=folder, **options)
    trainer.fit(Classifier(), DataLoader(data, batch_size=10, shuffle=True))


def charge_metric_and_selection(ledger: PrivacyLedger) -> None:
    coupling = {"scenario": {**SCENARIO.coupling()}, "renyi_order": 16.0}
    metric = ledger.account("metrics a", "rpp", {"coupling": coupling, "epsilon_of_each": 0.01})
    metric.charge_many([0.01, 0.01], [{"mu_squared": 0.02 / 16}] * 2)
    table = ledger.account("table", "rpp", {"coupling": coupling, "epsilon_of_each": 0.01, "columns": {"age": [0, 99]}})
    table.charge(0.01, {"mu_squared": 0.02 / 16})
    price = SelectionPrice([GaussianRelease(0.1)], NumberOfRuns.expecting(5))
    terms = {"coupling": coupling, "selection": price.to_dict(), "cost": price.renyi(16.0)}
    ledger.account("refused before its first value", "rpp", {"coupling": coupling, "epsilon_of_each": 9.0})
    ledger.account("selection x", "rpp", terms).charge_many([price.renyi(16.0), 0.0])


def answer(folder: Path) -> None:
    """Nine answers about a secret half, two of which a client of a server paid."""
    votes = np.random.default_rng(0).integers(0, 3, size=(9, 8))
    secret = BalancedSubsets(num_records=20, num_subsets=8).draw_secret(folder / "s.key")
    with PACResponder(lambda rows: votes[rows], secret, 2**-7, folder / "study.db") as asked:
        asked(np.arange(9))
    APIKeys(folder / "keys.json").add("alice", 1.0)
    with PrivacyLedger(folder / "study.db") as ledger:
        ledger.account("key alice", "mutual_information by key", {"api_key": "alice"}, kind="api_key").charge(0.001)


def write_key(path: Path) -> Path:
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a run, a metric, a selection and answers; its evidence, signed; that of another ledger; keys."""
    folder = tmp_path_factory.mktemp("evidence")
    train(folder)
    answer(folder)
    with PrivacyLedger(folder / "study.db") as ledger:
        charge_metric_and_selection(ledger)
        mechanism = {"mutual_information_per_release": 0.03, "secret": "Which half was drawn.", "confidence": 0.99}
        ledger.account("centroids", "mutual_information", mechanism).charge(0.06)
        ledger.account("odd", "carbon").charge(1.0, {"release": "<b>a plot</b>"})
    with PrivacyLedger(folder / "planned.db") as ledger:
        LedgerPlan({"a": GaussianRelease(0.1), "b": GaussianRelease(0.2)}, EpsilonDelta(4.0, 1e-5)).declare(ledger)
        coupling = {"scenario": SCENARIO.coupling(), "renyi_order": 16.0}
        account = ledger.account("metrics b", "rpp", {"coupling": coupling, "epsilon_of_each": 0.01, "share": "a"})
        account.charge(0.01, {"mu_squared": 0.02 / 16})
    statements = {"controller": "The hospital of Ulm.", "data": "Visits of 2024.", "record": "one visit"}
    model = folder / "model.ckpt"
    model.write_bytes(b"weights")
    key = write_key(folder / "officer.pem")
    write_key(folder / "other.pem")
    write_evidence(folder / "study.db", folder / "evidence", 1e-6, 0.5, statements, [model], key)
    write_evidence(folder / "planned.db", folder / "planned")
    return folder


def read(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "evidence.json").read_text())
    return document


def test_it_says_what_a_record_is_where_that_was_stated(made: Path) -> None:
    words = "As the keeper of the data states, a record is one visit."
    assert words in (made / "evidence" / "evidence.html").read_text()
    assert "As the keeper of the data states" not in (made / "planned" / "evidence.html").read_text()
    assert "record" not in read(made / "planned")["statements"]


def test_it_holds_and_names_its_key(made: Path) -> None:
    found = verify_evidence(made / "evidence", made / "officer.pub")
    assert found.findings == ()
    assert found.notes == ()
    assert re.fullmatch("[0-9a-f]{16}", found.signed_by or "")
    assert verify_evidence(made / "planned").signed_by is None
    assert verify_evidence(made / "planned").findings == ()


@pytest.mark.parametrize("name", ["evidence", "planned"])
def test_it_keeps_the_published_schema(made: Path, name: str) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(read(made / name))
    assert (made / name / "evidence.schema.json").read_text() == SCHEMA.read_text()
    published = SCHEMA.parents[2] / "docs" / "schemas" / "evidence-1.schema.json"
    assert not published.parent.exists() or published.read_text() == SCHEMA.read_text()


def test_its_figures_are_the_true_ones(made: Path) -> None:
    """A pass of shuffled epochs is one Gaussian: two records in one batch, moved by two clipping norms each."""
    claims = {claim["account"]: claim for claim in read(made / "evidence")["mechanisms"]}
    assert "refused before its first value" not in claims
    (run,) = (claim for name, claim in claims.items() if name.startswith("training-"))
    figures = {entry["name"]: entry["value"] for entry in run["card"]["guarantees"]}
    mu = 2 * 2 / NOISE
    assert figures["world_success_bound"] == pytest.approx(stats.norm.cdf(mu / 2), rel=2e-6)
    assert figures["rpp_epsilon"] == pytest.approx(16 * mu**2 / 2, rel=2e-6)
    assert figures["world_success_bound"] >= stats.norm.cdf(mu / 2)
    epsilon = figures["epsilon_at_delta"]
    assert _gaussian_delta(epsilon, mu) == pytest.approx(1e-6, rel=1e-2)
    assert run["charged"] == pytest.approx(run["most_by_terms"], rel=1e-9)
    assert claims["selection x"]["charged"] == claims["selection x"]["least_by_terms"]
    assert claims["centroids"]["least_by_terms"] == 0.06, "two releases at once"
    assert claims["table"]["charged"] == claims["table"]["least_by_terms"] == 0.01
    assert "TableTransform" in claims["table"]["mechanism"]
    assert claims["odd"]["least_by_terms"] is None
    total = read(made / "evidence")["privacy_parameters"]["total"]
    assert total["basis"] == "none"
    assert "no plan" in total["reason"]
    (first, _) = read(made / "planned")["privacy_parameters"]["shares"]
    assert first == {"name": "a", "of": "mu^2", "size": 0.1, "taken": pytest.approx(0.02 / 16)}


def test_a_run_hands_its_conditions_and_how_they_were_checked(made: Path) -> None:
    (run,) = (claim for claim in read(made / "evidence")["mechanisms"] if claim["account"].startswith("training-"))
    checks = dict(zip(run["card"]["conditions"], run["checks"], strict=True))
    batches = next(check for condition, check in checks.items() if "no batch normalization" in condition)
    assert "synthetic batches" in batches
    secret = next(check for condition, check in checks.items() if "do not look at the secret" in condition)
    assert secret == NOT_CHECKED
    assert run["card"]["details"]["run"]["versions"]["torch"] == torch.__version__


def test_values_that_may_decide_their_number_say_so(made: Path) -> None:
    for claim in read(made / "evidence")["mechanisms"]:
        says_so = "nothing that it showed decided how much" in " ".join(claim["card"]["conditions"])
        assert says_so == claim["account"].startswith(("metrics", "table"))


def test_every_check_belongs_to_a_condition(made: Path) -> None:
    stated = [UNCOVERED, *(c for claim in read(made / "evidence")["mechanisms"] for c in claim["card"]["conditions"])]
    for scenario in (TwoWorldScenario(1, 60, "zero_out"), TwoWorldScenario.differential_privacy()):
        stated += SRPPAccountant(scenario, Poisson(0.1)).conditions()
    stated += [FixedSize.condition, WithReplacement.condition]
    source = SCHEMA.parents[1] / "callbacks" / "srpp_sgd" / "reporting" / "card.py"
    unused = [phrase for phrase in _CHECKS if phrase not in "\n".join(stated) + source.read_text()]
    assert unused == []


def test_nothing_secret_is_in_it(made: Path) -> None:
    secret = json.loads((made / "s.key").read_text())
    words = [secret["key"], "alice", str(made), os.uname().nodename]
    words += [(made / "officer.pem").read_text().splitlines()[1], f'"index": "{secret["index"]}"']
    text = "".join(path.read_text() for path in (made / "evidence").iterdir())
    assert [word for word in words if word in text] == []
    assert "a plot" in text
    assert "<b>a plot" not in (made / "evidence" / "evidence.html").read_text()
    answers = [entry for entry in read(made / "evidence")["releases"] if entry["released"] == "answers"]
    assert [entry["count"] for entry in answers] == [9]


# What somebody may do to a folder. Each takes it, and changes it.


def edit(name: str, pattern: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert re.search(pattern, text), f"{pattern} is not in {name}"
        (folder / name).write_text(re.sub(pattern, new, text, count=1))

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def rehash(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {name: digest((folder / name).read_bytes()) for name in manifest["files"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def change_journal(change: Callable[[list[dict[str, Any]]], Any], chain: bool = True) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "journal.jsonl"
        if chain:
            entries = decode_chain(path.read_bytes())
            change(entries)
            path.write_bytes(encode_chain(entries))
        else:
            lines = path.read_text().splitlines(keepends=True)
            change(lines)  # type: ignore[arg-type]
            path.write_text("".join(lines))

    return apply


def write_anew(folder: Path) -> None:
    """The page and the document of a journal that was changed."""
    document, _ = describe_evidence((folder / "journal.jsonl").read_bytes())
    (folder / "evidence.json").write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    (folder / "evidence.html").write_text(render_page(document))


def change_run(**terms: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(entries: list[dict[str, Any]]) -> None:
        (run,) = (entry for entry in entries if entry["entry"] == "account" and entry["kind"] == "training")
        run["declaration"] |= terms

    return change


def change_charge(entries: list[dict[str, Any]]) -> None:
    next(entry for entry in entries if entry["entry"] == "charge")["cost"] = 0.001


def forget_steps(entries: list[dict[str, Any]]) -> None:
    """Half of the steps, and the totals to match."""
    steps = next(entry for entry in entries if entry["entry"] == "steps")
    (run,) = (entry for entry in entries if entry["entry"] == "account" and entry["kind"] == "training")
    steps["num_steps"] = run["num_charges"] = STEPS // 2
    steps["cost"] = run["spent"] = steps["cost"] / 2


def swap(lines: list[Any]) -> None:
    lines[-2], lines[-1] = lines[-1], lines[-2]


def sign_by_other(folder: Path) -> None:
    made = folder.parents[1]
    shutil.rmtree(folder)
    write_evidence(made / "study.db", folder, 1e-6, key=made / "other.pem")


def add_file(folder: Path) -> None:
    (folder / "more.html").write_text("more")


def link_page(folder: Path) -> None:
    (folder / "evidence.html").rename(folder.with_suffix(".html"))
    (folder / "evidence.html").symlink_to(folder.with_suffix(".html"))


def drop_total(folder: Path) -> None:
    """In evidence that claims to be by other code, of which words are not compared."""
    change_journal(lambda entries: entries[0].update(package_sha256=digest(b"other")))(folder)
    write_anew(folder)
    document = read(folder)
    del document["privacy_parameters"]["total"]
    (folder / "evidence.json").write_text(json.dumps(document))


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{}")


def take_other_journal(folder: Path) -> None:
    shutil.copy(folder.parents[1] / "planned" / "journal.jsonl", folder / "journal.jsonl")


MANIPULATIONS: dict[str, tuple[list[Callable[[Path], None]], str]] = {
    "a figure in the JSON": ([edit("evidence.json", r'"prior": 0.5', '"prior": 0.4')], "evidence.json was changed"),
    "a figure in the page": ([edit("evidence.html", "1e-06", "1e-09")], "evidence.html was changed"),
    "a figure in the JSON, hashed anew": (
        [edit("evidence.json", r'"charged": 0\.06', '"charged": 0.05'), rehash],
        "charged: is 0.05, and 0.06 follows",
    ),
    "a figure in the page, hashed anew": (
        [edit("evidence.html", "1e-06", "1e-09"), rehash],
        "evidence.html does not show what the journal says",
    ),
    "delta in the JSON, hashed anew": (
        [edit("evidence.json", '"delta": 1e-06', '"delta": 1e-09'), rehash],
        "total.delta",
    ),
    "delta in the journal": ([change_journal(lambda entries: entries[0].update(delta=1e-9)), rehash], "total.delta"),
    "a line of the journal removed": ([change_journal(lambda lines: lines.pop(6), False), rehash], "does not follow"),
    "the last line removed": ([change_journal(lambda lines: lines.pop(), False), rehash], "fails its check"),
    "lines of the journal in another order": ([change_journal(swap, False), rehash], "does not follow"),
    "an event removed, chained anew": (
        [change_journal(lambda entries: entries.remove(next(e for e in entries if e["entry"] == "charge"))), rehash],
        "fails its check",
    ),
    "an event added, chained anew": (
        [change_journal(lambda entries: entries.append(next(e for e in entries if e["entry"] == "charge"))), rehash],
        "fails its check",
    ),
    "a cost in the journal": ([change_journal(change_charge), rehash], "fails its check"),
    "the noise, everything written anew": (
        [change_journal(change_run(noise_multiplier=60.0)), write_anew, rehash],
        "was charged",
    ),
    "the sampling, everything written anew": (
        [change_journal(change_run(sampling=Poisson(0.01).to_dict())), write_anew, rehash],
        "was charged",
    ),
    "fewer steps, everything written anew": ([change_journal(forget_steps), write_anew, rehash], "was charged"),
    "fewer steps, and the figures as they were": ([change_journal(forget_steps), rehash], "releases"),
    "another ledger's journal": ([take_other_journal, rehash], "details.ledger_id"),
    "the version": (
        [edit("evidence.json", '"lightning_pac": "', '"lightning_pac": "9.'), rehash],
        "details.lightning_pac",
    ),
    "the hash of a released file": (
        [edit("evidence.json", f'"sha256": "{digest(b"weights")}', f'"sha256": "{digest(b"others")}'), rehash],
        "released_files",
    ),
    "a statement": ([edit("evidence.json", "hospital of Ulm", "hospital of Bonn"), rehash], "statements.controller"),
    "a condition removed": (
        [edit("evidence.json", r'"The sampler, class weights[^"]*",\s*', ""), rehash],
        "conditions",
    ),
    "a key twice": ([edit("evidence.json", '"prior": 0.5', '"prior": 0.1, "prior": 0.5'), rehash], "a key comes twice"),
    "a number beyond all floats": (
        [edit("evidence.json", '"prior": 0.5', f'"prior": 1{400 * "0"}'), rehash],
        "300 digits",
    ),
    "true in place of one": ([edit("evidence.json", '"count": 1,', '"count": true,'), rehash], "count: is true"),
    "half a character": (
        [edit("evidence.json", "hospital of Ulm", r"\\ud800\\u009b"), rehash],
        "statements.controller: is",
    ),
    "released files that are none": (
        [change_journal(lambda entries: entries[0].update(released=[1])), rehash],
        "no figures that could be computed",
    ),
    "a figure removed, as if by other code": ([drop_total, rehash], "privacy_parameters.total: is missing"),
    "a link": ([link_page], "evidence.html is a link"),
    "the schema": ([edit("evidence.schema.json", '"const": 1', '"const": 2'), rehash], "not the published schema"),
    "a missing page": ([remove("evidence.html")], "evidence.html is missing."),
    "a missing journal": ([remove("journal.jsonl")], "journal.jsonl is missing."),
    "a missing manifest": ([remove("manifest.json")], "manifest.json is missing."),
    "an added file": ([add_file], "more.html is no part"),
    "a hash left out": ([edit("manifest.json", r'"evidence.html": "\w+",', "")], "does not name evidence.html"),
    "a signature by another key": ([sign_by_other], "and not by the given one"),
    "a signature of something else": ([sign_by_other, empty_manifest], "does not belong to the manifest"),
    "no signature": ([remove("signature.json")], "signature.json is missing"),
}


def test_each_manipulation_is_found_in_a_sentence(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(MANIPULATIONS) >= 20
    unfound = []
    for number, (name, (changes, words)) in enumerate(MANIPULATIONS.items()):
        folder = made / "changed" / str(number)
        shutil.copytree(made / "evidence", folder)
        for change in changes:
            change(folder)
        code = main(["verify", str(folder), "--key", str(made / "officer.pub")])
        lines = capsys.readouterr().out.splitlines()
        clear = all(
            line[0].isalnum() and line.isprintable() and line.endswith(".") and len(line) < 400 for line in lines
        )
        # The signature finds everything; so must something else, but for what only the signature can.
        others = [line for line in lines if not line.startswith("signature.json")]
        if code != 1 or not clear or not any(words in line for line in lines) or not (others or "signature" in name):
            unfound.append(f"{name}: {code} {lines}")
    assert unfound == []


def test_without_a_key_a_consistent_forgery_is_called_unsigned(made: Path) -> None:
    """Whoever writes everything anew is told by the signature alone, which is what the documentation says."""
    folder = made / "changed" / "forged"
    shutil.copytree(made / "evidence", folder)
    changes = (change_journal(lambda entries: entries[0].update(ledger="mine.db")), write_anew, rehash)
    for change in (*changes, remove("signature.json")):
        change(folder)
    found = verify_evidence(folder)
    assert (found.findings, found.signed_by) == ((), None)
    assert verify_evidence(folder, made / "officer.pub").findings


def test_evidence_of_another_version_is_held_to_its_figures(made: Path) -> None:
    def age(entries: list[dict[str, Any]]) -> None:
        entries[0].update(package_sha256=digest(b"older"), lightning_pac="0.0.9")

    folder = made / "changed" / "older"
    shutil.copytree(made / "planned", folder)
    for change in (change_journal(age), write_anew, edit("evidence.html", "Data collection", "Collection"), rehash):
        change(folder)
    found = verify_evidence(folder)
    assert found.findings == ()
    assert "0.0.9" in found.notes[0]
    assert "evidence.html and evidence.schema.json were checked by their hashes alone" in found.notes[0]
    for change in (edit("evidence.json", '"delta": 1e-05', '"delta": 1e-06'), rehash):
        change(folder)
    assert any("delta: is 1e-06" in finding for finding in verify_evidence(folder).findings)


@pytest.mark.parametrize("name", ["journal.jsonl", "evidence.json", "manifest.json", "evidence.schema.json"])
def test_bytes_that_rot_are_findings_and_no_errors(made: Path, name: str) -> None:
    generator = np.random.default_rng(5)
    folder = made / "changed" / f"rotten {name}"
    for _ in range(12):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made / "planned", folder)
        content = bytearray((folder / name).read_bytes())
        for place in generator.integers(len(content), size=3):
            content[place] ^= int(generator.integers(1, 256))
        (folder / name).write_bytes(content)
        if name == "journal.jsonl":
            rehash(folder)
        findings = verify_evidence(folder).findings
        assert findings, bytes(content)
        assert all("\n" not in finding and len(finding) < 400 for finding in findings)


def test_what_was_lost_is_a_release_that_bounds_nothing(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        charge_metric_and_selection(ledger)
    restore_ledger(tmp_path / "study.db", {"metrics a": 0.5}, otherwise=0.0)
    write_evidence(tmp_path / "study.db", tmp_path / "evidence")
    document = read(tmp_path / "evidence")
    assert any(entry["released"].startswith("unknown") for entry in document["releases"])
    (metric,) = (claim for claim in document["mechanisms"] if claim["account"] == "metrics a")
    assert [entry["name"] for entry in metric["card"]["guarantees"]] == ["rpp_epsilon"]
    assert verify_evidence(tmp_path / "evidence").findings == ()


def test_a_folder_is_never_overwritten_and_bad_arguments_leave_none(made: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="name a new folder"):
        write_evidence(made / "planned.db", made / "planned")
    (tmp_path / "rsa.pem").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    for arguments, words in (
        ({"statements": {"mood": "good"}}, "not a heading"),
        ({"key": tmp_path / "rsa.pem"}, "not a private Ed25519 key"),
        ({"key": made / "officer.pub"}, "not a private Ed25519 key"),
    ):
        with pytest.raises(ValueError, match=words):
            write_evidence(made / "planned.db", tmp_path / "new", **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a public Ed25519 key"):
        verify_evidence(made / "planned", made / "s.key")
    assert not (tmp_path / "new").exists()


def test_a_fresh_process_writes_and_verifies_without_torch(made: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from lightning_pac.cli import main\n"
        f"assert main(['evidence', {str(made / 'study.db')!r}, '--output', {str(tmp_path / 'new')!r}]) == 0\n"
        f"assert main(['verify', {str(tmp_path / 'new')!r}]) == 0\n"
        "assert not {'torch', 'lightning', 'matplotlib'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "every figure follows from its journal; it is not signed." in result.stdout
    assert dataclasses.is_dataclass(verify_evidence(tmp_path / "new"))


def test_a_checkpoint_of_another_ledger_is_no_release_of_this_one(tmp_path: Path) -> None:
    """The evidence listed it as released, and verifying found nothing."""
    data = TensorDataset(torch.randn(12, 6), torch.randint(3, (12,)))
    for name in ("ours", "others"):
        private = SRPPSGD(SCENARIO, noise_multiplier=NOISE, ledger=tmp_path / f"{name}.db")
        trainer = pl.Trainer(
            default_root_dir=tmp_path, callbacks=[private], max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        )  # fmt: skip
        trainer.fit(Classifier(), DataLoader(data, 6, shuffle=True))
        trainer.save_checkpoint(tmp_path / f"{name}.ckpt")
        saved = torch.load(tmp_path / f"{name}.ckpt", weights_only=True)
        torch.save(saved | {"beside": Path("of a class that is not loaded")}, tmp_path / f"odd_{name}.ckpt")
    torch.save({"weights": torch.zeros(3)}, tmp_path / "plain.pt")
    with pytest.raises(ValueError, match=r"odd_others\.ckpt was trained by run"):
        write_evidence(tmp_path / "ours.db", tmp_path / "evidence", released=[tmp_path / "odd_others.ckpt"])
    with pytest.raises(
        ValueError, match=r"others\.ckpt was trained by run 'training-\w+', which .*ours\.db does not list"
    ):
        write_evidence(tmp_path / "ours.db", tmp_path / "evidence", released=[tmp_path / "others.ckpt"])
    assert not (tmp_path / "evidence").exists()
    released = [tmp_path / "odd_ours.ckpt", tmp_path / "plain.pt"]
    write_evidence(tmp_path / "ours.db", tmp_path / "evidence", released=released)
    assert verify_evidence(tmp_path / "evidence").findings == ()
    page = (tmp_path / "evidence" / "evidence.html").read_text()
    assert re.search(
        r"odd_ours\.ckpt \(saved by run training-\w+\), plain\.pt \(nothing here shows where it comes from\)", page
    )


def test_a_file_that_would_run_a_program_runs_none(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "made"),)

    torch.save({"privacy_card": Hostile()}, tmp_path / "hostile.ckpt")
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        ledger.account("own program", "rpp").charge(0.5)
    write_evidence(tmp_path / "study.db", tmp_path / "evidence", released=[tmp_path / "hostile.ckpt"])
    assert not (tmp_path / "made").exists()
    assert "nothing here shows where it comes from" in (tmp_path / "evidence" / "evidence.html").read_text()


def test_a_checkpoint_without_a_promise_is_no_release(tmp_path: Path) -> None:
    """A lawyer's page listed it as covered."""
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, enable_model_summary=False, accelerator="cpu", **options)
    trainer.fit(Classifier(), DataLoader(TensorDataset(torch.randn(12, 6), torch.randint(3, (12,))), 6))
    trainer.save_checkpoint(tmp_path / "ordinary.ckpt")
    saved = torch.load(tmp_path / "ordinary.ckpt", weights_only=True)
    torch.save(saved | {"beside": Path("of a class that is not loaded")}, tmp_path / "odd.ckpt")
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        ledger.account("own program", "rpp").charge(0.5)
    with pytest.raises(
        ValueError, match=r"ordinary\.ckpt has no privacy card, so that a training without privacy saved it"
    ):
        write_evidence(tmp_path / "study.db", tmp_path / "evidence", released=[tmp_path / "ordinary.ckpt"])
    assert not (tmp_path / "evidence").exists()


def test_names_that_are_no_utf8_are_written_as_such(made: Path, tmp_path: Path) -> None:
    odd = tmp_path / "model\udcff.ckpt"
    odd.write_bytes(b"weights")
    write_evidence(made / "planned.db", tmp_path / "new", released=[odd], statements={"purpose": "\ud800"})
    assert read(tmp_path / "new")["details"]["released_files"][0]["name"] == r"model\udcff.ckpt"
    assert verify_evidence(tmp_path / "new").findings == ()


def test_a_charge_about_undeclared_worlds_is_not_called_no_release(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        ledger.account("own program", "rpp").charge(0.5)
    page = write_evidence(tmp_path / "study.db", tmp_path / "evidence").read_text()
    assert "No useful bound holds for all releases together" in page
    assert "Nothing about two worlds" not in page


def test_answers_alone_promise_about_membership_and_no_epsilon(tmp_path: Path) -> None:
    """It opened with "No useful bound holds", and its table said 100 % where the account had its bound."""
    votes = np.array([[0, 1] * 4] * 2)
    secret = BalancedSubsets(num_records=20, num_subsets=8).draw_secret(tmp_path / "s.key")
    with PACResponder(lambda rows: votes[rows], secret, 2**-7, tmp_path / "study.db") as asked:
        asked(np.arange(2))
        card = asked.card()
    page = write_evidence(tmp_path / "study.db", tmp_path / "evidence").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert f'<p class="verdict">{card.guarantees[0].meaning} That holds on the conditions below. No epsilon' in page
    told = re.findall(r'the answers of responses</td><td class="number">([0-9.]+) %</td>', page)
    assert float(told[0]) == pytest.approx(100 * card.guarantees[0].value, abs=0.01)
    assert "No useful bound" not in page
    assert "everything in the ledger together" not in page
    assert verify_evidence(tmp_path / "evidence").findings == ()
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        charge_metric_and_selection(ledger)
    page = write_evidence(tmp_path / "study.db", tmp_path / "both").read_text()
    assert "everything in the ledger together" in page


def test_a_promise_about_persons_speaks_of_nobody_s_record(tmp_path: Path) -> None:
    """Its secret was of a unit with "the same value at position 2", and its terms said "any one record"."""
    worlds = {**TwoWorldScenario.differential_privacy().coupling(), "unit": "person by 2"}
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        coupling = {"scenario": worlds, "renyi_order": 16.0}
        ledger.account("metric", "rpp", {"coupling": coupling, "epsilon_of_each": 0.01}).charge(
            0.01, {"mu_squared": 0.02 / 16}
        )
    write_evidence(tmp_path / "study.db", tmp_path / "evidence")
    (mechanism,) = read(tmp_path / "evidence")["mechanisms"]
    words = "Whether any one person is in the data. The unit is a person, with all records that name them"
    for secret in (mechanism["card"]["secret"], mechanism["card"]["details"]["coupling"]["scenario"]["secret"]):
        assert secret.startswith(words)
    assert "any one record" not in (tmp_path / "evidence" / "evidence.json").read_text()


def test_an_alarm_of_an_audit_is_what_is_not_covered_first(tmp_path: Path) -> None:
    alarm = Estimate("audit_alarms", 1.0, "", "The run is not what is accounted for: noise of weight.", "9 tests")
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        account = ledger.account("fit", "rpp")
        account.charge(0.5)
        account.attach_card(PrivacyCard("Run", "Who was used.", (), conditions=(), estimates=(alarm,)))
    write_evidence(tmp_path / "study.db", tmp_path / "evidence")
    first = read(tmp_path / "evidence")["not_covered"][0]
    assert first == f"What is promised of account 'fit', about which an audit raised an alarm: {alarm.meaning}"
    assert verify_evidence(tmp_path / "evidence").findings == ()


def test_the_first_sentence_says_the_promise_as_it_was_stated(tmp_path: Path) -> None:
    """It gave the bound on guessing alone, which for a promise of epsilon 5 reads as if nothing were hidden."""
    scenario = TwoWorldScenario.differential_privacy()
    metrics = {"ledger": PlannedLedger(tmp_path / "study.db", epsilon=5.0, delta=1e-5), "scenario": scenario}
    TableTransform.private({"age": [30.0] * 20}, {"age": [0, 99]}, epsilon=0.5, delta=1e-6, **metrics)
    TableTransform.private({"age": [30.0] * 20}, {"age": [0, 99]}, epsilon=0.5, delta=1e-6, account="b", **metrics)
    page = write_evidence(tmp_path / "study.db", tmp_path / "evidence").read_text()
    assert "For everything that this ledger lists, epsilon is at most 5 at delta 1e-05: someone who" in page
    mu = optimize.brentq(lambda mu: _gaussian_delta(0.5, mu) - 1e-6, 0.01, 1.0)
    (alone,) = re.findall("Each run or measurement</a> alone: at most ([0-9.]+)\\s%, provided", page)
    assert float(alone) == pytest.approx(100 * stats.norm.cdf(mu / 2), abs=0.02)
    assert page.count("provided that nobody chose its settings by looking at another") == 2
    assert len(re.findall(f'alone</td><td class="number">{alone}\\s%</td>', page)) == 2, "a row for each account"

    with PrivacyLedger(tmp_path / "study.db") as ledger:
        ledger.account("unknown", "rpp", ledger.accounts()[0].declaration).charge(0.5, {"unknown": "lost"})
    page = write_evidence(tmp_path / "study.db", tmp_path / "lost").read_text()
    assert "Each run or measurement</a> alone" not in page, "what one of them reveals is not known"


def test_the_first_page_says_once_what_no_program_checks(made: Path) -> None:
    """A trial's reader met "Nothing here checks it" seven times, between order 16 and the hashes."""
    mechanisms = read(made / "evidence")["mechanisms"]
    page = html.unescape((made / "evidence" / "evidence.html").read_text())
    first, _, annex = page.partition('<h1 class="annex">')
    checks = {
        condition: check
        for entry in mechanisms
        for condition, check in zip(entry["card"]["conditions"], entry["checks"], strict=True)
    }
    assert {check == NOT_CHECKED for check in checks.values()} == {True, False}
    for condition, check in checks.items():
        assert first.count(f"<li>{condition}") == (check == NOT_CHECKED)
        assert f"<li>{condition}" in annex
    assert all(f"({entry['account']})" in first for entry in mechanisms)
    assert RELEASED.keys() == SOURCES.keys()


def _gaussian_delta(epsilon: float, mu: float) -> float:
    """The exact delta of a Gaussian whose means are mu deviations apart (Balle and Wang, 2018)."""
    tails = stats.norm.cdf(mu / 2 - epsilon / mu), stats.norm.cdf(-mu / 2 - epsilon / mu)
    return float(tails[0] - np.exp(epsilon) * tails[1])
