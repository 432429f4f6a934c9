"""Requests about half messages on their way: each is tried again, at whoever is the master of its broker by then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from minimq.administration.end_stream import EndStream
from minimq.connection.connection import Connection
from minimq.sending.append_streams import AppendStreams
from minimq.sending.decisions import Transaction
from minimq.sending.pending_batch import UserCall
from minimq_common.errors import Closed, DeadlineExceeded, MiniMQError, Unavailable
from minimq_common.model import MessageQueue
from minimq_proto.v1 import halves_pb2

#: Pauses between two tries, in seconds: the first one, and the longest.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
#: A try without an answer is given up after so long, in seconds. The request may be carried out all the same; repeated,
#: it is answered by what became of it.
_TRY_S = 2.0
#: How often late tries are looked for, in seconds.
_TICK_S = 0.25

#: Begins a try at an address; the answer, or the reason why there is none, is given to the function.
Try = Callable[[str, Callable[[Any, MiniMQError | None], None]], None]


class HalfCallOutcome(Protocol):
    """Takes the outcome of a call: the answer, or the error."""

    def complete(self, answer: Any, error: MiniMQError | None, /) -> UserCall | None:  # noqa: ANN401 - of each call
        """Process it. Called once, on any thread."""


class HalfCalls:
    """Stages half messages and ends transactions at brokers. Thread-safe."""

    def __init__(
        self,
        connection: Connection,
        master_of: Callable[[str], str | None],
        look_for: Callable[[str], None],
        timeout_s: float,
    ) -> None:
        self.connection = connection
        self.master_of, self.look_for = master_of, look_for
        self._timeout_s = timeout_s
        self._append_streams = AppendStreams(connection)
        self._end_streams: dict[str, EndStream] = {}
        self._open: set[_HalfCall] = set()
        self._keeps_time = False
        self._closed = False

    def stage(
        self, queue: MessageQueue, data: bytes, transaction: Transaction, key_queues: int, outcome: HalfCallOutcome
    ) -> None:
        """Have a batch staged; the answer is an `AppendResult`. `key_queues` is that of a compacted topic."""

        def attempt(address: str, answer: Callable[[Any, MiniMQError | None], None]) -> None:
            self._append_streams.to(address).append(queue, data, answer, transaction, key_queues=key_queues)

        self._begin(queue.broker_name, attempt, outcome)

    def end(self, broker_name: str, request: halves_pb2.EndHalfRequest, outcome: HalfCallOutcome) -> None:
        """Have a transaction ended; the answer is an `EndHalfResult`."""

        def attempt(address: str, answer: Callable[[Any, MiniMQError | None], None]) -> None:
            self._end_stream(address).end(request, answer)

        self._begin(broker_name, attempt, outcome)

    def _begin(self, broker_name: str, attempt: Try, outcome: HalfCallOutcome) -> None:
        call = _HalfCall(self, broker_name, attempt, outcome, self._timeout_s)
        self._open.add(call)
        if not self._keeps_time:
            self._keeps_time = True
            self.connection.call_soon(self._keep_time)
        call.try_once()

    def _end_stream(self, address: str) -> EndStream:
        stream = self._end_streams.get(address)
        if stream is None or stream.ended:  # two threads may open one each: the answers come on either
            stream = self._end_streams[address] = EndStream(self.connection, address)
        return stream

    def forget(self, call: _HalfCall) -> None:
        """Note that a call has its outcome."""
        self._open.discard(call)

    @property
    def is_closed(self) -> bool:
        """True once nothing is tried any more."""
        return self._closed

    def close(self) -> None:
        """End all streams; calls that are under way fail with `Closed`. Idempotent."""
        self._closed = True
        self._append_streams.close()
        for stream in [*self._end_streams.values()]:
            stream.close()
        for call in self._open.copy():
            call.give_up(Closed("the producer was closed before the broker had answered"))

    # ---- time, on the event loop -----------------------------------------------------------------

    def _keep_time(self) -> None:
        now = time.monotonic()
        for call in self._open.copy():
            call.look(now)
        if self._open and not self._closed:
            asyncio.get_running_loop().call_later(_TICK_S, self._keep_time)
        else:
            self._keeps_time = False
            if self._open and not self._closed:  # one has come meanwhile
                self._keeps_time = True
                self.connection.call_soon(self._keep_time)


class _HalfCall:
    """One request, and its tries. Its outcome is delivered once, whichever try has it."""

    __slots__ = ("_attempt", "_began", "_broker_name", "_calls", "_deadline", "_done", "_outcome", "_pause_s", "_tries")

    def __init__(
        self, calls: HalfCalls, broker_name: str, attempt: Try, outcome: HalfCallOutcome, timeout_s: float
    ) -> None:
        self._calls = calls
        self._broker_name = broker_name
        self._attempt = attempt
        self._outcome = outcome
        self._deadline = time.monotonic() + timeout_s
        self._pause_s = _FIRST_PAUSE_S
        self._tries = 0
        self._began = 0.0  # 0: none is under way
        #: Holds one item, which whoever delivers the outcome takes out.
        self._done = [True]

    def try_once(self) -> None:
        """Begin a try at the present master."""
        self._tries += 1
        number = self._tries
        address = self._calls.master_of(self._broker_name)
        if address is None:
            self._failed(number, "", Unavailable(f"no master of broker {self._broker_name} is known now"))
            return
        self._began = time.monotonic()
        try:
            self._attempt(address, partial(self._answered, number, address))
        except MiniMQError as error:
            self._failed(number, address, error)

    def _answered(self, number: int, address: str, answer: object, error: MiniMQError | None) -> None:
        if error is None:
            self._complete(answer, None)
        else:
            self._failed(number, address, error)

    def _failed(self, number: int, address: str, error: MiniMQError) -> None:
        if number != self._tries:
            return
        self._began = 0.0
        if address:
            self._calls.connection.health.failed(address, error)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        pause_s = max(self._pause_s, error.retry_after_s)
        if not error.retriable or self._calls.is_closed or time.monotonic() + pause_s > self._deadline:
            self.give_up(error)
            return
        if error.refresh_route:
            self._calls.look_for(self._broker_name)
        if not self._calls.connection.call_soon(self._again_after, pause_s):
            self.give_up(error)

    def _again_after(self, pause_s: float) -> None:
        asyncio.get_running_loop().call_later(pause_s, self._again)

    def _again(self) -> None:
        if self._done:
            self.try_once()

    def look(self, now: float) -> None:
        """Give a try up that takes too long; on the event loop."""
        if self._began and now > self._began + _TRY_S:
            address = self._calls.master_of(self._broker_name) or ""
            error = DeadlineExceeded(f"broker {self._broker_name} at {address} gave no answer for {_TRY_S:g} s")
            self._failed(self._tries, "", error)

    def give_up(self, error: MiniMQError) -> None:
        """End with an error, unless there is an outcome."""
        self._complete(None, error)

    def _complete(self, answer: object, error: MiniMQError | None) -> None:
        try:
            self._done.pop()
        except IndexError:
            return
        self._calls.forget(self)
        self._outcome.complete(answer, error)
