"""`GET /health`: whether the server answers, and if not, why."""

import ctypes
import multiprocessing
import time
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from lightning_pac.serve.admission import OPEN_PATH
from lightning_pac.serve.messages import RefusalBody

__all__ = ["SECONDS_BETWEEN_SIGNS", "Health", "add_health_page"]

_LONGEST_REASON = 2000
SECONDS_BETWEEN_SIGNS = 1.0  # of a worker that has nothing to do


class Health:
    """The worker's own state, in memory that it shares with the process that speaks HTTP.

    The worker gives a sign of life between two batches. None comes from one that is stopped or stuck, in Python or in
    native code; a thread of its own could go on giving signs.

    Args:
        timeout: Seconds that a request waits for its answer: a worker that is silent for longer has left all requests
            unanswered.
    """

    def __init__(self, timeout: float) -> None:
        # One process writes, and without a lock: a worker that is killed could not give it back.
        context = multiprocessing.get_context("spawn")
        self._reason = context.RawArray(ctypes.c_char, _LONGEST_REASON + 1)
        self._sign = context.RawValue(ctypes.c_double, time.monotonic())
        self._patience = timeout + 2 * SECONDS_BETWEEN_SIGNS

    def give_sign(self) -> None:
        """Say that the worker is between two batches."""
        self._sign.value = time.monotonic()

    @property
    def silence(self) -> str | None:
        """For how long the worker has not come back, None while that is shorter than a batch may take."""
        seconds = time.monotonic() - self._sign.value
        if seconds <= self._patience:
            return None
        return f"Nothing is answered: the worker has not come back for {seconds:.0f} s. Ask again later."

    @property
    def reason(self) -> str | None:
        """Why the worker cannot answer, None while all is well."""
        return bytes(self._reason.value).decode(errors="ignore") or None

    @reason.setter
    def reason(self, text: str | None) -> None:
        self._reason.value = (text or "").encode()[:_LONGEST_REASON]


def add_health_page(app: FastAPI, health: Health) -> None:
    """Let the application answer `GET /health` by what the worker says.

    Args:
        app: The application of the server.
        health: What the worker says.
    """

    async def answer() -> Response:
        if (reason := health.silence or health.reason) is not None:
            return JSONResponse({"detail": reason}, 503)
        return PlainTextResponse("ok")

    unwell: dict[int | str, dict[str, Any]] = {
        503: {"model": RefusalBody, "description": "Nothing is answered: `detail` says why and since when."}
    }
    page = app.get(
        OPEN_PATH, summary="Whether requests are answered", response_class=PlainTextResponse, responses=unwell
    )
    page(answer)
