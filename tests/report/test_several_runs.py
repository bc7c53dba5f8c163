"""What a page of several runs says of figures alone, of whole ledgers, of the cost, and of what tells runs apart."""

import base64
import dataclasses
import json
import re
import sqlite3
from pathlib import Path

import pytest

from lightning_pac import cli
from lightning_pac.accountants import LedgerBudget
from lightning_pac.cards import Guarantee, PrivacyCard
from lightning_pac.ledger import PrivacyLedger, backup_ledger
from lightning_pac.mechanisms.responses.card import open_answers, responder_card
from lightning_pac.report import find_runs, summarize, write_report
from lightning_pac.report.ledgers import find_ledgers, together
from lightning_pac.report.verdict import accuracy_cost, verdict
from lightning_pac.scenarios import BalancedSubsets

CARD = PrivacyCard(
    "A model",
    "Whether any one record is in the data.",
    (
        Guarantee("epsilon_at_delta", 3.0, "nats", "Three."),
        Guarantee("world_success_bound", 0.64, "probability", "Nobody guesses much."),
    ),
    (),
    details={"unit_of_privacy": "record", "scenario": {"num_differing": 1}, "num_steps": 60, "prior": 0.5},
)


def write_run(folder, accuracy=None, noise=None, card=None, figures=None, steps=(59,), **details):
    """A run with a card, an ordinary one without, or one of figures alone."""
    folder.mkdir(parents=True)
    values = {} if accuracy is None else {"val/accuracy": accuracy}
    values |= {} if noise is None else {"val/accuracy_deviation": noise}
    for name, value in (figures or {}).items():
        values |= {name: value, f"{name}_deviation": 0.01}
    values |= {} if card is None else {"privacy/world_success_bound": 0.64}
    lines = [",".join(["step", *values]), *(",".join([str(step), *map(str, values.values())]) for step in steps)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    if card is not None:
        dataclasses.replace(card, details={**card.details, **details}).save(folder)


def write_ledger(path, accounts, epsilon=8.0, **worlds):
    budget = LedgerBudget(epsilon=epsilon, delta=1e-5)
    coupling = {"scenario": {"num_differing": 1, **worlds}, "renyi_order": budget.renyi_order}
    with PrivacyLedger(path) as ledger:
        budget.declare(ledger)
        for name in accounts:
            declaration = {"coupling": coupling, "epsilon_of_each": 0.04}
            ledger.account(name, "rpp", declaration).charge(0.04, {"mu_squared": 0.005})


def page_of(folder):
    return write_report(folder).read_text().replace("\N{NO-BREAK SPACE}", " ")


def above_folds(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page[page.index("<body>") : page.index("<details>")]))


def pictures(page):
    """Their texts, which matplotlib leaves as comments beside the outlines of the letters."""
    found = [base64.b64decode(text).decode() for text in re.findall(r"svg\+xml;base64,([^\"]+)", page)]
    return [re.findall(r"<!-- (.*?) -->", svg) for svg in found]


def test_a_run_of_noised_figures_alone_is_no_run_without_privacy(tmp_path):
    write_run(tmp_path / "private", 0.8, 0.01, CARD)
    write_run(tmp_path / "figures", figures={"age/mean": -0.36, "age/accuracy": 0.99}, steps=(0,))
    rows = {row["run"]: row for row in map(summarize, find_runs(tmp_path))}
    assert (rows["figures"]["only_figures"], rows["figures"]["is_private"]) == (True, True)
    assert rows["private"]["only_figures"] is False
    page = page_of(tmp_path)
    assert "Figures with noise, charged to a ledger; no model was trained." in page
    assert "age/mean -0.36 ± 0.01" in page
    for words in ("plain to see", "no promise", "no limit"):
        assert words not in page
        assert not any(words in text for texts in pictures(page) for text in texts)
    assert "everything that this run released, apart from the measured figures below" in above_folds(page)
    assert "no run without it is here" in above_folds(page)
    assert accuracy_cost({**rows["private"], "accuracy_name": "age/accuracy"}, list(rows.values())) is None
    alone = write_report(tmp_path / "figures").read_text()
    assert '<p class="verdict">Figures with noise' in alone


def test_an_error_is_shown_beside_that_of_a_run_without_privacy(tmp_path):
    write_run(tmp_path / "private", card=CARD, figures={"val/mae": 1.2}, max_grad_norm={"all": 1.0}, clipping="clip")
    write_run(tmp_path / "rule", card=CARD, figures={"val/mae": 1.3}, max_grad_norm={"all": 1.0}, clipping="normalise")
    write_run(tmp_path / "other", 0.8)
    text = above_folds(page_of(tmp_path))
    assert "private" in text
    assert "clipping norm 1 " in text
    assert "automatic clipping" in text, "whose norm nobody has chosen"
    assert "none of the runs without it logged one under the same name" in text
    write_run(tmp_path / "ordinary")
    (tmp_path / "ordinary" / "metrics.csv").write_text("step,val/mae\n59,1.1\n")
    text = above_folds(page_of(tmp_path))
    assert "What was measured stands below, beside that of run ordinary without privacy." in text
    assert re.search(r"ordinary None: the secret may be plain to see\. val/mae 1\.1 ", text)


def test_an_accuracy_without_noise_is_said_to_be_outside_the_promise(tmp_path):
    """A page for a manager showed what a newcomer's first run logged of private records as if it were covered."""
    write_run(tmp_path / "noised", 0.8, 0.01, CARD)
    assert "no promise covers it" not in above_folds(page_of(tmp_path))
    write_run(tmp_path / "other" / "noised", 0.8, 0.01, CARD)
    write_run(tmp_path / "other" / "raw", 0.8, None, CARD)
    write_run(tmp_path / "ordinary", 0.9)
    for folder in (tmp_path, tmp_path / "other"):
        assert "An accuracy without ± was measured without noise" in above_folds(page_of(folder))


def test_an_ordinary_training_with_noised_metrics_is_one_without_privacy(tmp_path):
    write_run(tmp_path / "ordinary", 0.8, 0.01)
    write_run(tmp_path / "figures", figures={"age/mean": -0.36}, steps=(0,))
    rows = [summarize(run) for run in find_runs(tmp_path)]
    assert {row["run"]: row["is_private"] for row in rows} == {"ordinary": False, "figures": True}
    assert verdict(rows) == "Run ordinary promises nothing: the secret may be plain to see."


def test_the_total_of_a_shared_ledger_stands_below_the_verdict(tmp_path, monkeypatch, capsys):
    """As `lightning-pac account total` states it, wherever the report is written."""
    logs = tmp_path / "study" / "lightning_logs"
    for number in range(2):
        write_run(logs / f"version_{number}", 0.8, 0.01, CARD, ledger=f"training-{number}")
    write_run(logs / "figures", figures={"age/mean": -0.36}, steps=(0,))
    accounts = ["training-0", "training-1", "metrics val/accuracy", "metrics age/mean (2)"]
    write_ledger(path := logs.parent / "calls.db", accounts)
    before = path.read_bytes()
    assert cli.main(["account", "total", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    page = page_of(logs)
    words = f"at most {cli_percent(told['world_success_bound'])} of the time (epsilon "
    sentence = (
        "an attacker who sees everything that ledger calls.db lists, the measured figures below included, can guess"
    )
    _, said, rest = above_folds(page).partition(f"{sentence} the secret correctly {words}")
    epsilon, _, rest = rest.partition(" at delta 1e-05, its whole budget, also where some of it is left). A coin")
    alone = "From one of these runs alone, without those measured figures, a guess is correct at most 64 % of the time."
    assert alone in rest
    assert said
    assert told["epsilon_at_delta"] <= float(epsilon) <= told["epsilon_at_delta"] * 1.001 + 1e-9
    assert 0.9 < told["world_success_bound"] < 1.0
    (mark,) = re.findall(r'<div class="bar"><span[^>]*>(.*?)</span></div>', page)
    assert mark == cli_percent(told["world_success_bound"]), "the scale shows the figure to quote"
    assert "<summary>Everything in a ledger</summary>" in page
    assert "account total" not in above_folds(page)
    assert path.read_bytes() == before
    write_run(logs / "elsewhere", figures={"age/median": 0.1}, steps=(0,))  # which no ledger here lists
    other = page_of(logs)
    assert "ledger calls.db lists can guess the secret correctly" in above_folds(other)
    assert "lightning-pac account total" in above_folds(other)
    (logs / "elsewhere" / "metrics.csv").unlink()
    monkeypatch.chdir(tmp_path)  # the card may name the file, relative to the working folder
    path.rename(tmp_path / "calls.ledger")
    (logs.parent / "calls.db-mark").rename(tmp_path / "calls.ledger-mark")
    assert sentence not in page_of(logs)
    dataclasses.replace(CARD, details={"ledger": "training-0", "ledger_file": "calls.ledger"}).save(logs / "version_0")
    assert sentence.replace("calls.db", "calls.ledger") in page_of(logs)


def cli_percent(value):
    from lightning_pac.cards import at_most

    return at_most(value)


def test_several_ledgers_are_told_by_their_figures_and_none_for_all(tmp_path):
    for number, epsilon in enumerate((8.0, 8.0, 3.0, 0.0)):
        write_run(tmp_path / f"run_{number}", 0.8, 0.01, CARD, ledger=f"training-{number}")
        accounts = [f"training-{number}", "answers" if number == 2 else "metrics val/accuracy"]
        if epsilon:
            write_ledger(tmp_path / f"{number}.db", accounts, epsilon)
    with PrivacyLedger(tmp_path / "3.db") as ledger:  # without a budget
        for account in ("training-3", "other"):
            coupling = {"scenario": {"num_differing": 1}, "renyi_order": 4.0}
            terms = {"coupling": coupling, "epsilon_of_each": 0.04}
            ledger.account(account, "rpp", terms).charge(0.04, {"mu_squared": 0.005})
    backup_ledger(tmp_path / "0.db", tmp_path / "a copy.db")
    text = above_folds(page_of(tmp_path))
    assert "that one of the ledgers 0.db and 1.db lists, the noised figures below included, can guess" in text
    assert "everything that ledger 2.db lists can guess" in text, "its run's figures are charged elsewhere"
    assert "No limit is known for everything together that ledger 3.db lists." in text
    assert "None of these limits is for several ledgers together." in text
    assert "lightning-pac account total" in text, "since not all figures are told"


@pytest.mark.parametrize("others", [[], ["answers"]])
def test_ledgers_that_list_one_run_and_nothing_else_are_left_out(others, tmp_path):
    for number in range(8):
        write_run(tmp_path / f"run_{number}", 0.8, None, CARD, ledger=f"training-{number}")
        write_ledger(tmp_path / f"run_{number}" / "privacy_ledger.db", [f"training-{number}", *others])
    runs = find_runs(tmp_path)
    found = find_ledgers(runs)
    assert {ledger.name for ledger in found} == {f"{run.name}/privacy_ledger.db" for run in runs if others}
    if not others:  # whose card says as much
        return
    told, *_ = together(found, runs)
    assert "run_5/privacy_ledger.db and 2 more lists can guess" in told


@pytest.mark.parametrize("problem", ["missing", "foreign", "broken", "damaged", "locked", "other runs", "a folder"])
def test_a_ledger_that_cannot_be_read_stops_no_report(problem, tmp_path):
    write_run(tmp_path / "run", 0.8, 0.01, CARD, ledger="training-0")
    path, held = tmp_path / "calls.db", None
    if problem == "foreign":
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE accounts (name TEXT)")
            connection.execute("INSERT INTO accounts VALUES ('training-0')")
    elif problem == "broken":
        Path(f"{path}-mark").write_text("x")
        path.write_bytes(b"SQLite format 3\0" + b"\xff" * 200)
    elif problem == "a folder":
        path.mkdir()
    elif problem != "missing":
        write_ledger(path, ["training-9" if problem == "other runs" else "training-0", "metrics val/accuracy"])
    if problem == "damaged":
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE accounts SET spent = 0.0")
    if problem == "locked":
        held = sqlite3.connect(path, isolation_level=None)
        held.execute("PRAGMA locking_mode = EXCLUSIVE")
        held.execute("BEGIN EXCLUSIVE")
    page = page_of(tmp_path)
    assert "that ledger calls.db lists" not in page
    assert "<code>lightning-pac account total</code> states one for everything in a ledger." in page
    if held is not None:
        held.close()


def test_what_beats_the_ordinary_run_by_more_than_noise_has_no_known_cost(tmp_path):
    write_run(tmp_path / "plain", 0.55)
    for name, accuracy, noise in (("below", 0.45, 0.01), ("lucky", 0.565, 0.001), ("noisy", 0.70, 0.08)):
        write_run(tmp_path / name, accuracy, noise, CARD)
    write_run(tmp_path / "other", 0.80, 0.01, CARD)
    page = page_of(tmp_path)
    assert "Accuracy is 0.0 to 10.0 percentage points lower than that of run plain, the best without privacy (" in page
    assert "What privacy cost the run that reached more than that is not known." in page
    costs = re.findall(r"<td>(\w+)</td>.*?data-is=\"cost\">(.*?)</td>", page, re.DOTALL)
    assert dict(costs) == {
        "plain": "",
        "below": "10.0 points",
        "lucky": "0.0 points",
        "noisy": "0.0 points",
        "other": '<span class="words">not known: the run without privacy reached less</span>',
    }


def test_where_no_cost_is_known_the_verdict_says_so(tmp_path):
    write_run(tmp_path / "plain", 0.55)
    write_run(tmp_path / "private", 0.80, 0.01, CARD)
    text = above_folds(page_of(tmp_path))
    assert "Accuracy is 80.0 % (measured with noise of about 1.0 percentage points). How much accuracy" in text
    assert (
        "privacy cost is not known: run plain, the best without privacy, reached less and cannot be compared." in text
    )
    assert "lower than" not in text


def test_what_differs_between_the_runs_stands_below_their_names(tmp_path):
    write_run(tmp_path / "a", 0.8, None, CARD, ledger="training-0", num_parameters=65587, model="Classifier")
    write_run(tmp_path / "b", 0.8, None, CARD, ledger="training-1", num_parameters=65587, num_steps=10)
    write_run(tmp_path / "c", 0.8)
    (tmp_path / "a" / "hparams.yaml").write_text(
        "lr: 0.1\nwidth: 32\nhidden: !!python/tuple [64, 8]\noptimizer: {momentum: 0.9}\nsame: 1\n"
    )
    (tmp_path / "b" / "hparams.yaml").write_text("lr: 0.5\nwidth: 32\nsame: 1\n_class_path: shop.nets.Regressor\n")
    (tmp_path / "c" / "hparams.yaml").write_text("lr: [0.1\n")  # which does not read
    page = page_of(tmp_path)
    assert re.findall(r'<tr class="differing"><td colspan="\d">(.*?)</td>', page) == [
        "Classifier, lr 0.1, hidden [64, 8], optimizer.momentum 0.9, 60 steps, account training-0",
        "Regressor, lr 0.5, 10 steps, account training-1",
    ]


def test_an_epsilon_that_differs_is_told_and_many_settings_are_cut(tmp_path):
    stronger = dataclasses.replace(CARD, guarantees=(dataclasses.replace(CARD.guarantees[0], value=1.0),))
    for name, card in (("a", CARD), ("b", stronger)):
        write_run(tmp_path / name, 0.8, None, card)
        settings = "".join(f"s{number}: {name * 60}\n" for number in range(8))
        (tmp_path / name / "hparams.yaml").write_text(settings)
    first, second = re.findall(r'<tr class="differing"><td colspan="\d">(.*?)</td>', page_of(tmp_path))
    assert first.endswith("…, …, epsilon 3")
    assert second.endswith("epsilon 1")
    assert "s5 " in first
    assert "s6 " not in first


def test_rows_say_whose_secret_it_is_where_units_differ(tmp_path):
    write_run(tmp_path / "rows", 0.8, None, CARD)
    person = dataclasses.replace(CARD, secret="Whether any one person is in the data.")
    write_run(tmp_path / "people", 0.7, None, person, unit_of_privacy="person")
    write_run(tmp_path / "plain", 0.9)
    page = page_of(tmp_path)
    promise = "A guess of the secret is correct at most 64 % of the time."
    assert f"<strong>Protects one row.</strong> {promise}" in page
    assert f"<strong>Protects everything of one person.</strong> {promise}" in page
    limits, cost = pictures(page)[:2]
    assert {"(one row)", "(everything of one person)", "(no promise)"} <= set(limits)
    assert {"rows (one row)", "people (everything of one person)"} <= set(cost)
    assert "Protects" not in page_of(tmp_path / "people")
    content = dataclasses.replace(CARD, secret="The office of one picture.")
    write_run(tmp_path / "fact", 0.8, None, content, scenario={"num_differing": 1, "adjacency": "replace"})
    assert f"<strong>Protects the whole content of one row.</strong> {promise}" in page_of(tmp_path)


def write_secrets(folder, secrets):
    for number, (secret, bound) in enumerate(secrets):
        guarantee = Guarantee("world_success_bound", bound, "probability", "Nobody guesses much.")
        card = dataclasses.replace(CARD, secret=secret, guarantees=(guarantee,))
        write_run(folder / f"run_{number}", 0.8, 0.01, card, ledger=f"training-{number}")


def test_no_sentence_joins_promises_about_different_secrets(tmp_path):
    rows, fact = "Whether any one record is in the data.", "The office of a picture. At most 1 record decides."
    write_secrets(tmp_path, [(rows, 0.62), (fact, 0.55), (rows, 0.7)])
    page = page_of(tmp_path)
    text = above_folds(page)
    assert (
        "can guess the secret of that run correctly at most as often as the list below says. A coin gets 50 %." in text
    )
    assert f"At most 62 or 70 % of the time, depending on the run , in 2 runs: {rows}" in text
    assert f"At most 55 % of the time , in one run: {fact}" in text
    assert "55 to 70 %" not in text
    assert 'class="scale"' not in page, "one scale would join them"
    for number in range(3):
        write_ledger(tmp_path / f"{number}.db", [f"training-{number}", "metrics val/accuracy"])
    text = above_folds(page_of(tmp_path))
    assert "0.db and 2.db lists, the noised figures below included, can guess the secret (whether any one" in text
    assert "ledger 1.db lists, the noised figures below included, can guess the secret (The office of" in text
    assert "at delta 1e-05, its whole budget, also where some of it is left)" in text
    write_secrets(tmp_path / "many", [(f"Fact {number}.", 0.6) for number in range(9)])
    text = above_folds(page_of(tmp_path / "many"))
    assert "can guess the secret of that run correctly at most as often as its row says." in text
    assert "The secret is not the same in all runs: the table says it of each." in text


def test_an_accuracy_that_was_shown_again_is_said_to_be_of_its_step(tmp_path):
    """It stood there as if it were the final model's, and what privacy cost was taken from it."""
    write_run(tmp_path / "ordinary", 0.9)
    write_run(tmp_path / "private", 0.5, 0.01, CARD)
    file = tmp_path / "private" / "metrics.csv"
    head = file.read_text().splitlines()[0]
    file.write_text("\n".join([head, "19,0.4,0.011,0.6", "39,0.5,0.01,0.62", "59,0.5,0.01,0.64"]) + "\n")
    text = above_folds(page_of(tmp_path))
    assert "50.0 % ± 1.0 % noise only; of step 39, as no later one was paid for" in text
    assert "The accuracy of the final model was not measured." in text
    assert "percentage points lower" not in text
    file.write_text(file.read_text().replace("59,0.5,", "59,0.51,"))
    text = above_folds(page_of(tmp_path))
    assert "of step" not in text
    assert "39.0 percentage points lower" in text


@pytest.mark.parametrize(
    ("adjacency", "of_figures", "is_larger"),
    [
        ("add_remove", {"adjacency": "add_remove"}, True),
        ("replace", {"adjacency": "add_remove"}, False),
        ("add_remove", {"adjacency": "replace"}, False),
        ("add_remove", {"adjacency": "add_remove", "num_differing": 2}, False),  # of which one is held out
        ("add_remove", {}, False),
    ],
)
def test_ledgers_of_figures_alone_are_named_beside_the_runs(adjacency, of_figures, is_larger, tmp_path):
    worlds = {"scenario": {**CARD.details["scenario"], "adjacency": adjacency}}
    write_run(tmp_path / "logs" / "run", 0.8, 0.01, CARD, ledger="training-0", **worlds)
    write_ledger(tmp_path / "training.db", ["training-0"])
    assert "lightning-pac account total" in above_folds(page_of(tmp_path / "logs"))
    write_ledger(tmp_path / "held_out.db", ["metrics val/accuracy", "metrics val/accuracy (2)"], 1.0, **of_figures)
    write_ledger(tmp_path / "other.db", ["metrics val/error"])
    write_ledger(tmp_path / "mixed.db", ["metrics val/accuracy", "training-7"])
    (tmp_path / "logs" / "elsewhere").mkdir()
    write_ledger(tmp_path / "logs" / "elsewhere" / "far.db", ["metrics val/accuracy"])
    page = page_of(tmp_path / "logs")
    assert "held_out.db lists figures of such names" in above_folds(page)
    assert "lightning-pac account total" not in above_folds(page)
    fold = page[page.index("<summary>Everything in a ledger</summary>") :]
    assert re.findall(r"<tr><td>(\w+\.db)</td>", fold) == ["training.db", "held_out.db"]
    assert "the other only follows from it" in " ".join(fold.split())
    assert "everything that ledger held_out.db" not in page, "whose figures they are is not known"
    limit = re.search(r"held_out.db lists figures of such names: a guess .* \(epsilon ([\d.]+) at delta 1e-05", page)
    assert 0.9 < float(limit[1]) <= 1.0, "what was declared for it"
    assert ("the larger of these limits holds for a model and its figures" in page) == is_larger


@pytest.mark.parametrize(
    ("name", "value", "noise", "words"),
    [
        ("recall/2", 1.061, 0.11, "recall/2 1.061 ± 0.11 (above 1 by noise)"),
        ("mean/F1", -0.02, 0.11, "mean/F1 -0.02 ± 0.11 (below 0 by noise)"),
        ("recall/2", 0.99, 0.11, "recall/2 0.99 ± 0.11"),
        ("recall/2", 93.2, 0.11, "recall/2 93.2 ± 0.11"),  # in percent
        ("error", 1.061, 0.11, "error 1.061 ± 0.11"),
    ],
)
def test_a_share_that_noise_took_out_of_its_range_says_so(tmp_path, name, value, noise, words):
    write_run(tmp_path / "a", 1.004, 0.01, CARD)
    write_run(tmp_path / "b", None, None, None, {name: value}, steps=(0,))
    file = tmp_path / "b" / "metrics.csv"
    file.write_text(file.read_text().replace(",0.01", f",{noise}"))
    text = above_folds(page_of(tmp_path))
    assert f"{words} (± noise only)" in text
    assert "100.4 % ± 1.0 % noise only (above 100 % by noise)" in text


def test_answers_have_a_secret_whose_figure_stands_beside_it(tmp_path):
    """Of logs without a card, and of a card; the figure is that of a record, not of the whole subset."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "metrics.csv").write_text("step,privacy/membership_success_bound\n100,0.5003\n")
    write_run(tmp_path / "rows", 0.8, None, CARD)
    pool = BalancedSubsets(num_records=6, num_subsets=4, seed=0)
    with PrivacyLedger(tmp_path / "answers.db") as ledger:
        card = responder_card(open_answers(ledger, "responses", pool, "logdet", "responses"))
    write_run(tmp_path / "answers", None, None, card)
    rows = {row["run"]: row for row in map(summarize, find_runs(tmp_path))}
    assert rows["logs"]["secret"] == "Whether a given record was used to train the model that answers."
    assert rows["answers"]["secret"].startswith("Whether a given record was used to train the model that answers, from")
    assert rows["answers"]["secret"].endswith("It was trained on one of 4 public subsets of 6 records.")
    assert "Protects one row, or one person if each subset has all of their rows or none." in page_of(tmp_path)


def test_a_cost_that_is_known_of_one_run_is_told_of_that_run(tmp_path):
    write_run(tmp_path / "plain", 0.85)
    write_run(tmp_path / "measured", 0.80, 0.01, CARD)
    write_run(tmp_path / "unmeasured", None, None, CARD)
    text = above_folds(page_of(tmp_path))
    assert "Accuracy of run measured is 5.0 percentage points lower than that of run plain" in text


def test_a_standard_error_stands_in_place_of_the_noise(tmp_path, capsys):
    write_run(tmp_path / "run", 0.8, 0.01, CARD, {"val/f1": 0.7})
    file = tmp_path / "run" / "metrics.csv"
    head, *rows = file.read_text().splitlines()
    errors = ",val/accuracy_standard_error,val/f1_standard_error"
    file.write_text("\n".join([head + errors, *(f"{row},0.013,0.021" for row in rows)]) + "\n")
    text = above_folds(page_of(tmp_path))
    assert "80.0 % ± 1.3 % standard error" in text
    assert "val/f1 0.7 ± 0.021" in text
    assert "noise only" not in text
    assert "Accuracy is 80.0 % (measured with a standard error of about 1.3 percentage points)" in text
    assert cli.main(["report", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "80.0 % ± 1.3 %" in shown
    assert "val/f1 0.7 ± 0.021" in shown
    assert "of noise" not in shown
