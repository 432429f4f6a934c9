"""The messages of a topic for commands that read it without a group: what is stored, then what arrives."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from minimq_common.errors import InvalidArgument, OffsetOutOfRange, QueueNotFound, Unavailable
from minimq_common.model import MessageQueue

if TYPE_CHECKING:
    import threading

    from minimq.admin import Admin
    from minimq.administration.descriptions import QueueDescription
    from minimq.receiving.pull_consumer import PullConsumer
    from minimq.receiving.received import ReceivedMessage
    from minimq_common.moments import Time

_POLL_S = 0.2
#: Without a message for this long, queues with more messages count as unreachable.
_PATIENCE_S = 10.0


def read_parts(
    consumer: PullConsumer,
    starts: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    told: threading.Event,
    *,
    last: int | None,
    follow: bool,
) -> Iterator[list[ReceivedMessage]]:
    """Yield the stored messages, all or the last ones; then, to follow, new messages, until the stop event."""
    stored = _to_the_ends(consumer, starts, ends, told)
    if last is None:
        yield from stored
    else:
        yield _latest(stored, last)
    while follow and not told.is_set():
        yield consumer.poll(_POLL_S)


def chosen_queues(found: Sequence[QueueDescription], chosen: Sequence[MessageQueue]) -> list[QueueDescription]:
    """Return the chosen queues, all if none are. Raises `QueueNotFound`."""
    known = {item.queue: item for item in found}
    for queue in chosen:
        if queue not in known:
            raise QueueNotFound(f"there is no queue {queue}: `minimq topic describe {queue.topic}` lists the queues")
    return [known[queue] for queue in chosen] or list(found)


def starts_of(
    admin: Admin, found: Sequence[QueueDescription], offset: int | None, start: Time | None, last: int | None
) -> dict[MessageQueue, int]:
    """Return where to begin in each queue. Raises `OffsetOutOfRange` or `InvalidArgument`."""
    if offset is not None:
        for item in found:
            if not item.min_offset <= offset <= item.max_offset:
                raise OffsetOutOfRange(
                    f"queue {item.queue} has the offsets {item.min_offset} to {item.max_offset}, not {offset}: choose "
                    "another queue with --queue BROKER:ID; "
                    f"`minimq topic describe {item.queue.topic}` shows where each ends"
                )
        return {item.queue: offset for item in found}
    if last is not None:
        return {item.queue: max(item.min_offset, item.max_offset - last) for item in found}
    if start == "earliest":
        return {item.queue: item.min_offset for item in found}
    if start is None or start == "latest":
        raise InvalidArgument("--from latest would show nothing: use --last, or --last 1 --follow")
    return admin.offsets_at((item.queue for item in found), start)


def _to_the_ends(
    consumer: PullConsumer, starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], told: threading.Event
) -> Iterator[list[ReceivedMessage]]:
    """Yield the messages between the starts and the ends of queues, until the stop event.

    Raises:
        Unavailable: some of them cannot be read.
    """
    left = {queue for queue, first in starts.items() if first < ends[queue]}
    heard_at = time.monotonic()
    while left and not told.is_set():
        messages = consumer.poll(_POLL_S)
        if messages:
            heard_at = time.monotonic()
            end = ends[messages[0].queue]
            if messages[-1].queue_offset >= end:  # later messages are only for --follow
                consumer.seek(messages[0].queue, end)
                messages = [message for message in messages if message.queue_offset < end]
            yield messages
        left = {queue for queue in left if consumer.position(queue) < ends[queue]}
        if left and time.monotonic() - heard_at > _PATIENCE_S:
            brokers = ", ".join(sorted({queue.broker_name for queue in left}))
            raise Unavailable(f"{len(left)} of the queues were not read to their ends: {brokers} does not answer")


def _latest(parts: Iterator[list[ReceivedMessage]], count: int) -> list[ReceivedMessage]:
    """Return the messages that were stored last, in the order of their store time."""
    latest: list[ReceivedMessage] = []
    for messages in parts:
        latest = heapq.nlargest(count, latest + messages, key=_place)
    return latest[::-1]


def _place(message: ReceivedMessage) -> tuple[int, MessageQueue, int]:
    return message.batch.stored_ms_of(message.index), message.queue, message.queue_offset
