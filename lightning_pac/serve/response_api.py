"""The worker of a server: the only process that writes the ledger."""

import logging
import os
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from queue import Empty
from typing import Any

import litserve
from litserve.loops.simple_loops import BatchedLoop
from typing_extensions import override

from lightning_pac._shown import shows_itself
from lightning_pac.mechanisms import PACResponder
from lightning_pac.serve.batch_answers import BatchAnswers, Refusal, Ticket
from lightning_pac.serve.health import SECONDS_BETWEEN_SIGNS, Health
from lightning_pac.serve.parent_watch import end_with_parent, interrupts_held
from lightning_pac.serve.predict_route import PREDICT

__all__ = ["PrivateServer", "ResponseAPI"]

logger = logging.getLogger(__name__)


class ResponseAPI(litserve.LitAPI):  # type: ignore[misc]
    """`POST /predict`, answered by one worker that owns the ledger.

    LitServe pickles this object to the worker, which it spawns; `setup` opens the responder there.

    Args:
        open_responder: Opens the responder in the worker.
        collate: Makes the model's inputs from a list of JSON inputs.
        health: Where the worker says whether it can answer.
        max_batch_size: Most requests of one transaction.
        batch_timeout: Seconds that a request waits for others to join it.
    """

    def __init__(
        self,
        open_responder: Callable[[], PACResponder],
        collate: Callable[[list[Any]], Any],
        health: Health,
        max_batch_size: int,
        batch_timeout: float,
    ) -> None:
        super().__init__(max_batch_size=max_batch_size, api_path=PREDICT, loop=_WaitingLoop(batch_timeout))
        self._open_responder = open_responder
        self._collate = collate
        self._health = health
        self._server = os.getpid()

    @override
    def setup(self, device: str) -> None:
        end_with_parent(self._server)
        self._answers = BatchAnswers(self._open_responder, self._collate)
        self._health.give_sign()

    @override
    def decode_request(self, request: Ticket) -> Ticket:
        return request

    @override
    def batch(self, inputs: list[Ticket]) -> list[Ticket]:
        return inputs

    @override
    def predict(self, x: list[Ticket]) -> list[int | Refusal]:
        try:
            results = self._answers(x)
        except Exception as error:
            if type(error).__name__ == "AcceleratorError":  # torch's; the device answers nothing more to this process
                logger.critical("The device failed, so the worker ends: %s", error)
                os._exit(1)
            raise
        self._health.reason = self._answers.failure
        return results

    def come_back(self, has_work: bool) -> None:
        """Called between two batches; with nothing to do, see whether a failure is over."""
        self._health.give_sign()
        if not has_work:
            self._answers.try_again()
            self._health.reason = self._answers.failure

    @override
    def unbatch(self, output: list[int | Refusal]) -> list[int | Refusal]:
        return output

    @override
    def encode_response(self, output: int | Refusal) -> int | Refusal:
        # An exception here would answer the whole batch with its status, also those who have paid.
        return output


@shows_itself
class PrivateServer(litserve.LitServer):  # type: ignore[misc]
    """LitServe's server, whose worker hears of no Ctrl-C, from its first instruction on."""

    @override
    def launch_inference_worker(self, lit_api: Any) -> Any:
        resource_tracker.ensure_running()  # or starting the worker would start it, and let interrupts through again
        with interrupts_held():
            return super().launch_inference_worker(lit_api)


class _WaitingLoop(BatchedLoop):  # type: ignore[misc]
    """LitServe's loop of batches, which sleeps while nothing is asked instead of looking a thousand times a second.

    Args:
        batch_timeout: Seconds that a request waits for others. LitServe is told zero, with which it takes what there
            is: with more it takes nothing if the process is held up for as long, and forgets what was given back.
    """

    def __init__(self, batch_timeout: float) -> None:
        super().__init__()
        self._batch_timeout = batch_timeout

    def get_batch_requests(self, lit_api: Any, request_queue: Any, transport: Any) -> Any:
        try:
            first = request_queue.get(timeout=SECONDS_BETWEEN_SIGNS)
        except Empty:
            lit_api.come_back(has_work=False)
            return [], []
        lit_api.come_back(has_work=True)
        if lit_api.max_batch_size > 1:
            time.sleep(self._batch_timeout)
        return super().get_batch_requests(lit_api, _Returned(first, request_queue), transport)


class _Returned:
    """A queue to which its first element was given back."""

    def __init__(self, first: Any, queue: Any) -> None:
        self._first = [first]
        self._queue = queue

    def get_nowait(self) -> Any:
        return self._first.pop() if self._first else self._queue.get_nowait()
