"""Delayed batches: publish them when they are due, recall and list them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from minimq_broker.calls.administration import answering
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.writes import Writes
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.commit.store import Store
from minimq_broker.features.delayed.due_index import DelayedPage, DelayedRange, DueIndex
from minimq_broker.features.delayed.jobs import DueJob, RecallJob
from minimq_broker.features.delayed.table import NAME, Delay, RecallOutcome
from minimq_broker.features.feature import Handler, Role, Serving
from minimq_broker.log.clock import now_ms
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.state.queue_ends import HeldKey
from minimq_common.errors import SystemBusy
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.security.caller import current_caller
from minimq_common.serving.histogram import SECONDS, Histogram
from minimq_common.serving.periodic import PeriodicTask
from minimq_proto.v1 import broker_pb2, delayed_pb2


@dataclass(slots=True)
class DelayCounters:
    """Counts since the start of the broker. The event loop changes them."""

    stored: int = 0
    published: int = 0
    recalled: int = 0
    #: Seconds from the time at which a batch was due to its storage in its queue.
    late_s: Histogram = field(default_factory=lambda: Histogram(SECONDS))


class DelayServing(Serving):
    service = delayed_pb2.DESCRIPTOR.services_by_name["Delayed"]

    def __init__(self, engine: Engine, options: object) -> None:
        self._engine, self._counters = engine, DelayCounters()
        self._calls = DelayService(engine, self._counters)
        self._timer = DueTimer(engine.store, engine.writes, self._counters)
        self.tasks = (self._timer,)

    def began(self, role: Role) -> dict[str, Handler]:
        self._timer.wake()
        return {"Recall": answering(self._calls.recall), "ListDelayed": answering(self._calls.list_delayed)}

    def hold_of(self, request: broker_pb2.Append) -> Delay:
        wire = request.delay
        return Delay(wire.delay_ms, wire.due_ms if wire.HasField("due_ms") else None, wire.recallable)

    def held(self, job: AppendJob, *, is_new: bool) -> None:
        assert job.held is not None
        self._counters.stored += job.header.count if is_new else 0
        self._timer.delayed(job.held.until_ms)

    def metrics(self, prefix: str) -> Iterator[Any]:
        from minimq_common.serving.metrics import counter, gauge, histogram  # late: only metrics need it

        name, counted = f"{prefix}_delayed", self._counters
        yield counter(f"{name}_stored_total", "Delayed messages that were stored.", counted.stored)
        published = "Delayed messages that were due, and were stored in their queues."
        yield counter(f"{name}_published_total", published, counted.published)
        yield counter(f"{name}_recalled_total", "Delayed messages that were recalled.", counted.recalled)
        store = self._engine.store
        with suppress(SystemBusy, *DAMAGE), store.reading():
            waiting = sum(each.messages for each in store.state.tables[NAME].by_topic.copy().values())
            yield gauge(f"{name}_messages", "Delayed messages that wait until they are due.", waiting)
            next_ms = next_due_ms(store)
            overdue = "Time since which the next delayed message is due; at a slave, its master publishes it."
            overdue_s = 0.0 if next_ms is None else max(now_ms() - next_ms, 0) / 1000
            yield gauge(f"{name}_overdue_seconds", overdue, overdue_s)
        late = "Time from the moment at which a delayed batch was due to its storage in its queue."
        yield histogram(f"{name}_late_seconds", late, counted.late_s)


class DelayService:
    def __init__(self, engine: Engine, counters: DelayCounters) -> None:
        self._engine, self._counters = engine, counters

    async def recall(self, request: delayed_pb2.RecallRequest) -> delayed_pb2.RecallResponse:
        """Recall waiting batches. The outcomes are on disk when this returns."""
        keys = [HeldKey(key.due_ms, key.recall_id) for key in request.keys]
        caller = current_caller()
        user = None if caller.allows(Need(Verb.MANAGE, Resource.TOPIC, request.topic)) else caller.tag
        outcomes = (await self._engine.writes.written(RecallJob(request.topic, keys, user))).outcomes
        self._counters.recalled += outcomes.count(RecallOutcome.RECALLED)
        return delayed_pb2.RecallResponse(
            outcomes=[delayed_pb2.RecallOutcome.ValueType(outcome) for outcome in outcomes]
        )

    async def list_delayed(self, request: delayed_pb2.ListDelayedRequest) -> delayed_pb2.ListDelayedResponse:
        """Return a page of the batches that wait or were recalled. Raises `TopicNotFound`."""
        store = self._engine.store
        topic = store.state.topic(request.topic)
        wanted = DelayedRange(
            request.from_ms,
            request.before_ms or None,
            HeldKey(request.after.due_ms, request.after.recall_id),
            request.max_batches,
            recalled=request.recalled,
        )
        page = await asyncio.to_thread(self._page, topic.topic_id, wanted)
        waiting = store.state.tables[NAME].waiting(topic.topic_id)
        answer = delayed_pb2.ListDelayedResponse(
            now_ms=now_ms(), waiting_batches=waiting.batches, waiting_messages=waiting.messages
        )
        for batch in page.batches:
            answer.batches.add(
                key=delayed_pb2.DelayedKey(due_ms=batch.key.until_ms, recall_id=batch.key.position),
                queue_id=batch.queue_id,
                count=batch.count,
                size=len(batch.data),
                store_timestamp_ms=batch.stored_ms,
                recallable=batch.is_recallable,
                batch=batch.data if request.with_batches else b"",
            )
        if page.next is not None:
            answer.next.CopyFrom(delayed_pb2.DelayedKey(due_ms=page.next.until_ms, recall_id=page.next.position))
        return answer

    def _page(self, topic_id: int, wanted: DelayedRange) -> DelayedPage:
        store = self._engine.store
        with store.reading():
            return DueIndex(store.log).page(topic_id, wanted, store.state.tables[NAME].published)


log = logging.getLogger(__name__)


def next_due_ms(store: Store) -> int | None:
    """Return the due time of the next batch, which may already be recalled, in ms since 1970; None if none waits."""
    key = DueIndex(store.log).next_key(store.state.tables[NAME].mark)
    return None if key is None else key.until_ms


#: Maximum time between checks: the clock may be set, the role of the broker may change, an error may need a retry.
_CHECK_INTERVAL_S = 0.5
#: Minimum time between two commits, so that batches that are due in close succession share commits.
_PACE_S = 0.004


class DueTimer(PeriodicTask):
    """Publishes delayed batches when they are due, if this broker is the master."""

    def __init__(
        self, store: Store, writes: Writes, counters: DelayCounters, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self._store, self._writes, self._counters = store, writes, counters
        self._clock_ms = clock_ms
        #: The due time that it waits for, in ms since 1970; None while it waits for the next check.
        self._next_ms: int | None = None
        self._has_more = False
        self._began_at = 0.0
        super().__init__("delays", self._once, self._pause_s, log, at_once=True)

    def delayed(self, due_ms: int) -> None:
        """Note that a batch is delayed until this time, in ms since 1970."""
        if self._next_ms is None or due_ms < self._next_ms:
            self.wake()

    def _pause_s(self) -> float:
        if self._has_more:
            return 0.0
        left_s = _CHECK_INTERVAL_S if self._next_ms is None else (self._next_ms - self._clock_ms()) / 1000
        return min(max(left_s, 0.0), _CHECK_INTERVAL_S)

    async def _once(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._has_more:
            await asyncio.sleep(self._began_at + _PACE_S - loop.time())
        self._began_at, self._has_more, self._next_ms = loop.time(), False, None
        store = self._store
        if not store.writer.leads:
            return
        next_ms = next_due_ms(store)
        if next_ms is None or next_ms > self._clock_ms():
            self._next_ms = next_ms
            return
        self._writes.check(to_sender=True)  # publishes only while new batches would be accepted
        job = await self._writes.written(DueJob())
        self._counters.published += job.messages
        for late_ms in job.late_ms:
            self._counters.late_s.add(max(late_ms, 0) / 1000)
        if not job.has_more and (job.published or next_due_ms(store) != next_ms):
            self._next_ms = next_due_ms(store)  # without progress, try again at the next check
        self._has_more = job.has_more
