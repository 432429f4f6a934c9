"""Selection of the queue of a key in a compacted topic: always the same, or its latest message would not be known."""

from __future__ import annotations

from collections.abc import Sequence

from minimq.sending.selectors import Selector, by_consistent_hash
from minimq_common.batch.message_fields import check_empty
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.words import count_of


def by_key() -> Selector:
    """Return the selector of a compacted topic, which takes the first key of a message. Thread-safe.

    It raises `InvalidArgument` for a message without a key, as any that it returns does.
    """
    select = by_consistent_hash()

    def select_by_key(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        if not message.keys or not message.keys[0]:
            raise InvalidArgument(
                f"topic {message.topic!r} is compacted by key, and the message has none: give it one in `keys`"
            )
        return select(queues, message)

    return select_by_key


def takes_only_tombstones(route: TopicRoute) -> bool | None:
    """Tell whether a topic is compacted, so that only tombstones have an empty body; None if it takes copies of any."""
    return None if route.topic.startswith("%") else bool(route.key_queues)


def check_body(message: Message, route: TopicRoute) -> None:
    """Raise `InvalidArgument` if a topic does not take an empty body."""
    is_compacted = takes_only_tombstones(route)
    if is_compacted is not None:
        check_empty(message, is_compacted=is_compacted)


def check_complete(route: TopicRoute, queues: Sequence[MessageQueue]) -> None:
    """Raise `Unavailable` unless all queues of a compacted topic are known, by whose number that of a key is chosen."""
    if route.key_queues in (0, len(queues)):
        return
    away = f"; away: {', '.join(broker.broker_name for broker in route.away)}" if route.away else ""
    raise Unavailable(
        f"topic {route.topic!r} is compacted and has {count_of(route.key_queues, 'queue')} on all brokers, of which "
        f"{len(queues)} can be written to now, so the queue of a key is not known: start the missing brokers, and "
        f"allow writing on all{away}"
    )
