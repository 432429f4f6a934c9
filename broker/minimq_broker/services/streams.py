"""The tasks that receive from clients. They are cancelled at the end of a role or of the broker."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine

from google.protobuf.message import DecodeError

from minimq_broker.services.stream_writer import AnswerStream
from minimq_common.errors import MiniMQError

log = logging.getLogger(__name__)


class Streams:
    """The receivers of all open streams. Belongs to the event loop; any thread may read `open`."""

    def __init__(self) -> None:
        self._receivers: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> Counter[str]:
        """The number of open streams by call."""
        return Counter(task.get_name().partition("-")[0] for task in self._receivers.copy())

    def receive(self, requests: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Start a task that `end` cancels. Its `name` begins with the call that it counts for, such as "pull-"."""
        task = asyncio.create_task(requests, name=name)
        self._receivers.add(task)
        task.add_done_callback(self._received)
        return task

    async def serve(self, requests: Coroutine[None, None, None], name: str, answers: AnswerStream) -> None:
        """Receive requests until the client closes its side, and return when all answers are written."""
        receiver = self.receive(requests, name)
        try:
            await answers.serve(receiver)
        finally:
            receiver.cancel()
            answers.close()
            await answers.drained()
        raise_failure(receiver)

    def end(self) -> None:
        """Stop receiving: each stream still answers the requests that it has accepted, and ends cleanly."""
        for task in self._receivers:
            task.cancel()

    def _received(self, task: asyncio.Task[None]) -> None:
        self._receivers.discard(task)
        if task.cancelled() or isinstance(task.exception(), MiniMQError | DecodeError):  # reported to the client
            return
        if task.exception() is not None:
            log.warning("stream: ended by an error name=%s error=%r", task.get_name(), task.exception())


def raise_failure(receiver: asyncio.Task[None]) -> None:
    """Raise the error that ended a receiver, if it must be reported to the client."""
    failure = None if receiver.cancelled() or not receiver.done() else receiver.exception()
    if isinstance(failure, MiniMQError | DecodeError):
        raise failure
