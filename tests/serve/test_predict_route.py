"""`POST /predict` where the way to the worker is broken."""

import asyncio
import json
import queue
import time
from types import SimpleNamespace
from typing import Any

import limits
import pytest
from fastapi import FastAPI

from lightning_pac.serve.admission import Gate, GateMiddleware
from lightning_pac.serve.health import Health
from lightning_pac.serve.predict_route import PREDICT, add_predict_route
from lightning_pac.serve.response_api import ResponseAPI


def post(app: FastAPI, body: bytes) -> tuple[int, Any]:
    """Status and body of one request, without a network."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": PREDICT,
        "raw_path": PREDICT.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError, EOFError])
def test_a_queue_that_has_ended_is_told_in_a_sentence(error: type[Exception]) -> None:
    """It was an internal error with a traceback for every request under way."""

    def put(message: Any) -> None:
        raise error

    app = FastAPI()
    app.add_middleware(GateMiddleware, gate=Gate(None, limits.parse("100/second")))
    app.response_queue_id = 0  # type: ignore[attr-defined]
    server: Any = SimpleNamespace(
        app=app, response_buffer={}, litapi_request_queues={PREDICT: SimpleNamespace(put=put)}
    )
    add_predict_route(server, Health(timeout=5.0), timeout=5.0)
    sentence = "The server is ending: ask again under the same Idempotency-Key."
    assert post(app, b'{"input": 1}') == (503, {"detail": sentence})
    assert not server.response_buffer


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.01])
@pytest.mark.parametrize("most", [1, 8])
def test_a_worker_that_is_held_up_forgets_no_request(seconds: float, most: int) -> None:
    """What a batch had not taken when its time was over was gone, and its client waited until the timeout."""
    api = ResponseAPI(lambda: None, list, Health(timeout=5.0), most, seconds)  # type: ignore[arg-type, return-value]
    api.request_timeout = 5.0
    api.come_back = lambda has_work: None  # type: ignore[method-assign]
    waiting: queue.Queue[Any] = queue.Queue()
    for number in range(3):
        waiting.put((0, number, time.monotonic(), "question"))
    taken = []
    for _ in range(3 if most == 1 else 1):
        batch, late = api.loop.get_batch_requests(api, waiting, SimpleNamespace(send=lambda *message, **to: None))
        assert not late
        taken += [number for _, number, _ in batch]
    assert taken == [0, 1, 2]
