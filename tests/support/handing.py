"""Taking messages from a reader as the thread that polls does."""

from __future__ import annotations

from minimq.consuming.message_filter import ALL_MESSAGES
from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.received import ReceivedMessage
from minimq_common.errors import CorruptBatch, InvalidArgument


def has_any(reader: QueueReader, now: float) -> bool:
    """Tell whether there are messages to take."""
    handed = reader._handed
    if handed is not None and reader.is_current(handed):
        return reader.may_go_on(now)
    return reader.may_hand_over(now)


def take(reader: QueueReader, most: int, now: float, share: float = 1.0) -> list[ReceivedMessage]:
    """Return a share of the next messages of one hand-over; a damaged batch stops the reader."""
    while has_any(reader, now):
        handed = reader._handed
        if handed is None or not reader.is_current(handed):
            handed = reader.hand_over(most)
        if handed.count < 0:
            try:
                handed.open(ALL_MESSAGES)
            except (CorruptBatch, InvalidArgument) as error:
                reader.damaged(handed, error)
                raise
        found = handed.messages[handed.done : handed.done + most]
        found = found[: max(round(len(found) * share), 1)]
        handed.returned += len(found)
        handed.finish()
        if found:
            return found
    return []
