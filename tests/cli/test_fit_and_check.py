"""The Trainer's commands as a user types them, on the digits of the examples."""

import json
import pathlib
import sqlite3
import warnings

import pytest
import yaml

import lightning_pac
from lightning_pac import cli
from lightning_pac.callbacks import SRPPSGD
from lightning_pac.cli.named_callbacks import named_callbacks, read_yaml
from lightning_pac.cli.recipes import find_recipe
from lightning_pac.ledger import PrivacyLedger

DIGITS = pathlib.Path(lightning_pac.__file__).parent.parent / "examples" / "digits"
WORLDS = "--trainer.callbacks.scenario.num_differing=3"

pytestmark = pytest.mark.skipif(not DIGITS.exists(), reason="the examples are in a checkout")


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A user's own configuration, with a callback of theirs, in a folder of theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(DIGITS))
    content = yaml.safe_load((DIGITS / "linear.yaml").read_text())
    content["trainer"] |= {
        "max_epochs": 2,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": "out",
        "logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "out"}},
        "callbacks": [{"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"}],
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("recipe", [["--recipe", "srpp_sgd"], ["--config", str(find_recipe("srpp_sgd"))]])
def test_fit_with_a_recipe_is_private_and_keeps_the_users_callbacks(config, tmp_path, recipe):
    assert cli.main(["fit", "--config", "mine.yaml", *recipe, WORLDS]) == 0
    run = tmp_path / "out" / "lightning_logs" / "version_0"
    metrics = (run / "metrics.csv").read_text()
    assert "privacy/rpp_epsilon" in metrics.splitlines()[0]
    saved = yaml.safe_load((run / "config.yaml").read_text())["trainer"]["callbacks"]
    assert [entry["class_path"].rsplit(".")[-1] for entry in saved] == ["LearningRateMonitor", "SRPPSGD"]
    assert saved[1]["init_args"]["scenario"]["num_differing"] == 3
    with PrivacyLedger.read_only(run / "privacy_ledger.db") as ledger:
        assert 0 < ledger.spent("rpp") <= 8
    assert cli.main(["report", str(run)]) == 0
    assert "rpp_epsilon" in (run / "report.html").read_text()


def test_a_fit_in_which_nothing_is_private_says_so(config):
    with pytest.warns(UserWarning, match="ordinary training without a guarantee: --recipe srpp_sgd"):
        assert cli.main(["fit", "--config", "mine.yaml"]) == 0
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*ordinary training without a guarantee")
        assert cli.main(["fit", "--config", "mine.yaml", "--recipe", "srpp_sgd", WORLDS]) == 0


@pytest.mark.parametrize("place", ["option", "json", "file"])
def test_norms_by_block_come_from_options_and_files(config, tmp_path, place):
    blocks = {"network": 0.5} if place == "option" else {"network.weight": 0.5, "network.bias": 0.1}
    words = ["--config", "mine.yaml", "--recipe", "srpp_sgd", WORLDS]
    if place == "option":
        words.append("--trainer.callbacks.max_grad_norm.network=0.5")
    elif place == "json":
        words.append(f"--trainer.callbacks.max_grad_norm={json.dumps(blocks)}")
    else:
        content = yaml.safe_load(config.read_text())
        arguments = {"scenario": {"num_differing": 3}, "epsilon": 8.0, "delta": 1e-5, "max_grad_norm": blocks}
        entry = {"class_path": "lightning_pac.callbacks.SRPPSGD", "init_args": arguments}
        content["trainer"]["callbacks"].append(entry)
        config.write_text(yaml.safe_dump(content))
        words = words[:2]
    assert cli.main(["fit", *words]) == 0
    card = json.loads((tmp_path / "out" / "lightning_logs" / "version_0" / "privacy_card.json").read_text())
    assert card["details"]["max_grad_norm"] == blocks


def test_a_recipe_dropped_by_a_later_file_stops_the_run(config, tmp_path, capsys):
    words = ["fit", "--config", str(find_recipe("srpp_sgd")), "--config", "mine.yaml"]
    assert cli.main(words) == 1
    assert "names SRPPSGD, but the Trainer was built without it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", ["own_callbacks.SRPPSGD", "own_callbacks.Mine", "Mine", "own_callbacks.make"])
def test_a_callback_that_another_module_names_is_not_dropped_either(config, tmp_path, capsys, path):
    (tmp_path / "own_callbacks.py").write_text(
        "from lightning.pytorch.callbacks import Timer\nfrom lightning_pac import SRPPSGD\n"
        "class Mine(SRPPSGD):\n    pass\n"
        "def make(scenario: dict, epsilon: float, delta: float) -> Mine:\n    return Mine(scenario, epsilon, delta)\n"
    )
    arguments = {"scenario": {"num_differing": 3}, "epsilon": 8.0, "delta": 1e-5}
    entries = [{"class_path": "own_callbacks.Timer"}, {"class_path": path, "init_args": arguments}]
    (tmp_path / "private.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": entries}}))
    assert cli.main(["fit", "--config", "private.yaml", "--config", "mine.yaml"]) == 1
    name = {"make": "Mine"}.get(name := path.rpartition(".")[2], name)
    assert f"names {name}, but the Trainer was built" in capsys.readouterr().err


def test_a_list_of_callbacks_that_another_in_the_same_file_replaces_is_refused(config, tmp_path, capsys):
    private = (
        "  - {class_path: lightning_pac.SRPPSGD, init_args: {scenario: {num_differing: 1}, noise_multiplier: 3.0}}"
    )
    timer = "  - class_path: lightning.pytorch.callbacks.Timer"
    (tmp_path / "twice.yaml").write_text(f"trainer:\n  callbacks:\n{private}\n  callbacks:\n{timer}\n")
    assert cli.main(["fit", "--config", "mine.yaml", "--config", "twice.yaml"]) != 0
    assert "'callbacks' stands there twice at line 4, column 3" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_list_of_callbacks_beside_one_that_appends_is_refused(config, tmp_path, capsys):
    """Of the two in one file LightningCLI keeps the second alone, in whichever order they come."""
    private = "{class_path: lightning_pac.SRPPSGD, init_args: {scenario: {num_differing: 1}, noise_multiplier: 3.0}}"
    timer = "{class_path: lightning.pytorch.callbacks.Timer}"
    (tmp_path / "both.yaml").write_text(f"trainer:\n  callbacks: [{private}]\n  callbacks+: {timer}\n")
    assert cli.main(["fit", "--config", "mine.yaml", "--config", "both.yaml"]) != 0
    assert "has `callbacks:` and `callbacks+:`, of which the second takes the place" in capsys.readouterr().err
    (tmp_path / "words.yaml").write_text("data: {words: {C: 1, C+: 2, callbacks: 3, callbacks+: 4}}\n")
    assert not named_callbacks(["--config", "words.yaml"])


def test_files_that_are_no_configuration_are_not_read(config, tmp_path):
    """Records, one JSON to a line, were refused as no YAML, and many of them parsed for minutes."""
    (tmp_path / "records.json").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "named.yaml").write_text("class_path: no_such_module.SRPPSGD\n")
    arguments = {"annotations": "records.json", "config": "records.json", "others": ["named.yaml"]}
    (tmp_path / "data.yaml").write_text(yaml.safe_dump({"data": {"init_args": arguments}}))
    words = ["--data.annotations=records.json", "--data.config", "records.json", "--data.pattern=[0-9]+{.png"]
    assert not named_callbacks(["--config", "data.yaml", *words])


def test_keys_that_yaml_merges_stand_there_once(tmp_path):
    path = tmp_path / "merged.yaml"
    path.write_text(
        "base: &base {a: 1, b: &inner {c: 2}}\nown: &own\n  <<: *base\n  a: 3\nagain: [*own, *own, *inner]\n"
    )
    content = read_yaml(path, "merged.yaml")
    assert content["own"] == {"a": 3, "b": {"c": 2}} == content["again"][1]


@pytest.mark.parametrize("path", ["no_such_module.SRPPSGD", "lightning_pac.SRPPSDG", "broken_module.Mine"])
def test_a_path_that_leads_nowhere_is_refused_since_it_might_name_ours(config, tmp_path, capsys, path):
    (tmp_path / "broken_module.py").write_text("import no_such_module\n")
    (tmp_path / "private.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [{"class_path": path}]}}))
    assert cli.main(["fit", "--config", "private.yaml", "--config", "mine.yaml"]) != 0
    assert path in capsys.readouterr().err


def test_texts_that_might_be_scripts_are_not_run(config, tmp_path):
    (tmp_path / "script.py").write_text("raise SystemExit('was run')\n")
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({"trainer": {"default_root_dir": "script.out"}}))
    assert not named_callbacks(["--config", "other.yaml", "--data.path=script.csv"])


def test_without_the_check_that_run_would_have_trained_without_privacy(config, monkeypatch, capsys):
    monkeypatch.setattr("lightning_pac.cli.lightning.named_callbacks", lambda words: {})
    assert cli.main(["fit", "--config", str(find_recipe("srpp_sgd")), "--config", "mine.yaml"]) == 0


def test_callbacks_are_found_wherever_a_command_line_names_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = {"class_path": "lightning_pac.callbacks.SRPPSGD"}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks+": entry}}))
    (tmp_path / "plain").write_bytes((tmp_path / "one.yaml").read_bytes())
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({"callbacks": [entry, "lightning_pac.callbacks.SRPPSGD"]}))
    (tmp_path / "all.yaml").write_text(yaml.safe_dump({"trainer": "two.yaml"}))
    (tmp_path / "entry.cfg").write_text(yaml.safe_dump(entry))
    (tmp_path / "listed.yaml").write_text(yaml.safe_dump({"config": "dotted.yaml"}))
    (tmp_path / "dotted.yaml").write_text(yaml.safe_dump({"trainer.callbacks": ["entry.cfg"]}))
    for words, count in [
        (["--config", "one.yaml"], 1),
        (["--config=one.yaml"], 1),
        (["--config", "plain"], 1),
        (["--config=plain", "--config", "two.yaml"], 2),
        (["--config", "one.yaml", "--config", "two.yaml"], 2),
        (["--config", "all.yaml"], 2),
        (["--trainer", "two.yaml"], 2),
        (["--conf", "one.yaml"], 1),
        (["--config", "listed.yaml"], 1),
        (["--trainer.callbacks+=entry.cfg"], 1),
        (["--trainer={callbacks: [entry.cfg]}"], 1),
        (["--trainer.callbacks+=SRPPSGD"], 1),
        (["--trainer.callbacks", '[{"class_path": "lightning_pac.callbacks.SRPPSGD"}]'], 1),
        (["--trainer.callbacks+=lightning.pytorch.callbacks.Timer", "--trainer.max_epochs=3"], 0),
        (["--trainer.strategy=lightning_pac.strategies.Nothing", "--config", "missing.yaml"], 0),
    ]:
        assert named_callbacks(words)[SRPPSGD] == count, words


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 2, "num_differing is 0, but two worlds differ in at least one record"),
        ([WORLDS, "--trainer.callbacks.notion=best"], 2, "Expected a typing.Literal['ave', 'joint'"),
        ([WORLDS, "--trainer.callbacks.epsilon=-1"], 2, "epsilon is -1.0, but must be positive"),
        ([WORLDS, "--trainr.max_epochs=1"], 2, "unrecognized arguments: --trainr.max_epochs=1"),
        (
            [WORLDS, "--trainer.gradient_clip_val=1"],
            1,
            "would rescale the noised gradient",
        ),  # of 1 or 1.0, as typing unites both
    ],
)
def test_errors_are_one_line_without_a_traceback(config, capsys, words, code, sentence):
    assert cli.main(["fit", "--config", "mine.yaml", "--recipe", "srpp_sgd", *words]) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lightning-pac fit: error: ")]
    assert len(lines) == 1
    assert sentence in lines[0]
    assert "Given value" not in lines[0]


def check(capsys, *words):
    code = cli.main(["check", "--config", "mine.yaml", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_check_promises_what_fit_then_does_and_leaves_no_trace(config, tmp_path, capsys):
    before = sorted(tmp_path.rglob("*"))
    code, found = check(capsys, "--recipe", "srpp_sgd", WORLDS)
    assert code == 0
    assert found["refused"] is None
    assert sorted(tmp_path.rglob("*")) == before
    assert (found["steps"], found["notion"], found["records_that_may_differ"]) == (4, "rpp", 3)
    assert "EpochShuffle(batch_size=719" in found["sampling"]
    assert cli.main(["fit", "--config", "mine.yaml", "--recipe", "srpp_sgd", WORLDS]) == 0
    card = json.loads((tmp_path / "out" / "lightning_logs" / "version_0" / "privacy_card.json").read_text())
    guarantees = {entry["name"]: entry["value"] for entry in card["guarantees"]}
    assert card["details"]["noise_multiplier"] == found["noise_multiplier"]
    assert guarantees["rpp_epsilon"] == pytest.approx(found["epsilon"])
    assert guarantees["world_success_bound"] == pytest.approx(found["world_success_bound"])


def test_check_says_whose_records_count_as_one(config, tmp_path, capsys):
    """Nothing told a promise about persons from one about records."""
    words = ["--recipe", "srpp_sgd", WORLDS, "--trainer.callbacks.unit={of: 1, at_most: 4}",
             "--trainer.callbacks.sampling=Poisson", "--trainer.callbacks.sampling.rate=0.5"]  # fmt: skip
    _, found = check(capsys, *words)
    named = "a person, with all records that name them (at position 1, counted from 0), of which at most 4 are used"
    assert found["unit"] == named
    dotted = ["--trainer.callbacks.unit.of=1", "--trainer.callbacks.unit.at_most=4"]
    assert check(capsys, *words[:3], *dotted, *words[4:])[1]["unit"] == named, "not a key named '1'"
    assert cli.main(["check", "--config", "mine.yaml", *words]) == 0
    assert "unit of privacy" in (text := capsys.readouterr().out)
    assert "persons that may differ" in text
    assert "such as its label" in text.replace("\n", " "), "which is what lies at position 1"
    assert check(capsys, "--recipe", "srpp_sgd", WORLDS)[1]["unit"] is None


def test_check_reads_a_ledger_and_charges_nothing(config, tmp_path, capsys):
    with PrivacyLedger(tmp_path / "study.db", budget={"rpp": 5.0}):
        pass
    words = ["--recipe", "srpp_sgd", WORLDS, "--trainer.callbacks.ledger=study.db"]
    _, found = check(capsys, *words)
    assert found["left_in_ledger"] == 5
    assert "5 left and the whole run costs 8" in found["warnings"][-1]
    with sqlite3.connect(tmp_path / "study.db") as connection:
        assert connection.execute("SELECT COUNT(*) FROM accounts").fetchone() == (0,)
    code, found = check(capsys, *words, "--trainer.callbacks.epsilon=4")
    assert (code, found["warnings"]) == (0, [])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "No callback of this package protects the gradients"),
        (["--recipe", "srpp_sgd", WORLDS, "--trainer.gradient_clip_val=1"], "gradient_clip_val=1"),
        (["--recipe", "srpp_sgd", WORLDS, "--ckpt_path=last.ckpt"], "leave ckpt_path out"),
        (["--recipe", "srpp_sgd", "--trainer.callbacks.scenario.num_differing=9999"], "only 1437 records to differ in"),
    ],
)
def test_check_says_what_is_refused(config, capsys, words, sentence):
    code, found = check(capsys, *words)
    assert code == 1
    assert sentence in found["refused"]
    assert cli.main(["check", "--config", "mine.yaml", *words]) == 1
    assert sentence in capsys.readouterr().err


def test_check_names_the_ledger_that_was_given(config, tmp_path, capsys):
    with PrivacyLedger(tmp_path / "study.db") as ledger:
        ledger.account("of others", "rpp", {"coupling": {"num_differing": 5}}).charge(1.0)
    words = ["--recipe", "srpp_sgd", WORLDS, "--trainer.callbacks.ledger", str(tmp_path / "study.db")]
    assert cli.main(["check", "--config", "mine.yaml", *words]) == 1
    assert f"account 'of others' of {tmp_path / 'study.db'} is about" in " ".join(capsys.readouterr().err.split())


def test_check_holds_a_run_to_the_promise_of_a_ledger_that_it_does_not_make(config, tmp_path, capsys):
    """The copy that stood for the ledger knew nothing of what it was to be declared with."""
    ledger = {
        "class_path": "lightning_pac.accountants.PlannedLedger",
        "init_args": {"given": "new.db", "epsilon": 1.0, "renyi_order": 16},
    }
    code, found = check(capsys, "--recipe", "srpp_sgd", WORLDS, f"--trainer.callbacks.ledger={json.dumps(ledger)}")
    assert code == 1
    assert f"The ledger {tmp_path / 'new.db'} promises" in found["refused"]
    assert not (tmp_path / "new.db").exists()


def test_check_charges_nothing_whoever_opens_a_ledger(config, tmp_path, capsys):
    """A datamodule that narrows its ranges in `setup` paid for that in every dry run, in the ledger itself."""
    (tmp_path / "charging.py").write_text(
        "from digits import DigitsData, LinearDigits\n"
        "from lightning_pac import PrivateMetrics, TableTransform, TwoWorldScenario\n"
        "class Charging(DigitsData):\n"
        "    def setup(self, stage):\n"
        "        super().setup(stage)\n"
        "        rows = [{'age': str(age)} for age in range(200)]\n"
        "        TableTransform.private(rows, {'age': [0, 300]}, ledger='tab.db', epsilon=0.5, delta=1e-6)\n"
        "class Measured(LinearDigits):\n"
        "    def configure_callbacks(self):\n"
        "        worlds = TwoWorldScenario(3)\n"
        "        return [PrivateMetrics(['val'], worlds, epsilon=1.0, renyi_order=16, ledger='conf.db')]\n"
    )
    before = {path.name for path in tmp_path.iterdir()} | {"__pycache__"}
    given = ["--data=charging.Charging", "--model=charging.Measured"]
    code, found = check(capsys, "--recipe", "srpp_sgd", WORLDS, *given)
    assert (code, found["refused"]) == (0, None)
    assert {path.name for path in tmp_path.iterdir()} <= before


def test_check_says_all_that_is_refused_a_line_each(config, capsys):
    words = ["--recipe", "srpp_sgd", WORLDS, "--trainer.gradient_clip_val=1", "--trainer.detect_anomaly=true"]
    code, found = check(capsys, *words)
    assert code == 1
    assert [line.split()[1].split("=")[0] for line in found["refused"].split("\n")] == [
        "gradient_clip_val",
        "detect_anomaly",
    ]
    assert cli.main(["check", "--config", "mine.yaml", *words]) == 1
    assert f"check: error: {found['refused']}\n" in capsys.readouterr().err


def test_check_warns_of_noise_that_drowns_the_signal(config, capsys):
    assert cli.main(["check", "--config", "mine.yaml", "--recipe", "srpp_sgd", WORLDS,
                     "--trainer.callbacks.epsilon=1e-5"]) == 0  # fmt: skip
    text = capsys.readouterr().out
    assert "Warning: This run will probably learn nothing" in text
    assert "end where they began" in text
    assert "conditions, which --json and the card of the run list" in text
