"""`POST /predict`: a question goes to the worker, and an answer, a refusal or a timeout comes back."""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import litserve
from fastapi import Depends, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from litserve.utils import ResponseBufferItem
from typing_extensions import override

from lightning_pac.serve.admission import admit
from lightning_pac.serve.batch_answers import Refusal, Ticket
from lightning_pac.serve.health import Health
from lightning_pac.serve.messages import Answer, describe_refusals
from lightning_pac.serve.strict_json import parse_json

__all__ = ["PREDICT", "add_predict_route"]

PREDICT = "/predict"


def add_predict_route(server: litserve.LitServer, health: Health, timeout: float) -> None:
    """Let the server answer questions through its worker, in place of LitServe's route.

    LitServe's own waits for the worker for ever.

    Args:
        server: The server, whose queue leads to the worker.
        health: What the worker says, and when it came back last.
        timeout: Seconds until a request is told that there is no answer.
    """
    app = server.app

    async def predict(ticket: Annotated[Ticket, Depends(admit)]) -> Any:
        if (silence := health.silence) is not None:
            raise HTTPException(503, silence)
        number = uuid.uuid4().hex
        waiting = server.response_buffer[number] = ResponseBufferItem(asyncio.Event())

        async def ask() -> Any:
            message = (app.response_queue_id, number, time.monotonic(), ticket)
            # The queue is another process; one that stands still must not hold this thread, which serves everybody.
            await asyncio.to_thread(server.litapi_request_queues[PREDICT].put, message)
            await waiting.event.wait()
            return waiting.response[0]

        try:
            result = await asyncio.wait_for(ask(), timeout)
        except asyncio.TimeoutError:
            raise HTTPException(
                504, f"There was no answer within {timeout:g} s: ask again under the same Idempotency-Key."
            ) from None
        except (OSError, EOFError):  # the process of the queue has ended, and the others follow it
            raise HTTPException(503, "The server is ending: ask again under the same Idempotency-Key.") from None
        finally:
            del server.response_buffer[number]
        if isinstance(result, Refusal):
            return JSONResponse({"detail": result.reason}, result.status)
        if isinstance(result, HTTPException):
            raise result
        if not isinstance(result, int):
            raise HTTPException(500, "The worker failed; its log says why: tell the keeper of the data.")
        return Answer(label=result)

    app.router.add_api_route(
        PREDICT,
        predict,
        methods=["POST"],
        summary="A private answer",
        response_model=Answer,
        responses=describe_refusals(401, 413, 422, 429, 503, 504),
        route_class_override=_StrictRoute,
    )
    app.exception_handler(RequestValidationError)(_explain)


class _StrictRoute(APIRoute):
    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return handle_strictly


class _StrictRequest(Request):
    @override
    async def json(self) -> Any:
        try:
            return parse_json(await self.body())
        except ValueError as error:
            raise HTTPException(422, str(error)) from None


async def _explain(request: Request, error: RequestValidationError) -> Response:
    # Not FastAPI's own answer: it repeats the input, which may be long.
    first = error.errors()[0]
    place = ".".join(str(part)[:40] for part in first["loc"])
    return JSONResponse({"detail": f'Not a question ({place}: {first["msg"]}): send {{"input": ...}} as JSON.'}, 422)
