"""Delayed batches: recalling and listing them."""

from __future__ import annotations

import asyncio

from minimq_broker.core.delays import DueKey, RecallOutcome
from minimq_broker.services.clock import now_ms
from minimq_broker.services.engine import Engine
from minimq_broker.store.delayed_batches import DelayedPage, DelayedRange
from minimq_proto.v1 import delay_pb2


class DelayService:
    """The calls of the broker that concern delayed batches."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def recall(self, request: delay_pb2.RecallRequest) -> delay_pb2.RecallResponse:
        """Take batches back that wait. What is answered is on disk. Raises `TopicNotFound`, `NotMaster`."""
        keys = [DueKey(key.due_ms, key.recall_id) for key in request.keys]
        outcomes = await self._engine.writes.recall(request.topic, keys)
        self._engine.counters.delayed_recalled += outcomes.count(RecallOutcome.RECALLED)
        return delay_pb2.RecallResponse(outcomes=[delay_pb2.RecallOutcome.ValueType(outcome) for outcome in outcomes])

    async def list_delayed(self, request: delay_pb2.ListDelayedRequest) -> delay_pb2.ListDelayedResponse:
        """Return some of the batches that wait, or were recalled. Raises `TopicNotFound`."""
        store = self._engine.store
        topic = store.state.topic(request.topic)
        wanted = DelayedRange(
            request.from_ms,
            request.before_ms or None,
            DueKey(request.after.due_ms, request.after.recall_id),
            request.max_batches,
            recalled=request.recalled,
        )
        page = await asyncio.to_thread(self._page, topic.topic_id, wanted)
        waiting = store.state.delays.waiting(topic.topic_id)
        answer = delay_pb2.ListDelayedResponse(
            now_ms=now_ms(), waiting_batches=waiting.batches, waiting_messages=waiting.messages
        )
        for batch in page.batches:
            answer.batches.add(
                key=delay_pb2.DelayedKey(due_ms=batch.key.due_ms, recall_id=batch.key.id),
                queue_id=batch.queue_id,
                count=batch.count,
                size=len(batch.data),
                store_timestamp_ms=batch.stored_ms,
                recallable=batch.is_recallable,
                batch=batch.data if request.with_batches else b"",
            )
        if page.next is not None:
            answer.next.CopyFrom(delay_pb2.DelayedKey(due_ms=page.next.due_ms, recall_id=page.next.id))
        return answer

    def _page(self, topic_id: int, wanted: DelayedRange) -> DelayedPage:
        with self._engine.handle.reading() as store:
            return store.delayed(topic_id, wanted)
