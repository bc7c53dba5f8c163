"""Admission: who may ask, and how often, decided by the headers of a request, before its body is read."""

import hashlib
import ipaddress
import json
import logging
import time
from typing import Annotated

import limits
from fastapi import Depends, Header, HTTPException, Request, Security
from fastapi.security import HTTPBearer
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from lightning_pac.serve.api_keys import APIKey, APIKeys
from lightning_pac.serve.batch_answers import Ticket
from lightning_pac.serve.messages import Question

__all__ = ["OPEN_PATH", "Gate", "GateMiddleware", "OneReadingMiddleware", "admit", "authenticate"]

OPEN_PATH = "/health"

_WRONG_KEYS = limits.parse("20/minute")

logger = logging.getLogger(__name__)

_bearer = HTTPBearer(auto_error=False, description="An API key from `lightning-pac keys add`.")


class Gate:
    """Checks keys and counts requests, in the one process that speaks HTTP.

    Requests without a valid key are counted by address, and past 20 a minute they hear no more whether a key is wrong.
    Valid keys are let in all the same: keys have 256 bits, so that no number of tries finds one, and clients that share
    an address, as behind a proxy, cannot lock each other out.

    Args:
        keys: The keys; None lets everybody in who reaches the server.
        rate: How many requests a key, or without keys an address, may send.
    """

    def __init__(self, keys: APIKeys | None, rate: limits.RateLimitItem) -> None:
        self._keys = keys
        self._rate = rate
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def admit(self, headers: Headers, address: str) -> APIKey | None:
        """The key of a request, which is counted; None on a server without keys.

        Raises:
            HTTPException: With status 401 if the request has no key that is known, 429 if it is one too many
                (`Retry-After` says when to come again), 503 if the file of keys is damaged.
        """
        if self._keys is None:
            self._count(self._rate, f"address {_network(address)}", f"More than {self._rate}")
            return None
        try:
            self._keys.refresh()
        except (OSError, ValueError) as error:
            logger.exception("The API keys cannot be read.")
            raise HTTPException(503, "The API keys cannot be read: try again later.") from error
        scheme, _, text = headers.get("authorization", "").partition(" ")
        key = self._keys.find(text.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            way = "Give a valid API key as `Authorization: Bearer KEY`."
            self._count(
                _WRONG_KEYS, f"wrong {_network(address)}", f"More than {_WRONG_KEYS} without a valid key. {way}"
            )
            raise HTTPException(401, way, headers={"WWW-Authenticate": "Bearer"})
        self._count(self._rate, f"key {key.name}", f"More than {self._rate}")
        return key

    def _count(self, rate: limits.RateLimitItem, client: str, reason: str) -> None:
        if not self._limiter.hit(rate, client):
            reset = self._limiter.get_window_stats(rate, client).reset_time
            wait = max(1, round(reset - time.time()))
            raise HTTPException(429, f"{reason}: wait {wait} s and try again.", headers={"Retry-After": str(wait)})


class GateMiddleware:
    """Lets requests through that the gate admits; `/health` is open to all.

    It stands before everything that reads a body, looks for a page, or describes the server.
    """

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it by a refusal."""
        passes_to: ASGIApp = self._app
        if scope["type"] == "http" and scope["path"] != OPEN_PATH:
            try:
                key = self._gate.admit(Headers(scope=scope), (scope.get("client") or ("",))[0])
                scope.setdefault("state", {})["key"] = key
            except HTTPException as error:
                passes_to = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
        await passes_to(scope, receive, send)


class OneReadingMiddleware:
    """Refuses what a proxy in front may read otherwise, and ends the connection.

    That is a body of two lengths, after which a part of it would be taken for a request, and a header that comes twice.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it by a refusal."""
        passes_to: ASGIApp = self._app
        if scope["type"] == "http" and (reason := _read_twice(Headers(scope=scope))):
            passes_to = JSONResponse({"detail": reason}, 400, {"Connection": "close"})
        await passes_to(scope, receive, send)


def _read_twice(headers: Headers) -> str | None:
    if "transfer-encoding" in headers and "content-length" in headers:
        return "Give Content-Length or Transfer-Encoding, and not both."
    twice = [name for name in ("Authorization", "Content-Type", "Idempotency-Key") if len(headers.getlist(name)) > 1]
    return f"Give {twice[0]} once." if twice else None


def authenticate(request: Request, _: Annotated[object, Security(_bearer)]) -> APIKey | None:
    """The key that a request was admitted with; named as a dependency so that OpenAPI tells of it."""
    key: APIKey | None = request.state.key
    return key


def admit(
    question: Question,
    key: Annotated[APIKey | None, Depends(authenticate)],
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=200,
            description="A name for this request: sent again with the same input, it gets the recorded answer.",
        ),
    ] = None,
) -> Ticket:
    """The request as the worker takes it."""
    owner = None if key is None else key.name
    return Ticket(question.input, _request_name(owner, idempotency_key, question), key)


def _request_name(owner: str | None, idempotency_key: str | None, question: Question) -> str | None:
    # With the owner, since others may choose the same name; with the input, so that it never gets another's answer.
    if idempotency_key is None:
        return None
    content = json.dumps([owner, idempotency_key, question.input], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _network(address: str) -> str:
    # One IPv6 address comes with the 2^64 of its network.
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address
