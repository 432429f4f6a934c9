"""Calls a listener with the messages that sources take.

All state belongs to the event loop of the connection. Other threads use only `ListenerThreads` or `ListenerTasks`, to
get deliveries, and `ListenerRunner.answered`, to return results.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from minimq.connection.finalizers import Closing
from minimq.connection.retry_schedule import PAUSE_S
from minimq.features.listeners.listener import ListenerAdapter, ListenerResult
from minimq.features.listeners.listener_calls import ListenerTasks, ListenerThreads
from minimq.features.listeners.listener_options import PushConsumerOptions
from minimq.features.listeners.retries import CANCELLED, TIMED_OUT
from minimq.features.listeners.source import Delivery, Source
from minimq.features.requests.replier import Replier
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq_common.errors import Closed, InternalError, InvalidArgument, MinimqError, SendFailed, SystemBusy
from minimq_common.retry_log import RetryLog

log = logging.getLogger(__name__)

_TICK_S = 0.2
#: A consumer that stops by itself waits this long for its sources; one that waits longer for its listener logs that.
_STOP_S = 1.0

#: Of replies: retries last as long as a fail-over; a body is limited by its broker.
_REPLYING = ProducerOptions(send_timeout_s=10.0, max_body_bytes=32 << 20, buffer_bytes=16 << 20)
#: A consumer that closes waits this long for its replies.
_CLOSE_S = 1.0

_STARTED = "the consumer was started before: start it once"


class _Taking:
    """The task that takes the messages of one source."""

    def __init__(self, source: Source[Any]) -> None:
        self.source = source
        self.task: asyncio.Task[None] | None = None
        #: Why the latest attempt failed.
        self.rejection: MinimqError | None = None
        self.outage = RetryLog(log)


class ListenerRunner:
    """Takes messages from sources while calls may begin, and passes them the verdicts."""

    def __init__(self, sources: Sequence[Source[Any]], threads: int, options: PushConsumerOptions) -> None:
        self._takings = [_Taking(source) for source in sources]
        self._group, self._client = sources[0].group, sources[0].client
        self._threads = threads
        self._most_calls = sources[0].calls_per_thread * threads
        self._hangs_after_s, self._start_timeout_s = options.consume_timeout_s, options.start_timeout_s
        self._replies = ProducerCore(self._client.cluster, _REPLYING)
        self.replier = Replier(self._replies)
        self._closing, self._is_closed = Closing(), False
        #: Why reading has stopped for good.
        self._broken: MinimqError | None = None
        # The rest belongs to the event loop.
        self._calls: ListenerThreads[Delivery] | ListenerTasks[Delivery] | None = None
        #: Deliveries that were submitted and are not settled.
        self.in_flight: dict[Delivery, None] = {}
        #: Number of occupied slots.
        self._running = 0
        #: Set when a call ends while fewer than `_notify_below` slots are occupied.
        self._changed = asyncio.Event()
        self._notify_below = self._most_calls + 1
        self.is_stopping = False
        #: The task that starts the sources, until it has.
        self._starting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_ready(self) -> bool:
        return not self.is_stopping and all(map(_is_ready, self._takings))

    @property
    def error(self) -> MinimqError | None:
        return self._broken or next((taking.rejection for taking in self._takings if taking.rejection), None)

    # ---- start -------------------------------------------------------------------------------------

    def start(self, listener: ListenerAdapter) -> None:
        """Start and call the listener on threads; see `PushConsumer.start`."""
        self._check_may_start()
        name = f"minimq-listener-{self._group}"
        calls = ListenerThreads(self._threads, partial(self._call, listener), name)
        self._client.wait(lambda: self._begin(calls))

    async def start_on(self, loop: asyncio.AbstractEventLoop, listener: ListenerAdapter) -> None:
        """Start and await the listener on `loop`, which also runs this coroutine."""
        self._check_may_start()
        calls = ListenerTasks(loop, self._threads, partial(self._call_async, listener), self._on_cancelled)
        await self._client.result(lambda: self._begin(calls), cancels=True)

    def _check_may_start(self) -> None:
        self._takings[0].source.check_open()
        if self._is_closed:
            raise Closed("the consumer is closed")
        if self._calls is not None:
            raise InvalidArgument(_STARTED)
        if not self._takings[0].source.topics:
            raise InvalidArgument("nothing is subscribed to: call subscribe(topic) first")

    async def _begin(self, calls: ListenerThreads[Delivery] | ListenerTasks[Delivery]) -> None:
        if self._starting is not None:
            if not self._starting.cancelling():
                raise InvalidArgument(_STARTED)
            await asyncio.wait([self._starting])
        self._check_may_start()
        self._starting = asyncio.current_task()
        try:
            until = time.monotonic() + self._start_timeout_s
            for taking in self._takings:
                for topic in taking.source.topics:
                    await self._client.routes.find_within(topic, max(until - time.monotonic(), 0.0))
                await taking.source.begin()
        finally:
            self._starting = None
        self._calls = calls
        for taking in self._takings:
            taking.task = self.run(self._take_all(taking))
        self.run(self._watch())

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- deliveries --------------------------------------------------------------------------------

    def submit(self, delivery: Delivery) -> None:
        """Schedule a call of the listener."""
        self.in_flight[delivery] = None
        assert self._calls is not None  # set before anything is taken
        if not delivery.has_slot:
            delivery.has_slot = True
            self._running += 1
        self._calls.add(delivery)

    def put_off(self, delivery: Delivery, delay_s: float) -> None:
        """Submit a delivery again after a delay, if it is still current then."""
        asyncio.get_running_loop().call_later(delay_s, self._submit_again, delivery)

    def _submit_again(self, delivery: Delivery) -> None:
        if not self.is_stopping and delivery.source.is_current(delivery):
            delivery.is_over = False
            self.submit(delivery)
            self._flush()

    def _flush(self) -> None:
        if self._calls is not None:
            self._calls.flush()

    def _call(self, listener: ListenerAdapter, delivery: Delivery) -> None:
        if delivery.source.may_begin(delivery):
            delivery.began_at = time.monotonic()
            try:
                verdict = listener.ask(delivery.queue, delivery.messages)
            except BaseException as error:  # noqa: BLE001 - from an interceptor: it must not end the thread
                verdict = listener.failed(error, delivery.queue, delivery.messages)
            self.answered(delivery, verdict)
        else:
            self.answered(delivery, None)

    async def _call_async(self, listener: ListenerAdapter, delivery: Delivery) -> None:
        if not delivery.source.may_begin(delivery):
            self.answered(delivery, None)
            return
        delivery.began_at = time.monotonic()
        try:
            verdict = await listener.ask_async(delivery.queue, delivery.messages)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # it ends the task, perhaps the loop: `close` must not wait for this call
            self.answered(delivery, listener.failed(error, delivery.queue, delivery.messages))
            raise
        self.answered(delivery, verdict)

    def _on_cancelled(self, delivery: Delivery) -> None:
        log.error("consumer: the listener was cancelled group=%s queue=%s", self._group, delivery.queue)
        self.answered(delivery, ListenerResult(range(len(delivery.messages)), reason=CANCELLED))

    def answered(self, delivery: Delivery, verdict: ListenerResult | None) -> None:
        """Pass the result of a call to the loop; None if it did not begin. On any thread."""
        self._client.connection.call_soon(self._take_answer, delivery, verdict)

    def _take_answer(self, delivery: Delivery, verdict: ListenerResult | None) -> None:
        self._act_on(delivery, verdict)
        self._flush()

    def _act_on(self, delivery: Delivery, verdict: ListenerResult | None) -> None:
        delivery.began_at = None
        if delivery.is_over:
            return
        delivery.is_over = True
        if not delivery.keeps_slot:
            self._free_slot(delivery)
        try:
            rest = delivery.source.act_on(delivery, verdict)
        except Exception:
            log.exception("consumer: failed to process a listener result")
            rest = None
        if rest is None:
            self._settled(delivery)
        else:
            self.run(self._settle(delivery, rest))

    async def _settle(self, delivery: Delivery, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        except Exception:
            log.exception("consumer: failed to process a listener result")
        finally:
            self._settled(delivery)
            self._flush()

    def _settled(self, delivery: Delivery) -> None:
        self.in_flight.pop(delivery, None)
        self._free_slot(delivery)

    def _free_slot(self, delivery: Delivery) -> None:
        if delivery.has_slot:
            delivery.has_slot = False
            self._running -= 1
        if self._running < self._notify_below:
            self._changed.set()

    # ---- taking ------------------------------------------------------------------------------------

    async def _take_all(self, taking: _Taking) -> None:
        outage = taking.outage
        while not self.is_stopping:
            try:
                await taking.source.take(self._most_calls - self._running)
                taking.rejection = None
                outage.worked("consumer: goes on group=%s", self._group)
            except Closed:
                return
            except MinimqError as error:
                taking.rejection = error
                text = "consumer: cannot take or commit, will try again group=%s error=%s"
                outage.failed(text, self._group, error, cause=error, level=logging.ERROR)
                await asyncio.sleep(PAUSE_S)
            except Exception as error:  # noqa: BLE001 - the task serves all queues: one failure must not end it
                taking.rejection = InternalError(f"the consumer failed: {error!r}")
                outage.crashed("consumer: failed, will try again group=%s", self._group, cause=error)
                await asyncio.sleep(PAUSE_S)
            finally:
                self._flush()

    async def wait_changed(self, timeout_s: float | None = None) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def wait_for_room(self, timeout_s: float) -> None:
        """Wait until half of the slots are free: waking up for each call would cost more than the calls."""
        self._notify_below = self._most_calls // 2 + 1
        try:
            if self._running >= self._notify_below:
                await self.wait_changed(timeout_s)
        finally:
            self._notify_below = self._most_calls + 1

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until all deliveries are settled; return whether that happened in time."""
        until = time.monotonic() + timeout_s
        while self.in_flight:
            if (left_s := until - time.monotonic()) <= 0:
                return False
            await self.wait_changed(left_s)
        return True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            assert self._calls is not None  # set before this task begins
            self._calls.tick(now)
            if self._calls.has_ended and not self._is_closed:
                text = "the event loop of the listener has ended: close the consumer before its loop ends"
                await self._give_up(InternalError(text))
                return
            for taking in self._takings:
                taking.source.tick(now)
            for delivery in [*self.in_flight]:
                began_at = delivery.began_at
                if began_at is not None and not delivery.hangs and now >= began_at + self._hangs_after_s:
                    self._hangs(delivery)

    def _hangs(self, delivery: Delivery) -> None:
        delivery.hangs = True
        text = "consumer: the listener has not returned for %s s group=%s queue=%s offset=%s messages=%s"
        offset, count = delivery.messages[0].queue_offset, len(delivery.messages)
        log.error(text, self._hangs_after_s, self._group, delivery.queue, offset, count)
        if delivery.source.retries_hanging:
            self._act_on(delivery, ListenerResult(range(len(delivery.messages)), reason=TIMED_OUT))
        self._changed.set()

    # ---- close -------------------------------------------------------------------------------------

    async def _give_up(self, error: MinimqError) -> None:
        log.critical("consumer: reading has stopped, leaving the group=%s", self._group, exc_info=error)
        self._broken = error
        await self._stop_taking(_STOP_S)
        await self._end_sources()

    async def _stop_taking(self, timeout_s: float) -> None:
        assert self._calls is not None
        self.is_stopping = True
        self._changed.set()
        tasks = []
        for taking in self._takings:
            assert taking.task is not None
            tasks.append(taking.task)
            taking.source.stop(taking.task)
        await asyncio.wait(tasks, timeout=timeout_s)
        withdrawn = self._calls.withdraw()
        for delivery in withdrawn:
            self._settled(delivery)
        for taking in self._takings:
            await taking.source.give_back([each for each in withdrawn if each.source is taking.source])

    async def _end_sources(self) -> None:
        await asyncio.gather(*(taking.source.end() for taking in self._takings))

    async def _end(self, timeout_s: float) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._calls is not None and self._broken is None:
            until = time.monotonic() + timeout_s
            await self._stop_taking(timeout_s)
            if not await self.wait_idle(min(until - time.monotonic(), _STOP_S)):
                left_s = max(until - time.monotonic(), 0.0)
                log.warning("consumer: closes, and waits up to %.0f s for the listener group=%s", left_s, self._group)
                if not await self.wait_idle(left_s):
                    log.warning("consumer: closes, and waits no longer for the listener group=%s", self._group)
            await self._end_sources()

    def check_may_close(self) -> None:
        """Raise `InvalidArgument` in the listener, where `close` would wait for its caller."""
        if self._calls is not None and self._calls.is_mine():
            raise InvalidArgument("close waits for the listener: call it from another thread")

    def close(self, timeout_s: float) -> None:
        if not self._client.connection.is_void:
            self.check_may_close()
            self._closing.run(partial(self._close, timeout_s))

    def _close(self, timeout_s: float) -> None:
        self._is_closed = True
        try:
            self._end_within(timeout_s)
        except BaseException:  # such as Ctrl-C: still commit or settle finished messages
            self._end_within(0.0)
            raise
        finally:
            self._client.connection.call_soon(self._cancel_all)
            if self._calls is not None:
                self._calls.close()
            self.drop()

    def drop(self) -> None:
        """Close all; pending replies get `_CLOSE_S` first. On any thread but that of the loop."""
        with suppress(SendFailed):
            self._replies.close(_CLOSE_S)
        for taking in reversed(self._takings):  # the connection belongs to the first source
            taking.source.drop()

    def _end_within(self, timeout_s: float) -> None:
        with suppress(Closed):  # the `Cluster` was closed before
            self._client.wait(lambda: self._end(timeout_s))

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()


def _is_ready(taking: _Taking) -> bool:
    is_taking = taking.task is not None and not taking.task.done()  # done once the `Cluster` is closed
    rejection = taking.rejection  # some errors usually repeat, although they are retried
    is_rejected = rejection is not None and (
        not rejection.retriable or isinstance(rejection, InternalError | SystemBusy)
    )
    return is_taking and not is_rejected and taking.source.is_ready
