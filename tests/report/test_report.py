import base64
import csv
import dataclasses
import html
import json
import os
import re
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from lightning_pac import cli
from lightning_pac.cards import Estimate, Guarantee, PrivacyCard, Roc
from lightning_pac.report import find_runs, left_out, summarize, write_report
from lightning_pac.report.plots import attack_plot, course_plot
from lightning_pac.report.runs import Run, Series
from lightning_pac.report.verdict import verdict

ATTACK = Estimate("loss_threshold_attack_success", 0.53, "probability", "Slightly better than a coin.", "a threshold",
                  interval=(0.5, 0.56), confidence=0.95)  # fmt: skip
CARD = PrivacyCard(
    title="Digits <private>",
    secret="How many sevens there are.",
    guarantees=(
        Guarantee("srpp_joint_epsilon", 5.9, "nats", "Little can be told."),
        Guarantee("rpp_epsilon", 3.0, "nats", "The same, amplified."),
    ),
    conditions=("Batches stay secret.",),
    estimates=(ATTACK,),
    details={"renyi_order": 4.0},
)


def write_csv(folder, private=True):
    folder.mkdir(parents=True)
    with (folder / "metrics.csv").open("w", newline="") as file:
        names = ["epoch", "step", "val_acc", "test_acc"]
        privacy = ["privacy/rpp_epsilon", "privacy/srpp_joint_epsilon", "privacy/world_success_bound",
                   "privacy/noise_multiplier", "privacy/clipped_fraction_epoch"]  # fmt: skip
        writer = csv.DictWriter(file, names + (privacy if private else []))
        writer.writeheader()
        for step in range(30):
            row = {"epoch": step // 10, "step": step}
            if private:
                row |= {"privacy/rpp_epsilon": step / 10, "privacy/srpp_joint_epsilon": step / 5,
                        "privacy/world_success_bound": 0.5 + step / 100, "privacy/noise_multiplier": 12.5}  # fmt: skip
            writer.writerow(row)
            if step % 10 == 9:
                row = {"epoch": step // 10, "step": step, "val_acc": 0.5 + step / 100}
                writer.writerow(row | ({"privacy/clipped_fraction_epoch": 0.9} if private else {}))
        writer.writerow({"epoch": 3, "step": 30, "test_acc": 0.875})


@pytest.fixture
def runs(tmp_path):
    write_csv(tmp_path / "private")
    CARD.save(tmp_path / "private" / "checkpoints")
    write_csv(tmp_path / "plain", private=False)
    os.utime(tmp_path / "plain" / "metrics.csv", (0, 0))
    return tmp_path


def test_runs_are_read_with_their_metrics_and_cards(runs):
    plain, private = find_runs(runs)
    assert (plain.name, plain.card, plain.epsilon) == ("plain", None, None)
    assert private.card == CARD
    name, course = private.epsilon
    assert name == "privacy/srpp_joint_epsilon"
    assert (course.steps[-1], course.values[-1]) == (29, 5.8)
    assert private.metric("privacy/clipped_fraction").values == (0.9, 0.9, 0.9)
    assert private.accuracy[1].values == (0.875,)
    assert private.attacks == (ATTACK,)


def test_steps_are_counted_by_the_card_and_attacks_have_a_column_where_there_are_any(tmp_path):
    """A logger counts steps from zero, so the last that it names is one less than were taken."""
    write_csv(tmp_path / "run")
    dataclasses.replace(CARD, estimates=(), details={"num_steps": 50}).save(tmp_path / "run")
    assert summarize(find_runs(tmp_path)[0])["steps"] == 50
    dataclasses.replace(CARD, estimates=(), details={"num_steps": 0}).save(tmp_path / "run")  # killed since its start
    assert summarize(find_runs(tmp_path)[0])["steps"] == 30
    dataclasses.replace(CARD, estimates=(), details={"num_steps": 50}).save(tmp_path / "run")
    page = write_report(tmp_path).read_text()
    assert "attacks: success" not in page
    CARD.save(tmp_path / "run")
    assert "attacks: success" in write_report(tmp_path).read_text()


def test_without_another_notion_the_unsliced_epsilon_is_meant(tmp_path):
    write_csv(tmp_path / "run")
    path = tmp_path / "run" / "metrics.csv"
    path.write_text(path.read_text().replace("privacy/srpp_joint_epsilon", "unrelated"))
    assert find_runs(tmp_path)[0].epsilon[0] == "privacy/rpp_epsilon"


def test_a_run_too_short_for_its_logger_is_read_from_its_card(tmp_path):
    write_csv(tmp_path / "run", private=False)
    CARD.save(tmp_path / "run")
    (run,) = find_runs(tmp_path)
    row = summarize(run)
    assert run.epsilon is None
    assert (row["epsilon_name"], row["epsilon"], row["renyi_order"]) == ("srpp_joint_epsilon", 5.9, 4.0)
    assert "Little can be told." in verdict([row])


def test_private_answers_are_told_by_their_guarantees(tmp_path):
    header = "step,privacy/mutual_information,privacy/membership_success_bound,privacy/time_epsilon"
    (tmp_path / "metrics.csv").write_text(f"{header}\n0,0.01,0.57,3.0\n")
    meaning = "Nobody guesses much."
    PrivacyCard("Answers", "Who was used.", (Guarantee("membership_success_bound", 0.57, "probability", meaning),),
                conditions=()).save(tmp_path)  # fmt: skip
    page = write_report(tmp_path).read_text()
    assert meaning in page
    assert "plain to see" not in page
    assert "worlds differ in a few records" not in page
    assert "57\N{NO-BREAK SPACE}%" in page
    assert page.count("<figure") == 2  # the scale, and the bound over the answers; their information is the same


def test_without_a_card_the_logs_tell(tmp_path):
    write_csv(tmp_path / "run")
    row = summarize(find_runs(tmp_path)[0])
    assert (row["epsilon"], row["noise_multiplier"]) == (5.8, 12.5)
    assert row["success_bound"] == 0.79


def test_tensorboard_events_are_read(tmp_path):
    from lightning.pytorch.loggers import TensorBoardLogger

    logger = TensorBoardLogger(tmp_path, name="run", version=0)
    for step in range(5):
        logger.log_metrics({"privacy/rpp_epsilon": step / 2, "val_acc": 0.25}, step)
    logger.finalize("success")
    (run,) = find_runs(tmp_path)
    assert run.epsilon[1].values == (0.0, 0.5, 1.0, 1.5, 2.0)
    assert run.metric("val_acc").steps == (0, 1, 2, 3, 4)


def test_a_run_that_logged_nothing_is_left_out_beside_others(tmp_path):
    write_csv(tmp_path / "run")
    refused = tmp_path / "refused" / "metrics.csv"
    refused.parent.mkdir()
    refused.write_text("step\n")
    assert [run.name for run in find_runs(tmp_path)] == ["run"]
    PrivacyCard("A model", "A fact.", CARD.guarantees, (), details={"num_steps": 0}).save(refused.parent)
    assert "refused" not in [run.name for run in find_runs(tmp_path)], "its metrics were, after its card was written"
    assert [run.name for run in find_runs(refused.parent)] == ["refused"]


def test_the_page_says_what_the_numbers_mean_and_needs_no_other_file(runs):
    page = write_report(runs).read_text()
    assert page == (runs / "report.html").read_text()
    assert "The secret:</strong> How many sevens there are." in page
    assert "can guess the secret correctly at most 79\N{NO-BREAK SPACE}% of the time" in page
    assert "None: the secret may be plain to see." in page
    assert "0.0 points" in page  # both runs reach 87.5 %
    # Technical names are folded away.
    assert "epsilon" not in page[: page.index("<details>")].lower()
    assert "srpp_joint_epsilon" in page[page.index("<details>") :]
    assert "53.0 % (50 to 56 %)".replace(" %", "\N{NO-BREAK SPACE}%") in page
    assert "87.5\N{NO-BREAK SPACE}%" in page
    assert "Digits &lt;private&gt;" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    figures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(figures) == 4
    assert all(base64.b64decode(figure).startswith(b"<svg") for figure in figures)


def test_figures_without_data_are_left_out(tmp_path):
    write_csv(tmp_path / "plain", private=False)
    assert write_report(tmp_path, tmp_path / "pages" / "r.html").read_text().count("<figure") == 1


@pytest.mark.parametrize(("count", "is_named"), [(20, True), (21, False)])
def test_lines_of_many_runs_have_no_legend_that_would_fill_the_figure(count, is_named):
    """Placing 500 names took minutes, and they left no room for what they name."""
    metrics = {"privacy/rpp_epsilon": Series((0, 1, 2), (0.0, 1.0, 2.0))}
    runs = [Run(f"version_{position}", metrics, CARD) for position in range(count)]
    svg = course_plot(runs, lambda run: run.metric("privacy/rpp_epsilon"), "epsilon")
    assert ('id="legend_1"' in svg) == is_named
    assert svg.count("clip-path=") - svg.count("<clipPath") >= count
    bounds = attack_plot(runs, lambda run: 0.75)
    assert bounds.count('id="ytick_') == count if is_named else bounds.count('id="ytick_') < count


def test_the_command_reads_the_runs_once(runs, monkeypatch):
    read = []
    monkeypatch.setattr("lightning_pac.report.page.find_runs", read.append)
    assert cli.main(["report", str(runs), "--json"]) == 0
    assert not read


def test_the_command_prints_json_for_programs_and_a_table_for_people(runs, capsys):
    assert cli.main(["report", str(runs), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["runs"] == json.loads(json.dumps([summarize(run) for run in find_runs(runs)]))
    assert answer["runs"][1]["epsilon"] == 5.9
    assert cli.main(["report", str(runs)]) == 0
    printed = capsys.readouterr().out
    assert "guess correct at most" in printed
    assert re.search(r"│ +\d\d(\.\d+)? %", printed), "percent, as on the page"
    assert "epsilon at delta" in printed  # what DPSGD promises; a Rényi divergence beside it read as a broken promise


def test_an_accuracy_that_noise_hides_is_not_shown(tmp_path, capsys):
    write_csv(tmp_path / "run")
    file = tmp_path / "run" / "metrics.csv"
    first, *lines = file.read_text().splitlines()
    file.write_text(
        "\n".join([first + ",test_acc_deviation", *(f"{line}," for line in lines[:-1]), lines[-1] + ",6.6"])
    )
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "hidden by its noise" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "hidden by its noise" in page
    assert "660" not in page


def test_runs_that_hide_other_secrets_are_told_apart(tmp_path, capsys):
    for secret in ("Whether any one person is in the data.", "Whether any one record is in the data."):
        write_csv(folder := tmp_path / secret.split()[3])
        PrivacyCard("A model", secret, (Guarantee("world_success_bound", 0.6, "probability", "."),), ()).save(folder)
        assert cli.main(["report", str(folder)]) == 0
        assert "secret" not in capsys.readouterr().out
    assert cli.main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "person" in printed
    assert "record" in printed
    assert cli.main(["report", str(tmp_path), "--record", "farmer's sample"]) == 0
    page = html.unescape((tmp_path / "report.html").read_text())
    assert "Whether any one farmer's sample is in the data" in page
    assert "any one record" not in page
    assert "any one record" not in capsys.readouterr().out
    assert "any one person" in page
    assert cli.main(["report", str(tmp_path / "person"), "--record", "farmer"]) == 0
    assert "Whether any one farmer is in the data" in (tmp_path / "person" / "report.html").read_text()
    (tmp_path / "person" / "privacy_card.json").unlink()
    assert cli.main(["report", str(tmp_path / "person"), "--record", "farmer"]) == 1
    assert "no run here is about one: leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(("folder", "sentence"), [("nowhere", "There is no folder"), (".", "holds no metrics.csv")])
def test_folders_without_runs_are_refused(tmp_path, capsys, folder, sentence):
    assert cli.main(["report", str(tmp_path / folder)]) == 1
    assert sentence in capsys.readouterr().err


def test_the_promise_comes_first_and_the_best_attacker_has_a_picture(tmp_path):
    roc = Roc.of(lambda rate: min(1.0, 3 * rate))
    guarantees = (
        Guarantee("epsilon_at_delta", 3.0004, "nats", "Three, at delta."),
        Guarantee("world_success_bound", 0.6341, "probability", "Nobody guesses much."),
        Guarantee("rpp_epsilon", 7.0, "nats", "In the worst case."),
    )
    write_csv(tmp_path / "one")
    PrivacyCard("A model", "A fact.", guarantees, (), roc=roc).save(tmp_path / "one")
    page = write_report(tmp_path).read_text()
    assert "63.41\N{NO-BREAK SPACE}%" in page
    assert "The best possible attacker: how often" in page
    assert ">3.001<" in page, "rounded up"
    assert summarize(find_runs(tmp_path)[0])["epsilon_at_delta"] == 3.0004


def test_an_evaluation_alone_is_no_run_and_nan_no_accuracy(runs):
    evaluated = runs / "tested"
    evaluated.mkdir()
    (evaluated / "metrics.csv").write_text("epoch,step,test_acc,test_acc_deviation\n0,0,0.94,0.06\n")
    (runs / "refused").mkdir()
    (runs / "refused" / "hparams.yaml").write_text("{}")
    assert {run.name for run in find_runs(runs)} == {"private", "plain"}
    assert left_out([runs], find_runs(runs)) == ([runs / "refused"], [evaluated])
    assert [run.name for run in find_runs(evaluated)] == ["tested"], "where nothing else is, it is shown"
    file = runs / "plain" / "metrics.csv"
    file.write_text(file.read_text().replace("0.875", "nan"))
    assert {run.name: run.accuracy[0] for run in find_runs(runs)} == {"private": "test_acc", "plain": "val_acc"}


def test_the_card_that_an_earlier_run_left_is_not_that_of_an_ordinary_one(tmp_path):
    for name, private in (("again", False), ("private", True)):  # the logger of the second run removed only the table
        write_csv(tmp_path / name, private)
        dataclasses.replace(CARD, details={**CARD.details, "num_steps": 30}).save(tmp_path / name)
    found = {run.name: summarize(run) for run in find_runs(tmp_path)}
    assert {name: row["is_private"] for name, row in found.items()} == {"again": False, "private": True}


def write_events(folder, private, accuracy, steps=(9, 19)):
    """What Lightning's TensorBoard logger leaves: one file for each training and each evaluation, at the next step."""
    with SummaryWriter(folder) as writer:
        for step in steps:
            writer.add_scalar("val_accuracy", accuracy, step)
            if private:
                writer.add_scalar("privacy/rpp_epsilon", 0.1 * (step + 1), step)
    for number, path in enumerate(sorted(folder.glob("events*"), key=lambda path: int(path.name.rsplit(".", 1)[1]))):
        os.utime(path, (number, number))


@pytest.mark.parametrize(
    ("files", "private", "accuracy"),
    [
        ([(True, 0.5), (False, 0.75)], False, 0.75),
        ([(False, 0.75), (True, 0.5)], True, 0.5),
        ([(True, 0.5), (False, 0.75), (True, 0.25)], True, 0.25),
        ([(True, 0.5), (False, 0.75, [20])], True, 0.75),  # `trainer.validate` after `fit`
        ([(True, 0.5), (False, 0.75, [0])], True, 0.75),  # the same by a new Trainer
        ([(True, 0.5), (True, 0.25, [19, 29])], True, 0.25),  # resumed
    ],
)
def test_an_ordinary_and_a_private_run_in_one_folder_are_never_mixed(tmp_path, files, private, accuracy):
    dataclasses.replace(CARD, details={**CARD.details, "num_steps": 30}).save(tmp_path)
    for file in files:
        write_events(tmp_path, *file)
    (run,) = find_runs(tmp_path)
    found = summarize(run)
    assert (found["is_private"], found["accuracy"]) == (private, accuracy)
    steps = run.accuracy[1].steps
    assert list(steps) == sorted(set(steps)), "each step once"
    name = "train_loss" if private else "privacy/rpp_epsilon"  # a third run, with the other logger
    (tmp_path / "metrics.csv").write_text(f"step,{name}\n9,1.0\n19,1.0\n")
    assert summarize(find_runs(tmp_path)[0])["is_private"] is not private


def row(name, bound, accuracy, prior=0.5, noise=None):
    return {
        "run": name, "refuted": None,
        "success_bound": bound, "prior": prior, "is_private": bound is not None, "accuracy": accuracy,
        "accuracy_deviation": noise, "accuracy_error": None, "noised": {},
        "accuracy_name": "test_acc", "epsilon_name": "rpp_epsilon",
        "guarantees": [], "only_figures": False, "secret": "A fact.", "outdated": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([row("one", 0.6, 0.91)], "that this run released can guess the secret correctly at most 60 % of the time. "
                                  "A coin gets 50 %. Accuracy is 91.0 %. How much accuracy privacy cost"),
        ([row("plain", None, 0.96), row("one", 0.6, 0.91)], "that a private run released can guess the secret "
                                  "correctly at most 60 % of the time. A coin gets 50 %. Accuracy is 5.0 percentage"),
        ([row("plain", None, 0.96), row("one", 0.6, 0.91), row("two", 0.65, 0.95)], "at most 60 or 65 % of the time, "
                                  "depending on the run. A coin gets 50 %. Accuracy is 1.0 to 5.0 percentage points"),
        ([row(str(bound), bound, 0.9) for bound in (0.7, 0.6, 0.65, 0.6)], "at most 60, 65 or 70 % of the time, dep"),
        ([row(str(bound), bound, 0.9) for bound in (0.7, 0.6, 0.65, 0.55)], "at most 55 to 70 % of the time, dep"),
        ([row("lucky", 0.6, 0.97), row("plain", None, 0.96)], "is 0.0 percentage points lower than that of run plain"),
        ([row("one", 0.92, 0.91, prior=0.1)], "at most 92 % of the time. A blind guess gets 90 %. Accuracy"),
        ([row("one", 0.6, 0.91, noise=0.023)], "apart from the accuracies below, can guess the secret correctly at "
                                  "most 60 % of the time. A coin gets 50 %. Accuracy is 91.0 % (measured with noise "
                                  "of about 2.3 percentage points). How"),
        ([row("one", 0.6, 0.91, noise=0.023), row("b", 0.6, 0.143, noise=1.28)], "is 91.0 % (measured with noise"),
        ([row("two", 0.6, 0.143, noise=1.28)], "The noise in what was measured hides the accuracy."),
        ([row("plain", None, 0.96, noise=0.01), row("one", 0.6, 0.91)], "5.0 percentage points lower than that of "
                                  "run plain, the best without privacy (measured with noise of about 1.0 percentage"),
        ([row("plain", None, 0.96)], "This run promises nothing: the secret may be plain to see."),
        ([row("a", None, 0.9), row("b", None, 0.9)], "None of these 2 runs promises anything"),
    ],
)  # fmt: skip
def test_the_verdict_says_what_was_promised_and_what_it_cost(rows, sentence):
    assert sentence in verdict(rows).replace("\N{NO-BREAK SPACE}", " ")


def test_a_noised_accuracy_stands_with_its_deviation(tmp_path):
    for name, noise in (("exact", None), ("noised", "0.0234")):
        write_csv(tmp_path / name)
        file = tmp_path / name / "metrics.csv"
        lines = file.read_text().splitlines()
        if noise:  # beside the accuracy, as PrivateMetrics logs it
            named = [lines[0] + ",test_acc_deviation", *(f"{line}," for line in lines[1:])]
            file.write_text("\n".join([*named, named[-1].replace("0.875", "") + noise]) + "\n")
    assert [run.accuracy[0] for run in find_runs(tmp_path)] == ["test_acc", "test_acc"]
    page = write_report(tmp_path).read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert re.findall(r'data-is="accuracy">(.*?)</td>', page) == [
        "87.5 %",
        '87.5 % <br>± 2.3 % <br><span class="words">noise only</span>',
    ]
    assert "±: the standard error of a figure, by the noise" in page
    assert 'data-is="measured"' not in page
    file.write_text(file.read_text().replace("test_acc", "test_error"))
    page = write_report(tmp_path).read_text()
    assert re.findall(r'data-is="measured">(.*?)</td>', page) == [
        "",
        'test_error 0.875 ± 0.023 <span class="plain">(± noise only)</span>',
    ]
    file.write_text(file.read_text().replace("test_error", "test_acc"))
    page = write_report(tmp_path).read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "87.5 % (measured with noise of about 2.3 percentage points)" in page
    assert "released, apart from the accuracies below, can guess" in page


def test_the_command_names_runs_that_logged_no_metric(tmp_path, capsys):
    write_csv(tmp_path / "run")
    (tmp_path / "silent").mkdir()
    (tmp_path / "silent" / "hparams.yaml").write_text("lr: 0.1\n")
    SummaryWriter(tmp_path / "events").close()
    assert cli.main(["report", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"no metric was logged there: {tmp_path}/events, {tmp_path}/silent." in shown
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    assert "no metric was logged" not in capsys.readouterr().out


def test_the_clipped_fraction_is_no_result_of_a_run(tmp_path):
    series = {"privacy/world_success_bound": 0.6, "privacy/clipped_fraction": 0.14,
              "privacy/clipped_fraction_deviation": 0.01}  # fmt: skip
    (tmp_path / "metrics.csv").write_text(f"step,{','.join(series)}\n9,{','.join(map(str, series.values()))}\n")
    page = write_report(tmp_path).read_text()
    assert "Accuracy was not measured." in page
    assert 'data-is="measured"' not in page


def test_runs_stand_below_their_secrets_where_there_are_several(tmp_path):
    for name, secret in (("first", "How many sevens."), ("second", "How many nines."), ("third", "How many sevens.")):
        write_csv(tmp_path / name)
        dataclasses.replace(CARD, secret=secret).save(tmp_path / name)
    write_csv(tmp_path / "plain", private=False)
    page = write_report(tmp_path).read_text()
    assert "The secret:</strong>" not in page
    assert "A record is a row" not in page  # neither secret speaks of records
    table = page[page.index('<table class="runs">') : page.index("</table>")]
    assert re.findall(r'<th colspan="\d">(.*?)</th>|<tr[^>]*><td>(\w+)</td>', table) == [
        ("How many sevens.", ""), ("", "first"), ("", "third"), ("How many nines.", ""), ("", "second"),
        ("No promise of their own", ""), ("", "plain"),
    ]  # fmt: skip
    assert 'alt="Accuracy and promise"' in page
    assert "Only runs with the same secret compare." in page


def test_what_an_audit_refutes_is_no_promise(tmp_path):
    write_csv(tmp_path / "run")
    assert "can guess the secret correctly at most" in verdict([summarize(find_runs(tmp_path)[0])])
    alarm = Estimate("audit_alarms", 1.0, "", "The run is not what is accounted for: noise of weight.", "9 tests")
    claim = Guarantee("world_success_bound", 0.64, "probability", "Nobody guesses much.")
    dataclasses.replace(CARD, guarantees=(claim,), estimates=(alarm,)).save(tmp_path / "run")
    (row,) = map(summarize, find_runs(tmp_path))
    assert row["success_bound"] is None
    assert verdict([row]).startswith("An audit raised an alarm about run: ")
    page = write_report(tmp_path).read_text()
    assert "<td>It was that a guess of the secret is correct at most 64\N{NO-BREAK SPACE}% of the time. Do not" in page
    assert f"Do not rely on it. {alarm.meaning}</td>" in page
    assert 'class="scale"' not in page


def test_fractions_that_noise_took_out_of_their_range_are_cut():
    series = {"privacy/clipped_fraction": Series((0, 1, 2), (-0.5, 0.5, 1.7))}
    svg = course_plot([Run("run", series)], lambda run: run.metric("privacy/clipped_fraction"), "share", percent=True)
    inside = {"privacy/clipped_fraction": Series((0, 1, 2), (0.0, 0.5, 1.0))}
    same = course_plot([Run("run", inside)], lambda run: run.metric("privacy/clipped_fraction"), "share", percent=True)
    pattern = r'<path d="(M [^"]+)" clip-path'
    assert re.findall(pattern, svg) == re.findall(pattern, same)


def test_marks_that_are_close_share_their_words(tmp_path):
    for name, bounds in {"close": (0.55, 0.61), "apart": (0.55, 0.75), "same": (0.6, 0.6)}.items():
        for order, bound in enumerate(bounds):
            write_csv(tmp_path / name / str(order))
            guarantee = Guarantee("world_success_bound", bound, "probability", "Nobody guesses much.")
            dataclasses.replace(CARD, guarantees=(guarantee,)).save(tmp_path / name / str(order))
    marks = {
        name: re.findall(r'<span style="left: ([\d.]+)%">(.*?)</span>', write_report(tmp_path / name).read_text())
        for name in ("close", "apart", "same")
    }
    space = "\N{NO-BREAK SPACE}"
    assert marks["close"] == [("10.0", space), ("22.0", f"55 to 61{space}%")]
    assert marks["apart"] == [("10.0", f"55{space}%"), ("50.0", f"75{space}%")]
    assert marks["same"] == [("20.0", f"60{space}%")]


@pytest.mark.parametrize(("interval", "is_broken"), [((0.62, 0.66), False), ((0.641, 0.66), True)])
def test_the_page_says_whether_an_attack_broke_a_promise(tmp_path, interval, is_broken):
    write_csv(tmp_path / "run")
    claim = Guarantee("world_success_bound", 0.64, "probability", "Nobody guesses much.")
    attack = dataclasses.replace(ATTACK, value=0.65, interval=interval)
    dataclasses.replace(CARD, guarantees=(claim,), estimates=(attack,)).save(tmp_path / "run")
    assert ("No attack beat a limit" in (page := write_report(tmp_path).read_text())) is not is_broken
    assert ("An attack beat a limit" in page) is is_broken


@pytest.mark.parametrize("touched", ["version_0", "version_1"])
def test_a_resumed_run_stands_once_with_all_that_it_logged(touched, tmp_path):
    """Whichever was written to last, as by a `Trainer.test` of the first: the card of all steps is shown."""
    runs = {"version_0": ((9, 19), 20, 1.0), "version_1": ((29, 39), 40, 1.0), "other": ((9, 19), 20, 2.0)}
    for name, (steps, count, noise) in runs.items():
        (tmp_path / name).mkdir()
        rows = "".join(f"{step},{step / 100}\n" for step in steps)
        (tmp_path / name / "metrics.csv").write_text(f"step,privacy/world_success_bound\n{rows}")
        claim = Guarantee("world_success_bound", 0.5 + count / 100, "probability", "Nobody guesses much.")
        details = {"ledger": "training-1", "num_steps": count, "noise_multiplier": noise}
        dataclasses.replace(CARD, guarantees=(claim,), details=details).save(tmp_path / name)
    os.utime(tmp_path / touched / "metrics.csv", (2e9, 2e9))
    found = {run.name: run for run in find_runs(tmp_path)}
    assert found.keys() == {"version_1", "other"}
    assert found["version_1"].metrics["privacy/world_success_bound"].steps == (9, 19, 29, 39)
    assert summarize(found["version_1"])["success_bound"] == 0.9


def test_what_tensorboard_writes_of_itself_is_no_run(tmp_path):
    from lightning.pytorch.loggers import TensorBoardLogger

    for version, value in ((0, None), (1, 0.6)):  # the first was refused before its first step
        logger = TensorBoardLogger(tmp_path, "runs", version)
        logger.log_hyperparams({"rate": 0.1})
        if value is not None:
            logger.log_metrics({"privacy/world_success_bound": value}, 1)
        logger.finalize("success")
    assert [run.name for run in find_runs(tmp_path)] == ["runs/version_1"]


def test_several_folders_make_one_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        write_csv(tmp_path / name / "version_0")
    assert cli.main(["report", "first", "second"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert all(f"<td>{name}/version_0</td>" in page for name in ("first", "second"))
    (tmp_path / "refused").mkdir()
    dataclasses.replace(CARD, details={"num_steps": 0}).save(tmp_path / "refused")
    names = [run.name for run in find_runs([Path("first"), Path("refused"), Path("first/version_0")])]
    assert names == ["first/version_0"], "once, and without a run that never began"
