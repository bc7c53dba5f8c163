"""`GET /health`: whether the server answers, and if not, why."""

import ctypes
import multiprocessing
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from lightning_pac.serve.messages import RefusalBody

__all__ = ["Health", "add_health_page"]

_LONGEST_REASON = 2000


class Health:
    """What the worker says of itself, in memory that it shares with the process that speaks HTTP."""

    def __init__(self) -> None:
        # One process writes, and without a lock: a worker that is killed could not give it back.
        self._reason = multiprocessing.get_context("spawn").RawArray(ctypes.c_char, _LONGEST_REASON + 1)

    @property
    def reason(self) -> str | None:
        """Why nothing is answered, None while all is well."""
        return bytes(self._reason.value).decode(errors="ignore") or None

    @reason.setter
    def reason(self, text: str | None) -> None:
        self._reason.value = (text or "").encode()[:_LONGEST_REASON]


def add_health_page(app: FastAPI, health: Health) -> None:
    """Let the application answer `GET /health` by what the worker says, in place of LitServe's page.

    Args:
        app: The application of the server.
        health: What the worker says.
    """

    def answer() -> Response:
        if (reason := health.reason) is not None:
            return JSONResponse({"detail": reason}, 503)
        return PlainTextResponse("ok")

    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) != "/health"]
    unwell: dict[int | str, dict[str, Any]] = {
        503: {"model": RefusalBody, "description": "Nothing is answered: `detail` says why and since when."}
    }
    page = app.get(
        "/health", summary="Whether requests are answered", response_class=PlainTextResponse, responses=unwell
    )
    page(answer)
