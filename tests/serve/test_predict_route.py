"""`POST /predict` where the way to the worker is broken."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import limits
import pytest
from fastapi import FastAPI

from lightning_pac.serve.admission import Gate, GateMiddleware
from lightning_pac.serve.health import Health
from lightning_pac.serve.predict_route import PREDICT, add_predict_route


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
