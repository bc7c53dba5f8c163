"""What a stranger, a client that means ill, or a worker that hangs can do to a server: nothing that lasts.

All traffic goes to loopback, and every attack is bounded in number and time.
"""

import contextlib
import gzip
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server, exchange, is_alive, recorded, serving, wait_for_ledger
from toy_server import STUCK

from lightning_pac.serve import APIKeys

posix = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes through /proc")


class Guarded:
    """A server with one key, alice's."""

    def __init__(self, server: Server, folder: Path, key: str) -> None:
        self.server, self.folder = server, folder
        self.alice = {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    key = APIKeys(folder / "keys.json").add("alice")
    with serving(folder, descriptors=256) as server:
        yield Guarded(server, folder, key)


@pytest.fixture
def leaves_no_trace(guarded: Guarded) -> Iterator[None]:
    before = recorded(guarded.folder)
    yield
    assert guarded.server.ask(1, Idempotency_Key="one", **guarded.alice)[0] == 200
    assert recorded(guarded.folder).keys() <= {*before, 1}
    assert "Traceback" not in guarded.server.log.read_text()


HOSTILE = {
    "deep list": b'{"input": ' + b"[" * 900 + b"]" * 900 + b"}",
    "deeper list": b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "not so deep": b'{"input": ' + b"[" * 70 + b"]" * 70 + b"}",
    "deep object": b'{"input":' * 5000 + b"1" + b"}" * 5000,
    "huge number": b'{"input": 1e999}',
    "huge integer": b'{"input": ' + b"9" * 4000 + b"}",
    "hugest integer": b'{"input": ' + b"9" * 5000 + b"}",
    "negative infinity": b'{"input": -Infinity}',
    "not a number": b'{"input": [NaN]}',
    "not UTF-8": b'{"input": "\xff\xfe"}',
    "UTF-16": '{"input": 1}'.encode("utf-16"),
    "twice the same": b'{"input": 1, "input": 2}',
    "twice inside": b'{"input": {"a": 1, "a": 2}}',
    "lone surrogate": b'{"input": "\\ud800"}',
    "zeros": b"\0" * 1000,
    "gzip bomb": gzip.compress(b"0" * 5_000_000),
    "long name": b'{"input": 1, "' + b"x" * 100_000 + b'": 1}',
}


@pytest.mark.usefixtures("leaves_no_trace")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_gets_a_sentence(guarded: Guarded, name: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip" if "gzip" in name else "identity"}
    status, content, _ = exchange(
        guarded.server.connect(), "POST", "/predict", HOSTILE[name], {**headers, **guarded.alice}
    )
    assert status == 422
    assert isinstance(content["detail"], str)
    assert len(content["detail"]) < 300


@pytest.mark.usefixtures("leaves_no_trace")
def test_what_a_proxy_may_read_otherwise_is_refused(guarded: Guarded) -> None:
    body = b'c\r\n{"input": 1}\r\n0\r\n\r\n'
    usual = b"Host: localhost\r\nAuthorization: " + guarded.alice["Authorization"].encode() + b"\r\n"
    length, chunked = b"Content-Length: 12\r\n", b"Transfer-Encoding: chunked\r\n"
    last = chunked + b"Connection: close\r\n"
    for path, headers, words in (
        (b"/predict", length + chunked, b"and not both"),
        (b"/health", length + chunked, b"and not both"),
        (b"/predict", last + b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n", b"Give Idempotency-Key once"),
        (b"/predict", last + b"Authorization: Bearer x\r\n", b"Give Authorization once"),
    ):
        answer = b""
        with socket.create_connection(("127.0.0.1", guarded.server.port), timeout=10) as connection:
            connection.sendall(b"POST " + path + b" HTTP/1.1\r\n" + usual + headers + b"\r\n" + body)
            # It may have been meant as a part of the body, so that it is not answered.
            connection.sendall(b"GET /health HTTP/1.1\r\n" + usual + b"\r\n")
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(4096):
                    answer += part
        assert answer.startswith(b"HTTP/1.1 400")
        assert words in answer
        assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.usefixtures("leaves_no_trace")
def test_a_huge_body_is_not_read_to_its_end(guarded: Guarded) -> None:
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1600):
            sent += 2**16
            yield b"0" * 2**16

    for headers in (guarded.alice, {}):
        try:
            status = guarded.server.post(parts(), **headers)[0]
        except OSError:  # the connection was closed meanwhile
            continue
        assert status in (401, 413)


@pytest.mark.usefixtures("leaves_no_trace")
def test_nothing_but_health_is_shown_without_a_key(guarded: Guarded) -> None:
    for path in ("/info", "/docs", "/redoc", "/openapi.json", "/privacy", "/", "/nothing", "/health/", "//health"):
        assert guarded.server.get(path)[0] in (401, 429), path
    assert guarded.server.get("/health") == (200, "ok")
    for path in ("/info", "/"):
        assert guarded.server.get(path, guarded.alice)[0] == 404, path
    # Before a stranger's body is read, however malformed it is.
    assert guarded.server.post(HOSTILE["deep list"])[0] in (401, 429)


@pytest.mark.usefixtures("leaves_no_trace")
def test_wrong_keys_are_limited_and_the_right_one_is_not(guarded: Guarded) -> None:
    statuses = []
    for number in range(300):
        headers = {"Authorization": f"Bearer pac_{number}"}
        status, content, named = exchange(guarded.server.connect(), "GET", "/privacy", None, headers)
        statuses.append(status)
    assert statuses.count(401) <= 20
    assert statuses[-1] == 429
    assert 1 <= int(named["retry-after"]) <= 60
    assert "without a valid key" in content["detail"]
    assert guarded.server.get("/privacy", guarded.alice)[0] == 200


def hold(server: Server, head: bytes, count: int) -> list[socket.socket]:
    held = []
    for _ in range(count):
        held.append(socket.create_connection(("127.0.0.1", server.port), timeout=5))
        held[-1].sendall(head)
    return held


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.usefixtures("leaves_no_trace")
def test_connections_that_are_held_keep_nobody_out_and_end(guarded: Guarded) -> None:
    key = b"Authorization: " + guarded.alice["Authorization"].encode()
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n" + key + b"\r\n"
    # More than the server has file descriptors: silent ones, ones with half a head, and ones with a body that trickles.
    held = hold(guarded.server, b"", 150) + hold(guarded.server, head, 150)
    held += hold(guarded.server, head + b"Content-Length: 900\r\n\r\n", 10)
    deaf = threading.Thread(target=never_read, args=(guarded.server, key))
    deaf.start()
    start = time.monotonic()
    assert guarded.server.ask(1, Idempotency_Key="one", **guarded.alice)[0] == 200
    assert guarded.server.get("/health") == (200, "ok")
    assert time.monotonic() - start < 3
    while not all(map(is_closed, held)):
        assert time.monotonic() - start < 20, "a connection may be held for ever"
        for connection in held[150:]:
            with contextlib.suppress(OSError):
                connection.send(b"x")
        time.sleep(0.5)
    for connection in held:
        connection.close()
    deaf.join(20)
    assert not deaf.is_alive(), "who reads nothing may hold a connection for ever"


def never_read(server: Server, key: bytes) -> None:
    """Ask for megabytes, until the server has had enough."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n" + key + b"\r\n\r\n"
    with socket.socket() as connection, contextlib.suppress(ConnectionError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        while True:
            connection.sendall(request * 1000)


@pytest.mark.usefixtures("leaves_no_trace")
def test_long_headers_are_refused(guarded: Guarded) -> None:
    start = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "
    connection = hold(guarded.server, start, 1)[0]
    with connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"x" * 100_000)
        assert b"400" in connection.recv(100)


@posix
@pytest.mark.parametrize("how", ["stopped", pytest.param("stuck in native code", marks=pytest.mark.slow)])
def test_a_worker_that_hangs_is_told_of(tmp_path: Path, how: str) -> None:
    with serving(tmp_path, {"timeout": 1.0, "max_batch_size": 1}) as server:
        (worker,) = server.workers()
        start = time.monotonic()
        if how == "stopped":
            os.kill(worker, signal.SIGSTOP)
        else:
            threading.Thread(target=server.ask, args=(STUCK,), daemon=True).start()
            time.sleep(0.2)
        asked = time.monotonic()
        status, content = server.ask(1, Idempotency_Key="one")
        assert status == 504
        assert "no answer within 1 s" in content["detail"]
        assert time.monotonic() - asked < 1.8
        while server.get("/health")[0] == 200 and time.monotonic() - start < 6:
            time.sleep(0.1)
        status, content = server.get("/health")
        assert status == 503
        assert "the worker has not come back for" in content["detail"]
        asked = time.monotonic()
        assert server.ask(2)[0] == 503  # at once: nothing more is queued for a worker that hangs
        assert time.monotonic() - asked < 0.5
        if how == "stopped":
            os.kill(worker, signal.SIGCONT)
        deadline = time.monotonic() + 15
        while server.get("/health")[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert server.get("/health") == (200, "ok")
        assert server.ask(1, Idempotency_Key="one")[0] == 200
        assert server.ask(3)[0] == 200
        assert server.stop() == 0
    assert {1, 3} <= recorded(tmp_path).keys() <= {1, 3, STUCK}


@posix
def test_a_stopped_worker_ends_with_a_killed_server(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        server.stop(signal.SIGKILL)
        deadline = time.monotonic() + 5
        while is_alive(worker) and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            assert not is_alive(worker), "it would keep the ledger from the next server"
        finally:
            if is_alive(worker):
                os.kill(worker, signal.SIGKILL)
    wait_for_ledger(tmp_path)


@posix
def test_a_server_whose_http_process_ends_says_so_and_ends(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        os.kill(listening_process(server), signal.SIGKILL)
        assert server.wait(20) == 1
        assert "The process that speaks HTTP ended, so the server did too" in server.log.read_text()


def listening_process(server: Server) -> int:
    """The child of the server that has a connection of ours."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    before = {child: len(os.listdir(f"/proc/{child}/fd")) for child in children}
    held = hold(server, b"", 20)
    time.sleep(0.5)
    (found,) = [child for child in children if len(os.listdir(f"/proc/{child}/fd")) >= before[child] + 15]
    for connection in held:
        connection.close()
    return int(found)


def test_json_is_read_in_one_way_only() -> None:
    from lightning_pac.serve.strict_json import parse_json

    for value in ([[1, -2.5e300], {"a": [True, None, "x[{", "é"]}], 2**63 - 1, -(2**63), [[[[]]]]):
        assert parse_json(json.dumps(value).encode()) == value
    for text in (
        "[1e400]",
        "[-1e400]",
        "NaN",
        str(2**63),
        "9" * 5000,
        '{"a":1,"a":1}',
        "[" * 65 + "]" * 65,
        "",
        "[1,]",
        "\ufeff1",
    ):
        with pytest.raises(ValueError, match=r"^The body .*[.]$"):
            parse_json(text.encode())
