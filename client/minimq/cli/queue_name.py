"""Names of queues on the command line."""

from __future__ import annotations

from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue

#: No queue has a longer number.
_MOST_DIGITS = 9


def parse_queue(topic: str, text: str) -> MessageQueue:
    """Return the queue of "broker:id". Raises `InvalidArgument`."""
    broker, colon, queue_id = text.rpartition(":")
    if not (broker and colon and queue_id.isdecimal() and len(queue_id) <= _MOST_DIGITS):
        raise InvalidArgument(f"--queue {text!r} is not a queue: write BROKER:ID, for example broker-a:0")
    return MessageQueue(topic, broker, int(queue_id))
