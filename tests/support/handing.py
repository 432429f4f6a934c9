"""Taking messages from a reader as the thread that polls does."""

from __future__ import annotations

from collections import deque

from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.received import ReceivedMessage
from minimq_common.errors import CorruptBatch, InvalidArgument


def has_any(reader: QueueReader, now: float) -> bool:
    """Tell whether there are messages to take."""
    handed = reader._handed
    if handed is not None and reader.is_current(handed):
        return reader.may_go_on(now)
    if handed is not None:
        reader.put_back(handed)  # what lies behind damage
    return reader.may_hand_over(now)


def take(reader: QueueReader, most: int, now: float) -> list[ReceivedMessage]:
    """Return the next messages of one hand-over; a damaged batch stops the reader."""
    while has_any(reader, now):
        handed = reader._handed
        if handed is None or not reader.is_current(handed):
            handed = reader.hand_over(most)
        if handed.messages is None:
            try:
                deque(handed.opening(), maxlen=0)
            except (CorruptBatch, InvalidArgument) as error:
                reader.damaged(handed, error)
                raise
        assert handed.messages is not None
        found = handed.messages[handed.given : handed.given + most]
        handed.given += len(found)
        if found:
            return found
    return []


def give_back(reader: QueueReader, count: int) -> None:
    """Have the last messages taken again."""
    assert reader._handed is not None
    reader._handed.given -= count
