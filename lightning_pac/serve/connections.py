"""Connections that nobody can hold by sending slowly, by sending nothing, or by reading nothing."""

import asyncio
import resource
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["BoundedConnection", "most_connections"]

_MOST_CONNECTIONS = 1000
_DESCRIPTORS_FOR_THE_REST = 128  # the ledger, the keys, the queues and the logs
_FEWEST_CONNECTIONS = 16


def most_connections() -> int:
    """The number of connections a process may hold and still have file descriptors for its own work."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = _MOST_CONNECTIONS if allowed == resource.RLIM_INFINITY else allowed - _DESCRIPTORS_FOR_THE_REST
    return max(_FEWEST_CONNECTIONS, min(room, _MOST_CONNECTIONS))


class BoundedConnection(H11Protocol):
    """A connection of uvicorn that ends when its client keeps the server waiting for too long.

    uvicorn waits for the rest of a request as long as its sender likes, before any key is seen. Here a request has to
    arrive as a whole, and what was sent for an answer has to be read, within `seconds`, however the bytes trickle. A
    new connection that is one too many takes the place of the one that has kept the server waiting longest, so that
    a client that sends at once is let in while others only hold connections; no request under way is given up for it.

    Args:
        *arguments: As uvicorn gives them.
        seconds: How long a client may keep the server waiting.
        most: How many connections there may be.
        **named: As uvicorn gives them.
    """

    def __init__(self, *arguments: Any, seconds: float, most: int, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._seconds = seconds
        self._most = most
        self._deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        alive = [other for other in self.connections if not other.transport.is_closing()]
        if len(alive) > self._most:
            waiting = [other for other in alive if isinstance(other, BoundedConnection) and other is not self]
            oldest = min(waiting, key=lambda other: other._waits_until)
            (oldest if oldest._deadline is not None else self).transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    @override
    def on_response_complete(self) -> None:
        self._rest()  # the next request has the whole time again
        super().on_response_complete()
        self._watch()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    @property
    def _waits_until(self) -> float:
        return float("inf") if self._deadline is None else self._deadline.when()

    def _watch(self) -> None:
        """Start the clock when it is the client's turn, and stop it when it is ours."""
        cycle = self.cycle
        theirs = cycle is None or cycle.more_body or cycle.response_complete or self.flow.write_paused
        if not theirs or self.transport.is_closing():
            self._rest()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._seconds, self.transport.abort)

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
