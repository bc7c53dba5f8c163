"""How a server ends, and the command that starts one."""

import functools
import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from prepared import Child
from scripts import run_script
from serving import ask_all, exchange, free_port, is_alive, recorded, serving, spawned
from torch import nn
from toy_server import SLOW, open_responder

from lightning_pac import cli
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.modules import SubsetEnsemble
from lightning_pac.modules.ensembles.ensemble_record import KEY
from lightning_pac.scenarios import BalancedSubsets
from lightning_pac.serve import serve

posix = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes through /proc")


@posix
@pytest.mark.parametrize("how", ["SIGTERM", pytest.param("Ctrl-C", marks=pytest.mark.slow)])
def test_what_is_under_way_is_answered_before_the_server_stops(tmp_path: Path, how: str) -> None:
    seen: dict[int, int] = {}
    with serving(tmp_path, {"max_batch_size": 4}) as server:
        failed: dict[int, str] = {}
        numbers = [SLOW, *range(20)]
        client = threading.Thread(target=lambda: failed.update(ask_all(server, numbers, len(numbers), seen)))
        client.start()
        time.sleep(1.2)
        if how == "Ctrl-C":  # which a terminal sends to all of them
            for worker in server.workers():
                os.kill(worker, signal.SIGINT)
        assert server.stop(signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM) == 0
        client.join()
    assert not failed, server.log.read_text()[-2000:]
    assert recorded(tmp_path) == seen
    assert len(seen) == 21


@posix
def test_a_killed_server_takes_its_processes_along(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        process = server.pid
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        assert len(children) >= 3
        server.stop(signal.SIGKILL)
        deadline = time.monotonic() + 5
        while any(is_alive(int(child)) for child in children) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [child for child in children if is_alive(int(child))]
        PrivacyLedger(tmp_path / "responses.db").close()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", server.port))


def make_checkpoint(folder: Path) -> list[str]:
    (folder / "my_project.py").write_text(
        "from torch import nn\n\n\ndef make_network():\n    return nn.Linear(2, 3)\n\n\n"
        "def make_other():\n    return nn.Linear(5, 3)\n"
    )
    ensemble = SubsetEnsemble(lambda: nn.Linear(2, 3), BalancedSubsets(num_records=20, num_subsets=8))
    torch.save({"state_dict": ensemble.state_dict(), KEY: ensemble.record.to_dict()}, folder / "ensemble.ckpt")
    return ["--ensemble", "ensemble.ckpt", "--network", "my_project.make_network", "--records", "20", "--subsets", "8"]


def start_command(folder: Path, port: int, *options: str) -> subprocess.Popen[str]:
    """`lightning-pac serve` in a process group of its own, as a terminal starts it."""
    command = [sys.executable, "-m", "lightning_pac", "serve", "responses.db", *make_checkpoint(folder)]
    return subprocess.Popen(
        [*command, "--port", str(port), *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@posix
def test_the_command_says_that_it_serves_when_it_does(tmp_path: Path) -> None:
    port = free_port()
    with start_command(tmp_path, port, "--witness", "elsewhere.mark") as process:
        try:
            assert f"Serving responses.db at http://127.0.0.1:{port}" in process.stdout.readline()
            assert process.stdout.readline() == "No charge is known to it.\n"
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            assert exchange(connection, "GET", "/health", None, {})[:2] == (200, "ok")
            body = json.dumps({"input": [0.5, 1.0]})
            headers = {"Content-Type": "application/json"}
            assert exchange(connection, "POST", "/predict", body, headers)[0] == 200
        finally:
            os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=30)
        assert process.returncode == 0
    assert output == "Stopped. The ledger has 1 answer for 0 nats; the same command continues with responses.db.\n"
    assert errors == ""
    with PrivacyLedger.read_only(tmp_path / "responses.db") as ledger:
        assert ledger.last_charge is not None
    assert b"responses" in (tmp_path / "elsewhere.mark").read_bytes()


def test_the_command_says_when_the_last_charge_was(
    project: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with PrivacyLedger("responses.db") as ledger:
        ledger.account("responses", "mutual_information").charge(2**-32)
        last = ledger.last_charge
    monkeypatch.setattr("lightning_pac.serve.serve", lambda *_, announce, **__: announce())
    assert cli.main(["serve", "responses.db", *project]) == 0
    assert f"Its last charge was made on {last[0]} (UTC) to account 'responses'." in capsys.readouterr().out


def run_command(folder: Path, arguments: list[str]) -> int:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    return cli.main(["serve", "responses.db", *arguments])


@posix
@pytest.mark.parametrize("moment", ["the worker starts", "the worker loads"])
def test_an_interrupt_before_the_server_serves_ends_it_without_a_word(tmp_path: Path, moment: str) -> None:
    process = Child(run_command, tmp_path, [*make_checkpoint(tmp_path), "--port", str(free_port())])
    while process.poll() is None and not (workers := spawned(process.pid)):
        time.sleep(0.005)
    loaded = "_multiarray" if moment == "the worker loads" else "python"  # NumPy's library, among the first
    while process.poll() is None and loaded not in Path(f"/proc/{workers[0]}/maps").read_text():
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    assert process.finish(30) == b""
    assert process.poll() == 0
    assert not any(is_alive(worker) for worker in workers)


@posix
@pytest.mark.slow
def test_the_example_serves_a_checkpoint_from_the_command_line(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "serving" / "demo.py"
    printed = run_script(
        script, "--members", "8", "--epochs", "5", "--questions", "100", "--output", "out", folder=tmp_path
    )
    assert float(re.search(r"private answers +([0-9.]+) correct of 100", printed)[1]) > 0.5
    assert re.search(r"a retry costs +0 nats", printed)
    assert 20 <= int(re.search(r"bob was answered +([0-9]+) times", printed)[1]) < 200
    with PrivacyLedger.read_only(tmp_path / "out" / "responses.db") as ledger:
        spent = {account.name: account.spent for account in ledger.accounts()}
    assert spent["key bob"] == 20 * 2**-32
    assert spent["responses"] == pytest.approx(spent["key alice"] + spent["key bob"], rel=1e-12)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A project with a checkpoint, in the current folder, and the command's arguments for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "my_project", raising=False)
    return make_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "80"], "port must lie in 1024 ... 65535, got 80"),
        (["--network", "make_network"], "--network is MODULE.NAME, got 'make_network'"),
        (["--network", "my_project.no_network"], "my_project has no function or class 'no_network'"),
        (["--network", "no_project.make_network"], "No module named 'no_project'"),
        (["--records", "21"], "make the pool with the numbers and the seed of training"),
        (["--ensemble", "missing.ckpt"], "missing.ckpt"),
        (["--host", "0.0.0.0"], "keys must be given on host 0.0.0.0"),
        (["--keys", "none.json"], "keys is none.json, which has none"),
        (["--budget", "-1"], "budget is -1.0, but must be finite and not negative"),
        (["--timeout", "0"], "timeout is 0.0, but must be positive and finite"),
        (["--network", "my_project.make_other"], "cannot be loaded as an ensemble of this network"),
        (["--ensemble", "my_project.py"], "cannot be loaded as an ensemble of this network"),
    ],
)
def test_what_is_wrong_is_said_before_the_server_starts(
    project: list[str],
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    assert cli.main(["serve", "responses.db", *project, *options]) == 1
    output, errors = capsys.readouterr()
    assert message in errors
    assert "Traceback" not in errors
    assert "Serving" not in output
    assert len(errors.splitlines()) == 1


def test_a_watch_that_looks_after_the_end_prints_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger, said, handler = logging.getLogger("litserve.server"), [], logging.Handler()
    handler.emit = lambda record: said.append(record.msg)
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "filters", [*logger.filters])  # `serve` adds one
    monkeypatch.setattr("litserve.LitServer.run", lambda *_, **__: logger.exception("while it serves"))
    serve(functools.partial(open_responder, tmp_path), tmp_path / "responses.db", port=free_port())
    logger.exception("Monitoring worker crashed")
    serve(functools.partial(open_responder, tmp_path), tmp_path / "responses.db", port=free_port())
    assert said == ["while it serves"] * 2, "an earlier server does not hide what a later one says"


def test_a_port_that_is_taken_is_refused(project: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", "responses.db", *project, "--port", port]) == 1
    output, errors = capsys.readouterr()
    assert f"Port {port} of 127.0.0.1 cannot be had" in errors
    assert "Serving" not in output


def hold_ledger(path: Path) -> None:
    ledger = PrivacyLedger(path)
    print(f"{ledger.path} is open", flush=True)
    time.sleep(60)


def test_a_ledger_that_another_process_writes_is_refused(
    project: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    other = Child(hold_ledger, Path("responses.db").resolve())
    other.stdout.readline()
    assert cli.main(["serve", "responses.db", *project]) == 1
    other.kill()
    other.finish()
    assert "responses.db has another writer" in capsys.readouterr().err
