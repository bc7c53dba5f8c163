"""Servers in processes of their own, clients in threads, and what the ledger says afterwards."""

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import toy_server
from prepared import prepared_context

from lightning_pac.ledger import PrivacyLedger, read_entries
from lightning_pac.mechanisms.responses import RecordedAnswers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A running toy server on loopback."""

    def __init__(
        self, folder: Path, options: Mapping[str, Any] | None = None, flaw: str = "", descriptors: int | None = None
    ) -> None:
        self.port = free_port()
        self.log = folder / "server.log"
        arguments = (folder, self.port, dict(options or {}), flaw, descriptors, self.log)
        self.process = prepared_context().Process(target=toy_server.run, args=arguments)
        self.process.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.is_alive():
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"the server did not start:\n{self.log.read_text()[-3000:]}")

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        return exchange(self.connect(), "GET", path, None, headers or {})[:2]

    def ask(self, question: Any, **headers: str) -> tuple[int, Any]:
        """Status and body of one request; underscores in header names become dashes."""
        return self.post(json.dumps({"input": question}), **headers)

    def post(self, body: str | bytes | Iterator[bytes], **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return exchange(self.connect(), "POST", "/predict", body, {"Content-Type": "application/json", **named})[:2]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def workers(self) -> list[int]:
        return spawned(self.pid)

    def stop(self, how: int = signal.SIGTERM) -> int | None:
        os.kill(self.pid, how)
        return self.wait(60)

    def wait(self, seconds: float) -> int | None:
        """The exit code, None if it goes on."""
        self.process.join(seconds)
        return self.process.exitcode


@contextmanager
def serving(
    folder: Path, options: Mapping[str, Any] | None = None, flaw: str = "", descriptors: int | None = None
) -> Iterator[Server]:
    server = Server(folder, options, flaw, descriptors)
    try:
        yield server
    finally:
        if server.process.is_alive():
            server.process.kill()
            server.process.join()
        wait_for_ledger(folder)


def exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any, headers: Mapping[str, str]
) -> tuple[int, Any, Mapping[str, str]]:
    chunked = body is not None and not isinstance(body, str | bytes)
    connection.request(method, path, body, dict(headers), encode_chunked=chunked)
    response = connection.getresponse()
    text = response.read().decode()
    try:
        content = json.loads(text)
    except ValueError:
        content = text
    return response.status, content, dict(response.getheaders())


def ask_all(server: Server, numbers: list[int], num_clients: int, seen: dict[int, int]) -> dict[int, str]:
    """Each number is asked once under its own Idempotency-Key; labels go to `seen`, failures are returned."""
    left, failed, guard = iter(numbers), {}, threading.Lock()

    def client() -> None:
        connection = server.connect()
        while True:
            with guard:
                number = next(left, None)
            if number is None:
                return
            headers = {"Content-Type": "application/json", "Idempotency-Key": f"question {number}"}
            try:
                status, content, _ = exchange(connection, "POST", "/predict", json.dumps({"input": number}), headers)
            except (OSError, http.client.HTTPException) as error:
                failed[number] = repr(error)
                connection.close()
                continue
            if status != 200:
                failed[number] = f"{status} {content}"
            else:
                assert seen.setdefault(number, content["label"]) == content["label"], "a retry got another answer"

    threads = [threading.Thread(target=client) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def recorded(folder: Path) -> dict[int, int]:
    """Question and label of every answer in the ledger, read from what the models voted; each must be there once."""
    found: dict[int, int] = {}
    spent = 0.0
    with PrivacyLedger.read_only(folder / "responses.db") as ledger:
        account = next(account for account in ledger.accounts() if account.name == "responses")
        for entry in read_entries(ledger, account):
            answers = RecordedAnswers.decode(entry.payload)
            numbers = answers.outputs @ 3 ** np.arange(16)
            for number, label in zip(numbers.tolist(), answers.labels.tolist(), strict=True):
                assert number not in found, f"question {number} was answered twice"
                found[number] = label
            spent += float(answers.budgets[~answers.unanimous].sum())
        assert account.num_charges == len(found)
        assert abs(account.spent - spent) <= 1e-9 * max(spent, 1e-300)
    return found


def wait_for_ledger(folder: Path) -> None:
    """Until the processes of a killed server have let go of its ledger."""
    deadline = time.monotonic() + 10
    while True:
        try:
            PrivacyLedger(folder / "responses.db").close()
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def spawned(process: int) -> list[int]:
    """The children of a server that were spawned: LitServe's inference worker."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
