"""The popped queues of all groups, and their rows in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from minimq_broker.features.feature import KernelState, OffsetKey, Table
from minimq_broker.features.work_queues.pop_blocks import BlockRow
from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import PopMoved, RunState
from minimq_broker.state.facts import Topic
from minimq_broker.state.queue_ends import QueueKey
from minimq_common.errors import StoreError
from minimq_common.names import DEAD_LETTER_PREFIX

#: Of the feature; see `Feature.name`.
NAME = "work_queues"


class PopTable(Table):
    """The popped queues, by group, topic id and queue id. Rows: the next message of each queue, and its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[OffsetKey, PopQueue] = {}

    def apply(self, fact: PopMoved, at_ms: int, state: KernelState) -> None:
        # Operators settle dead letters under a group named like the topic: it has no offsets and no members.
        is_group = not fact.group.startswith(DEAD_LETTER_PREFIX)
        for topic_id, queue_id, runs, done in map(msgspec.structs.astuple, fact.queues):
            key, stored = (fact.group, topic_id, queue_id), state.ends.get(QueueKey(topic_id, queue_id))
            if stored is None:
                continue
            queue = self.queues.get(key)
            if queue is None:
                queue = self.queues[key] = PopQueue(state.committed.get(key, 0))
            if done:
                queue.drop_before(min(done, stored.offset))
            for run in runs:
                if run.end <= stored.offset:
                    queue.put(run)
            self.changed.add(key)
            for number in queue.refresh():
                self.changed.add((*key, number))
            if is_group and queue.done != state.committed.get(key):
                state.move_offset(key, queue.done)
        if is_group:
            state.use_group(fact.group, at_ms)

    def offset_moved(self, key: OffsetKey) -> None:
        """Forget a queue: its group continues at another offset, or is deleted, so handles are invalid."""
        if (queue := self.queues.pop(key, None)) is not None:
            self.changed.add(key)
            self.changed.update((*key, number) for number in queue.blocks())

    def topic_deleted(self, topic: Topic, state: KernelState) -> None:
        """Forget the settled dead letters of a topic."""
        for key in [key for key in self.queues if key[:2] == (topic.name, topic.topic_id)]:
            self.offset_moved(key)

    def row(self, key: tuple[Any, ...]) -> int | BlockRow | None:
        queue = self.queues.get((key[0], key[1], key[2]))
        if queue is None:
            return None
        return queue.next if len(key) == 3 else queue.block_row(key[3])

    def load(self, key: tuple[Any, ...], value: Any) -> None:
        group, topic_id, queue_id = own = msgspec.convert(key[:3], tuple[str, int, int])
        queue, block = self.queues.setdefault(own, PopQueue()), msgspec.convert(key[3:], list[int])
        if not block:
            queue.load_next(msgspec.convert(value, int))
            return
        try:
            queue.load_block(block[0], msgspec.convert(value, BlockRow))
        except StoreError as error:
            text = f"queue {queue_id} of topic id {topic_id} as group {group} pops it: {error.message}"
            raise error.with_message(text) from None


def popped_queues(state: Any) -> dict[OffsetKey, PopQueue]:
    table: PopTable = state.tables[NAME]
    return table.queues


def findings(state: KernelState) -> Iterator[str]:
    """Yield a text for each popped queue whose saved rows are wrong."""
    for (group, topic_id, queue_id), queue in popped_queues(state).items():
        key = QueueKey(topic_id, queue_id)
        committed = state.committed.get((group, topic_id, queue_id), 0)
        if group.startswith(DEAD_LETTER_PREFIX):  # settled by operators: no group has offsets there
            committed = queue.done
        if reason := _mistake(queue, state.end(key).offset, committed):
            yield f"queue {state.name_of(key)} as group {group} pops it: {reason}"


def _mistake(queue: PopQueue, end: int, committed: int) -> str:
    if queue.done != committed:
        return f"it is settled to {queue.done}, but the offset of the group is {committed}"
    for status, count in queue.statuses(0):
        if status.state is RunState.DONE:
            return f"{count} messages are settled and unsettled"
        if status.state is RunState.OUT and not (status.delivery_count and status.epoch):
            return f"{count} messages are in flight, but were never delivered"
    if queue.last > queue.next:
        return f"message {queue.last - 1} was delivered, but the next new one is {queue.next}"
    return f"it was delivered to {queue.next}, but ends at {end}" if queue.next > end else ""
