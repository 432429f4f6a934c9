"""The requests of a producer that wait for their reply."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from minimq.connection.connection import Connection
from minimq.sending.pending_batch import UserCall
from minimq.sending.receipt import SendReceipt
from minimq.sending.requests.attend_streams import Attendance
from minimq.sending.requests.reply import Reply, decoded_reply
from minimq_common.errors import DeadlineExceeded, MiniMQError, RequestFailed
from minimq_proto.v1 import attend_pb2

#: Bytes of the key by which ids are made, and of an id.
_KEY_BYTES = 32
_ID_BYTES = 12


class CorrelationIds:
    """Ids of requests, each once, that nobody can guess who knows others. Thread-safe.

    They cost less than random bytes of the operating system, for which a thread would have to let others run.
    """

    def __init__(self) -> None:
        import hashlib  # those who ask for nothing do without it

        self._digest = partial(hashlib.blake2b, digest_size=_ID_BYTES, key=os.urandom(_KEY_BYTES))
        self._numbers = itertools.count()

    def new(self) -> str:
        """Return another one."""
        return self._digest(next(self._numbers).to_bytes(8, "big")).hexdigest()


class ReplyOutcome(Protocol):
    """Takes the reply to one request, or the error, such as a `ReceiptFuture`."""

    def complete(self, receipt: Reply | None, error: MiniMQError | None, /) -> UserCall | None:
        """Process the reply, or the error. Called once. Returns the remaining calls."""


class OpenRequest:
    """One request without a reply. It is the outcome of its message, too: a message that is not sent has no reply."""

    __slots__ = (
        "_events",
        "_outcome",
        "_receipt",
        "_requests",
        "correlation_id",
        "deadline",
        "home",
        "timeout_s",
        "timer",
    )

    def __init__(
        self,
        requests: OpenRequests,
        correlation_id: str,
        timeout_s: float,
        deadline: float,
        outcome: ReplyOutcome,
        home: Attendance,
    ) -> None:
        self._requests = requests
        self._outcome: ReplyOutcome | None = outcome
        self._receipt: SendReceipt | None = None
        self.correlation_id = correlation_id
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.home = home
        self._events = home.events
        #: Of its deadline, once the event loop has it.
        self.timer: asyncio.TimerHandle | None = None

    @property
    def heard_nothing(self) -> bool:
        """True if no event has come from the broker since the request was made."""
        return self.home.events == self._events

    def complete(self, receipt: SendReceipt | None, error: MiniMQError | None, /) -> UserCall | None:
        """Take the receipt of the message, which has no reply yet, or the error."""
        if error is None:
            self._receipt = receipt
            return None
        return self._requests.end(self, None, error)

    def tell(self, reply: Reply | None, error: MiniMQError | None) -> UserCall | None:
        """Tell whoever waits. Called once."""
        outcome, self._outcome = self._outcome, None
        return outcome.complete(reply, error) if outcome is not None else None

    def late(self) -> DeadlineExceeded:
        """Return the error that it ends with when its time is over."""
        if self._receipt is None:
            state = "it was not acknowledged yet, and may be stored or not"
        else:
            queue, offset = self._receipt.queue, self._receipt.queue_offset
            state = f"it is stored in queue {queue} at offset {offset}, and nobody has answered it"
        return DeadlineExceeded(f"no reply to the request came within {self.timeout_s:g} s: {state}")


class OpenRequests:
    """All requests of a producer without a reply. Thread-safe.

    No lock: a request is of whoever takes it out of the dictionary, which is one atomic step. Ctrl-C may come anywhere.
    """

    def __init__(self, connection: Connection, call: Callable[[UserCall], None]) -> None:
        self._connection = connection
        self._call = call
        self._open: dict[str, OpenRequest] = {}
        self.late_replies = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: OpenRequest) -> None:
        """Let a request wait until its deadline."""
        self._open[request.correlation_id] = request
        self._connection.call_soon(self._begin, request)

    def end(self, request: OpenRequest, reply: Reply | None, error: MiniMQError | None) -> UserCall | None:
        """End a request, unless it is over."""
        return request.tell(reply, error) if self._take(request.correlation_id) is not None else None

    def forget(self, request: OpenRequest) -> None:
        """Let nobody wait for a request any more."""
        self._take(request.correlation_id)

    def end_all(self, error: Callable[[], MiniMQError]) -> None:
        """End all requests with an error."""
        for request in [*self._open.values()]:
            self._run(self.end(request, None, error()))

    def _take(self, correlation_id: str) -> OpenRequest | None:
        request = self._open.pop(correlation_id, None)
        if request is not None and request.timer is not None:
            self._connection.call_soon(request.timer.cancel)
        return request

    def _run(self, call: UserCall | None) -> None:
        if call is not None:
            self._call(call)

    # ---- on the event loop ----------------------------------------------------------------------

    def answered(self, correlation_id: str, made: attend_pb2.RequestReply) -> None:
        """Take a reply. Only the first one to each request is handed out."""
        request = self._take(correlation_id)
        if request is None:
            self.late_replies += 1
            return
        reply = decoded_reply(made)
        if reply.error is not None:
            self._run(request.tell(None, RequestFailed(reply.error, reply.body, reply.properties)))
        else:
            self._run(request.tell(reply, None))

    def _begin(self, request: OpenRequest) -> None:
        if request.correlation_id in self._open:
            left_s = max(request.deadline - time.monotonic(), 0.0)
            request.timer = asyncio.get_running_loop().call_later(left_s, self._late, request)

    def _late(self, request: OpenRequest) -> None:
        if request.correlation_id in self._open:
            if request.heard_nothing and request.home.address:  # the broker of its inbox may be away
                self._connection.health.failed(request.home.address, DeadlineExceeded("no reply came"))
            self._run(self.end(request, None, request.late()))
