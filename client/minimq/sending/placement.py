"""Placement of a transaction: the broker that carries all of its topics, and the queues there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from minimq.sending.pending_batch import PendingMessage
from minimq.sending.producer_options import ProducerOptions
from minimq_common.errors import InvalidArgument, TopicNotFound
from minimq_common.model import MessageQueue, TopicRoute

#: Most topics, and brokers of each, that an error lists.
_NAMED = 5
_REMEDY = (
    "a transaction is of one broker, and a selector, a key or a message group chooses among all queues, so that what "
    "belongs together stays in order: send to each broker in a transaction of its own, or without one (send_many), or "
    "create the topic on one broker (brokers=[...])"
)


class Part(msgspec.Struct):
    """A batch of a transaction."""

    topic: str
    #: The queue that its messages must go to; None for any.
    queue: MessageQueue | None
    message_group: str | None
    #: Whether another queue takes its place if it is removed: no message names it.
    may_move: bool = True
    #: Indices of its messages in the transaction.
    indices: list[int] = []
    #: Bytes of its messages.
    size: int = 0
    sequence: int = -1
    data: bytes = b""

    def place(self, queue: MessageQueue, route: TopicRoute | None) -> MessageQueue:
        """Return the queue to which it goes now: `queue`, unless that was removed."""
        return queue if route is None or not self.may_move else route.present(queue)


@dataclass(frozen=True, eq=False)
class EncodedMessages:
    """The encoded messages of a transaction."""

    parts: Sequence[Part]
    #: All topics of the transaction, with whether they may be created automatically.
    topics: Mapping[str, bool]
    #: A queue to whose broker they must go; None for any.
    bound: MessageQueue | None
    messages: int


class PlacedMessages(NamedTuple):
    """The messages of a transaction, with the broker and the queues that were chosen for them."""

    broker_name: str
    topic: str
    parts: Sequence[tuple[MessageQueue, Part]]
    messages: int
    #: True if another broker could store them.
    others: bool

    @property
    def may_move(self) -> bool:
        """True if no message names its queue."""
        return all(part.may_move for _, part in self.parts)


def divided(
    items: Sequence[PendingMessage], queues: Sequence[MessageQueue | None], options: ProducerOptions
) -> list[Part]:
    """Divide messages into batches by queue and message group; each keeps the order of its messages."""
    parts: list[Part] = []
    filling: dict[tuple[str, MessageQueue | None, str | None], Part] = {}
    for index, (item, queue) in enumerate(zip(items, queues, strict=True)):
        key = item.message.topic, queue, item.message.message_group
        part = filling.get(key)
        if part is None or len(part.indices) >= options.batch_messages or part.size + item.size > options.batch_bytes:
            part = filling[key] = Part(*key)
            parts.append(part)
        part.indices.append(index)
        part.may_move = part.may_move and (item.queue is None or item.may_move)
        part.size += item.size
    return parts


def topics_of(messages: Sequence[PendingMessage], others: Collection[str] = ()) -> dict[str, bool]:
    """Return the topics of messages, with whether they may be created automatically: FIFO topics may not."""
    found = dict.fromkeys((item.message.topic for item in messages), True)
    found |= dict.fromkeys((item.message.topic for item in messages if item.message.message_group is not None), False)
    return found | {topic: True for topic in others if topic not in found}


#: Writable queues of a topic, by broker name.
QueuesAt = Mapping[str, Sequence[MessageQueue]]


def queues_at(route: TopicRoute) -> QueuesAt:
    """Return the writable queues of a topic, by broker name."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in route.write_queues():
        found.setdefault(queue.broker_name, []).append(queue)
    return found


def brokers_of(topics: Mapping[str, QueuesAt], bound: MessageQueue | None, consumed: MessageQueue | None) -> list[str]:
    """Return the brokers that accept messages of all topics, sorted; only that of `bound` or `consumed` if given."""
    if bound is not None and consumed is not None and bound.broker_name != consumed.broker_name:
        raise InvalidArgument(
            f"the transaction is bound to {consumed}, and a message is for {bound} at another broker: {_REMEDY}"
        )
    wanted = bound or consumed
    found: set[str] | None = None if wanted is None else {wanted.broker_name}
    for queues in topics.values():
        found = {*queues} if found is None else found & queues.keys()
    if not found:
        raise TopicNotFound(_nowhere(topics, wanted))
    return sorted(found)


def absent_brokers(routes: Iterable[TopicRoute], wanted: MessageQueue | None) -> list[str]:
    """Return the brokers that carry one of the topics but have no master now, sorted."""
    found: set[str] = set()
    for route in routes:
        carriers = {data.broker_name for data in route.queues}
        found |= {name for name in carriers if route.master_of(name) is None}
        found |= {each.broker_name for each in route.offline}
    return sorted(found if wanted is None else found & {wanted.broker_name})


def _nowhere(topics: Mapping[str, QueuesAt], wanted: MessageQueue | None) -> str:
    carried = []
    for topic, queues in [*topics.items()][:_NAMED]:
        names = sorted(queues)
        carried.append(f"{topic} is on {', '.join(names[:_NAMED]) or 'none'}{', ...' * (len(names) > _NAMED)}")
    where = f"broker {wanted.broker_name}" if wanted is not None else "no broker"
    verb = "does not take" if wanted is not None else "takes"
    more = "; ..." * (len(topics) > _NAMED)
    return (
        f"{where} {verb} messages of all topics of the transaction ({'; '.join(carried)}{more}): create "
        "them on one broker, as `minimq topic create NAME` does on all"
    )


def bound_queue(fixed: Sequence[MessageQueue | None]) -> MessageQueue | None:
    """Return a queue to whose broker all messages must go; None if there is no such queue. Raises on a conflict."""
    found: MessageQueue | None = None
    for queue in dict.fromkeys(fixed):
        if queue is None:
            continue
        if found is not None and queue.broker_name != found.broker_name:
            raise InvalidArgument(
                f"messages of the transaction are for {found} and {queue}, which are at different brokers: {_REMEDY}"
            )
        found = queue
    return found
