"""Serving the streams of clients: the tasks that receive, and the writing of answers and frames."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from minimq_common.errors import MinimqError
from minimq_common.wire.unsent import SMALL_BYTES, UnsentBudget

log = logging.getLogger(__name__)


class AnswerStream:
    """Writes the answers to the requests of one stream. Answers added during a write leave together after it.

    gRPC breaks a stream if a write is cancelled, overlaps another, or is unfinished when the call ends. So a write
    belongs to no task, and `drained` must be awaited before the call ends. Messages are encoded here rather than by
    gRPC (the `Dispatcher` allows it), which saves one copy in memory.

    Drives gRPC's write coroutine by hand: a task would cost one loop iteration per step. With no answer waiting, the
    end of a write is handled only when the next answer comes.
    """

    def __init__(self, context: Any, soon: Callable[[Callable[[], None]], object], unsent: UnsentBudget) -> None:
        self._write, self._peer = context.write, context.peer()
        self._soon, self._unsent = soon, unsent
        self._answers: list[Any] = []
        self._writing: Coroutine[Any, Any, None] | None = None
        self._step: asyncio.Future[Any] | None = None
        #: A flush is scheduled: soon, after the current write, or when there is room among unsent bytes.
        self._is_due = False
        self._room_task: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed: asyncio.Future[None] | None = None
        #: Accepted requests that are not answered yet, and answers not written yet.
        self.expected = 0

    @property
    def is_closed(self) -> bool:
        """True if the stream ended or failed: no answer is written any more."""
        return self._over.done()

    def add(self, answer: Any) -> None:
        """Queue an answer; it is written together with those that follow soon."""
        self._answers.append(answer)
        if not self._is_due:
            self._is_due = True
            self._soon(self._flush)

    async def fewer(self, most: int) -> None:
        """Wait until fewer than `most` answers are queued, or the stream ended."""
        while len(self._answers) >= most and not self._over.done():
            await self._change()

    async def serve(self, receiver: asyncio.Task[None]) -> None:
        """Wait until `receiver` and all expected answers are done, or the stream ends. Raises its error, if any."""
        await asyncio.wait((receiver, self._over), return_when=asyncio.FIRST_COMPLETED)
        while (self.expected > 0 or self._answers) and not self._over.done():
            await self._change()
        await self.drained()
        if self._over.done():
            self._over.result()

    async def drained(self) -> None:
        """Wait for the current write: gRPC's abort hangs if the first write of a call was not finished."""
        if self._step is not None:
            await asyncio.wait((self._step,))
            self._end_write()

    def end(self, error: BaseException | None = None) -> None:
        """End the stream without the queued answers, and with an error unless the call has ended."""
        if self._over.done():
            return
        if error is None or isinstance(error, _CALL_ENDED):
            self._over.set_result(None)
        else:
            self._over.set_exception(error)
        self._wake()

    def close(self) -> None:
        """Write nothing more. `drained` must be awaited before the call ends."""
        self.end()
        if self._room_task is not None:
            self._room_task.cancel()
        if self._step is not None and not self._is_due:
            self._step.add_done_callback(self._flush)  # retrieves the result of the write

    def next_size(self) -> int:
        """Estimate the bytes of the next message."""
        return 0

    def take(self) -> bytes | None:
        """Take queued answers, and return the next message, encoded. `expected` counts them as written.

        None: there is no message now; if answers are queued, it is called again in the next iteration of the loop.
        """
        raise NotImplementedError

    def _flush(self, _: object = None) -> None:
        if self._step is not None:
            if not self._step.done():
                self._step.add_done_callback(self._flush)
                return
            self._end_write()
        self._is_due = False
        if self._over.done() or not self._answers:
            return
        if not self._unsent.is_tight:
            self._begin_write()
        else:
            self._is_due = True
            self._room_task = asyncio.create_task(self._make_room(), name="answers-room")

    async def _make_room(self) -> None:
        await self._unsent.room(self.next_size())
        self._is_due = False
        self._begin_write()

    def _begin_write(self) -> None:
        try:
            if (data := self.take()) is not None:
                self._writing = self._write(data)
                self._step = step = self._writing.send(None)
                if len(data) > SMALL_BYTES:  # the number of streams bounds smaller ones
                    taken = self._unsent.begin(self._peer, len(data))
                    step.add_done_callback(lambda _: self._unsent.end(taken))
        except StopIteration:  # written without waiting
            self._writing = None
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - it ends the call
            self.end(error)
        if self._answers and not self._over.done():  # too many for one message
            self._is_due = True
            self._soon(self._flush)
        if self._changed is not None:
            self._wake()

    def _end_write(self) -> None:
        writing, self._writing, self._step = self._writing, None, None
        try:
            if writing is not None:
                writing.send(None)
        except StopIteration:
            pass
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - it ends the call
            self.end(error)

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _change(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed


#: gRPC raises these when a call ends during a write.
_CALL_ENDED = (asyncio.CancelledError, grpc.aio.BaseError, grpc.RpcError)


class FrameStream(AnswerStream):
    """Writes the frames that one task makes, each when it is written."""

    def __init__(self, context: Any, unsent: UnsentBudget) -> None:
        super().__init__(context, asyncio.get_running_loop().call_soon, unsent)

    async def write(self, make: Callable[[], Message]) -> None:
        """Write what `make` returns, once there is room. Raises `CancelledError` if the stream has ended."""
        self.add(make)
        try:
            await self.fewer(1)
            await self.drained()
        except asyncio.CancelledError:
            self.close()
            raise
        if self._over.done():
            self._over.result()
            raise asyncio.CancelledError

    def take(self) -> bytes:
        return bytes(self._answers.pop()().SerializeToString())


class Streams:
    """The receivers of all open streams. Belongs to the event loop."""

    def __init__(self) -> None:
        self._receivers: set[asyncio.Task[None]] = set()

    def receive(self, requests: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Start a task that `end` cancels."""
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
        failure = None if receiver.cancelled() or not receiver.done() else receiver.exception()
        if isinstance(failure, MinimqError | DecodeError):
            raise failure

    def end(self) -> None:
        """Stop receiving: each stream still answers the requests that it has accepted, and ends cleanly."""
        for task in self._receivers:
            task.cancel()

    def _received(self, task: asyncio.Task[None]) -> None:
        self._receivers.discard(task)
        if task.cancelled() or isinstance(task.exception(), MinimqError | DecodeError):  # reported to the client
            return
        if task.exception() is not None:
            log.warning("stream: ended by an error name=%s error=%r", task.get_name(), task.exception())
