"""Serving private answers over HTTP."""

import functools
import logging
import multiprocessing
import shlex
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from lightning_pac._durable_files import real_path
from lightning_pac._validation import Count, Natural, NonNegative, Positive, validated
from lightning_pac.ledger import PrivacyLedger
from lightning_pac.mechanisms import PACResponder
from lightning_pac.serve.api_keys import APIKeys
from lightning_pac.serve.ending import Ending
from lightning_pac.serve.parent_watch import forks_end_with_this_process

if TYPE_CHECKING:
    import litserve

__all__ = ["as_tensor", "build_server", "serve"]

LOOPBACK = "127.0.0.1"
_HOSTS = (LOOPBACK, "0.0.0.0", "::")
_SECONDS_OF_A_CLIENT = 10.0  # for sending a request, or reading an answer
_LONGEST_HEADERS = 2**14


@validated
def as_tensor(inputs: list[Any], shape: Sequence[int] | None = None) -> Any:
    """JSON inputs of one shape as a float tensor, shape (n, ...).

    Args:
        inputs: Nested lists of numbers, one for each input.
        shape: The shape that each must have; None for any. `functools.partial(as_tensor, shape=(8, 8))` is a `collate`.

    Raises:
        ValueError: If they have different shapes or another shape, or a number is not finite.
        TypeError: If they are not numbers.
    """
    import torch

    try:
        tensor = torch.tensor(inputs, dtype=torch.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise type(error)(f"inputs must be numbers, nested alike in each: {error}.") from error
    if shape is not None and tuple(tensor.shape[1:]) != tuple(shape):
        raise ValueError(f"inputs have shape {tuple(tensor.shape[1:])} each, and the model takes {tuple(shape)}.")
    if not bool(tensor.isfinite().all()):
        raise ValueError("inputs have numbers that are not finite.")
    return tensor


@validated
def build_server(
    open_responder: Callable[[], PACResponder],
    ledger: str | Path,
    keys: APIKeys | str | Path | None = None,
    *,
    host: str = LOOPBACK,
    collate: Callable[[list[Any]], Any] = as_tensor,
    max_batch_size: Count = 64,
    batch_timeout: NonNegative = 0.002,
    max_request_bytes: Count = 2**20,
    rate_limit: str = "100/second",
    timeout: Positive = 30.0,
    shutdown_timeout: Natural = 10,
) -> "litserve.LitServer":
    """A LitServe server whose only worker owns the ledger; `serve` runs it.

    Args:
        open_responder: Opens the responder in the worker, a new process: a function of a module, or
            `SavedResponder(...).open`.
        ledger: The responder's ledger, which `GET /privacy` reads.
        keys: The API keys, or their file, which is read again when it changes; None lets everybody in, on loopback
            only.
        host: Where it will listen.
        collate: Makes the model's inputs from a list of JSON inputs; raises `ValueError` or `TypeError` for bad ones.
        max_batch_size: Most answers of one transaction.
        batch_timeout: Seconds that a request waits for others to join it.
        max_request_bytes: Largest body of a request.
        rate_limit: Requests that one key, or without keys one address, may send, as `"100/second"` or `"10/minute"`.
        timeout: Seconds after which a request is told that there is no answer.
        shutdown_timeout: Seconds for answering what is under way when the server stops.

    Raises:
        ImportError: If the extra `serve` is not installed.
        ValueError: If an argument is out of range, or others than this machine could ask without a key.
    """
    rate, keys = _check_options(host, keys, rate_limit)
    if batch_timeout >= timeout:
        raise ValueError(
            f"batch_timeout is {batch_timeout:g} s, but must be below a request's timeout of {timeout:g} s: lower it."
        )
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from lightning_pac.serve.admission import OPEN_PATH, Gate, GateMiddleware, OneReadingMiddleware
    from lightning_pac.serve.health import Health, add_health_page
    from lightning_pac.serve.predict_route import PREDICT, add_predict_route
    from lightning_pac.serve.privacy_page import add_privacy_page
    from lightning_pac.serve.response_api import PrivateServer, ResponseAPI

    health = Health(timeout)
    api = ResponseAPI(open_responder, collate, health, max_batch_size, batch_timeout)
    # A page in a browser may send requests to this machine under a name of its own.
    names = ["127.0.0.1", "localhost"] if host == LOOPBACK else ["*"]
    server = PrivateServer(
        api,
        accelerator="cpu",  # where the members run, the responder decides
        timeout=timeout,
        max_payload_size=max_request_bytes,
        middlewares=[
            (GateMiddleware, {"gate": Gate(keys, rate)}),
            (TrustedHostMiddleware, {"allowed_hosts": names}),
            (OneReadingMiddleware, {}),  # the last one is the first to see a request
        ],
    )
    server.uvicorn_graceful_timeout = shutdown_timeout
    server.app.title = "Private answers"
    pages = {OPEN_PATH, PREDICT, "/", "/info"}  # LitServe's own, which wait for ever or tell of the machine
    server.app.router.routes[:] = [page for page in server.app.routes if getattr(page, "path", None) not in pages]
    add_health_page(server.app, health)
    add_predict_route(server, health, timeout)
    add_privacy_page(server.app, real_path(ledger))
    return server


class _AfterTheEnd(logging.Filter):
    """Drops tracebacks once a server ends: LitServe's watch over its workers looks once more, and finds none."""

    def __init__(self, ending: Ending) -> None:
        super().__init__()
        self._ending = ending

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return not (self._ending.begun and record.exc_info)


def _hide_tracebacks_after(ending: Ending) -> None:
    logger = logging.getLogger("litserve.server")
    # That of a server which ended before in this process would hide the errors of this one.
    for earlier in [one for one in logger.filters if isinstance(one, _AfterTheEnd)]:
        logger.removeFilter(earlier)
    logger.addFilter(_AfterTheEnd(ending))


@validated
def serve(
    open_responder: Callable[[], PACResponder],
    ledger: str | Path,
    keys: APIKeys | str | Path | None = None,
    *,
    host: str = LOOPBACK,
    port: int = 8000,
    log_level: str = "warning",
    announce: Callable[[], None] = lambda: None,
    **options: Any,
) -> None:
    """Answer requests until the process is interrupted or terminated.

    An answer leaves after it is in the ledger, so stopping in any way, also by `kill -9`, loses nothing: a client that
    did not see an answer asks again under the same Idempotency-Key. Requests that wait when the server is told to
    stop are answered first. Linux and macOS.

    Args:
        open_responder: As for `build_server`.
        ledger: As for `build_server`.
        keys: As for `build_server`.
        host: `"127.0.0.1"`, or `"0.0.0.0"` or `"::"` for other machines, which needs keys.
        port: 1024 to 65535.
        log_level: Of LitServe and uvicorn.
        announce: Called when the server listens, from another thread.
        **options: Other arguments of `build_server`.

    Raises:
        ImportError: If the extra `serve` is not installed.
        LedgerError: If the ledger is in use, was copied or was rolled back.
        OSError: If something else listens on the port.
        RuntimeError: If a process of the server ended.
        ValueError: If an argument is out of range, or others than this machine could ask without a key.
    """
    server = build_server(open_responder, ledger, keys, host=host, **options)
    from lightning_pac.serve.connections import BoundedConnection, most_connections

    if not 1024 <= port <= 65535:
        raise ValueError(f"port must lie in 1024 ... 65535, got {port}.")
    # What is wrong with the ledger or the checkpoint is told here, and not by a process that failed to start.
    open_responder().close()
    PrivacyLedger.read_only(ledger).close()
    _check_port(host, port)
    connection = functools.partial(BoundedConnection, seconds=_SECONDS_OF_A_CLIENT, most=most_connections())
    ending = Ending()
    _hide_tracebacks_after(ending)
    others = set(multiprocessing.active_children())
    try:
        with ending.handles_signals(), forks_end_with_this_process():
            threading.Thread(target=ending.watch, args=(host, port, announce), daemon=True).start()
            server.run(
                host=host,
                port=port,
                num_api_servers=1,
                log_level=log_level,
                generate_client_file=False,
                access_log=False,
                proxy_headers=False,  # with which a client could choose the address that it is counted under
                http=connection,
                ws="none",
                h11_max_incomplete_event_size=_LONGEST_HEADERS,
            )
    except KeyboardInterrupt:
        pass  # before there was anything to answer, or a second time
    except (EOFError, ConnectionError) as error:
        raise RuntimeError(
            "The worker ended, so the server did too: its own message says why; start it again."
        ) from error
    finally:
        ending.begun = True
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
            process.join()
    if ending.lost is not None:
        raise RuntimeError(f"{ending.lost}, so the server did too: start it again.")


def _check_options(host: str, keys: APIKeys | str | Path | None, rate_limit: str) -> tuple[Any, APIKeys | None]:
    try:
        import limits
        import litserve  # noqa: F401
    except ImportError as error:
        raise ImportError("Serving needs LitServe: pip install 'lightning-pac[serve]'.") from error
    if host not in _HOSTS:
        raise ValueError(f"host must be one of {', '.join(_HOSTS)}, got {host!r}.")
    if keys is not None and not isinstance(keys, APIKeys):
        keys = APIKeys(keys)
    if keys is not None and not len(keys):
        raise ValueError(
            f"keys is {keys.path}, which has none: add one by `lightning-pac keys add {shlex.quote(str(keys.path))} "
            "NAME`."
        )
    if keys is None and host != LOOPBACK:
        raise ValueError(
            f"keys must be given on host {host}, or everybody who reaches this machine could spend the budget."
        )
    try:
        return limits.parse(rate_limit), keys
    except ValueError as error:
        raise ValueError(f"rate_limit must read like '100/second' or '10/minute', got {rate_limit!r}.") from error


def _check_port(host: str, port: int) -> None:
    # uvicorn would say so too, and end the process with an exit code of its own.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                f"Port {port} of {host} cannot be had ({error.strerror}): give another --port, or stop what uses it."
            ) from error
