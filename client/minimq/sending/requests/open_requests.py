"""The requests of a producer that wait for their reply."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from minimq.connection.connection import Connection
from minimq.sending.pending_batch import UserCall
from minimq.sending.receipt import SendReceipt
from minimq.sending.requests.attend_streams import Attendance
from minimq.sending.requests.reply import Reply, decoded_reply
from minimq.transport.client_log import client_logger
from minimq_common.errors import DeadlineExceeded, MiniMQError, RequestFailed
from minimq_proto.v1 import attend_pb2

log = client_logger(__name__)

#: Bytes of the key by which ids are made, and of an id.
_KEY_BYTES = 32
_ID_BYTES = 12
#: Deadlines of requests that are over stay until there are so many more than open requests.
_SPARE_DEADLINES = 10_000


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

    __slots__ = ("_events", "_outcome", "_receipt", "_requests", "correlation_id", "deadline", "home", "timeout_s")

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
        outcome, self._outcome = self._outcome, None  # whose body is not to stay here until the deadline
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
        #: Requests whose deadline is not in the heap yet.
        self._new: deque[OpenRequest] = deque()
        self.late_replies = 0
        # What follows belongs to the event loop; threads look at the time of the next look.
        self._heap: list[tuple[float, str]] = []
        self._look_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: OpenRequest) -> None:
        """Let a request wait until its deadline."""
        self._open[request.correlation_id] = request
        self._new.append(request)
        if request.deadline < self._look_at or len(self._new) > _SPARE_DEADLINES:
            self._connection.call_soon(self._look)

    def end(self, request: OpenRequest, reply: Reply | None, error: MiniMQError | None) -> UserCall | None:
        """End a request, unless it is over."""
        if self._open.pop(request.correlation_id, None) is None:
            return None
        return request.tell(reply, error)

    def forget(self, request: OpenRequest) -> None:
        """Let nobody wait for a request any more."""
        self._open.pop(request.correlation_id, None)

    def end_all(self, error: Callable[[], MiniMQError]) -> None:
        """End all requests with an error."""
        for request in [*self._open.values()]:
            self._finish(request, None, error())

    # ---- on the event loop ----------------------------------------------------------------------

    def answered(self, correlation_id: str, made: attend_pb2.RequestReply) -> None:
        """Take a reply. Only the first one to each request is handed out."""
        request = self._open.pop(correlation_id, None)
        if request is None:
            self.late_replies += 1
            log.debug("client: dropped a reply to a request that is over correlation_id=%s", correlation_id)
            return
        reply = decoded_reply(made)
        if reply.error is not None:
            self._tell(request, None, RequestFailed(reply.error, reply.body, reply.properties))
        else:
            self._tell(request, reply, None)

    def _finish(self, request: OpenRequest, reply: Reply | None, error: MiniMQError | None) -> None:
        if self._open.pop(request.correlation_id, None) is not None:
            self._tell(request, reply, error)

    def _tell(self, request: OpenRequest, reply: Reply | None, error: MiniMQError | None) -> None:
        call = request.tell(reply, error)
        if call is not None:
            self._call(call)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while True:
            while self._new:
                request = self._new.popleft()
                if request.correlation_id in self._open:
                    heapq.heappush(self._heap, (request.deadline, request.correlation_id))
            self._end_late(time.monotonic())
            if len(self._heap) > 2 * len(self._open) + _SPARE_DEADLINES:
                self._heap = [item for item in self._heap if item[1] in self._open]
                heapq.heapify(self._heap)
            self._look_at = self._heap[0][0] if self._heap else math.inf
            if not self._new:  # once more: a thread may have added one before it saw the time of this look
                break
        if self._heap:
            left_s = max(self._look_at - time.monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look)

    def _end_late(self, now: float) -> None:
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._open):
            _, correlation_id = heapq.heappop(self._heap)
            request = self._open.get(correlation_id)
            if request is not None:
                if request.heard_nothing and request.home.address:  # the broker of its inbox may be away
                    self._connection.health.failed(request.home.address, DeadlineExceeded("no reply came"))
                self._finish(request, None, request.late())
