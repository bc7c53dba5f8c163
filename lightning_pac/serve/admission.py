"""Who may ask, and how often: decided before a request reaches the worker."""

import hashlib
import json
import logging
import time
from typing import Annotated

from fastapi import Depends, Header, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from limits import RateLimitItem
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from lightning_pac.serve.api_keys import APIKey, APIKeys
from lightning_pac.serve.batch_answers import Ticket
from lightning_pac.serve.messages import Question

__all__ = ["Gate", "admit", "authenticate"]

logger = logging.getLogger(__name__)

_bearer = HTTPBearer(auto_error=False, description="An API key from `lightning-pac keys add`.")


class Gate:
    """Checks keys and counts requests, in the one process that speaks HTTP.

    Args:
        keys: The keys; None lets everybody in who reaches the server.
        rate: How many requests a key, or without keys an address, may send.
    """

    def __init__(self, keys: APIKeys | None, rate: RateLimitItem) -> None:
        self._keys = keys
        self._rate = rate
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def identify(self, credentials: HTTPAuthorizationCredentials | None) -> APIKey | None:
        """The key of a request, None on a server without keys.

        Raises:
            HTTPException: With status 401 if the request has no key that is known, 503 if the file of keys is damaged.
        """
        if self._keys is None:
            return None
        try:
            self._keys.refresh()
        except (OSError, ValueError) as error:
            logger.exception("The API keys cannot be read.")
            raise HTTPException(503, "The API keys cannot be read: try again later.") from error
        found = None if credentials is None else self._keys.find(credentials.credentials)
        if found is None:
            raise HTTPException(
                401, "Give a valid API key as `Authorization: Bearer KEY`.", headers={"WWW-Authenticate": "Bearer"}
            )
        return found

    def count(self, client: str) -> None:
        """Count a request.

        Raises:
            HTTPException: With status 429 if it is one too many; `Retry-After` says when to come again.
        """
        if not self._limiter.hit(self._rate, client):
            reset = self._limiter.get_window_stats(self._rate, client).reset_time
            wait = max(1, round(reset - time.time()))
            raise HTTPException(
                429, f"More than {self._rate}: wait {wait} s and try again.", headers={"Retry-After": str(wait)}
            )


def authenticate(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> APIKey | None:
    """The key that a request came with; it is counted against the rate limit."""
    gate: Gate = request.app.state.gate
    key = gate.identify(credentials)
    address = "" if request.client is None else request.client.host
    gate.count(f"address {address}" if key is None else f"key {key.name}")
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
