"""Snapshots of consumer groups: their members, the reader of each queue, and the lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from minimq.connection.offline_brokers import by_broker
from minimq_common.model import MessageQueue, OfflineBroker
from minimq_common.names import retry_topic
from minimq_common.timestamps import moment
from minimq_common.wire.convert import from_wire
from minimq_proto.v1 import broker_pb2, work_queues_pb2


@dataclass(frozen=True, slots=True)
class WorkQueueDescription:
    """A queue whose messages are delivered one by one."""

    #: The number of messages that consumers have.
    in_flight: int
    #: Messages that were released, or not acknowledged in time, and will be redelivered.
    returned: int
    #: Stored messages that are not settled.
    unsettled: int
    #: The number of settled messages behind an unsettled one.
    settled_ahead: int
    #: The highest delivery count of a message in flight or returned.
    max_delivery_count: int
    #: The number of messages of each consumer by client id, the largest first; "" counts messages that are bound to
    #: their handles only.
    holders: Mapping[str, int]
    #: Messages deleted before they were settled; reset when the group receives messages of the queue again.
    missed: int = 0
    #: Offset of the message that has to be settled before new ones are delivered; None while they are.
    blocking_offset: int | None = None


@dataclass(frozen=True, slots=True)
class GroupQueueDescription:
    """One queue of a group."""

    queue: MessageQueue
    #: Client id of the member that reads it; None if there is none.
    owner: str | None
    epoch: int
    #: Client id of the former owner that it is held for; None without a hold.
    holder: str | None
    #: Maximum remaining seconds of the hold; 0 without a hold.
    held_for_s: float
    waiting: tuple[str, ...]
    min_offset: int
    #: The offset that the next message will get.
    max_offset: int
    #: The offset from which the group continues; None if it has not begun here.
    committed_offset: int | None
    #: When the first message that is not committed was stored; None when nothing is unread.
    oldest_unread_at: datetime | None
    #: Seconds since then, 0 when nothing is unread.
    lag_s: float
    #: The state of deliveries one by one; None if the group divides queues.
    work_queue: WorkQueueDescription | None = None
    is_sparse: bool = False

    @property
    def lag(self) -> int:
        """The number of stored messages that are not committed or not settled; in a sparse queue, of offsets."""
        if self.work_queue is not None:
            return self.work_queue.unsettled
        return max(self.max_offset - max(self.committed_offset or 0, self.min_offset), 0)

    @property
    def lost(self) -> int:
        """The number of offsets that were deleted before the group had read them."""
        return 0 if self.committed_offset is None else max(self.min_offset - self.committed_offset, 0)


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """One member of a group."""

    client_id: str
    #: The brokers that count it as a member, sorted.
    seen_by: tuple[str, ...]
    #: The queues that it reads, sorted; without those of retries.
    queues: tuple[GroupQueueDescription, ...]
    #: The topics that it subscribes to, sorted; without that of retries. Empty if no broker reports them.
    topics: tuple[str, ...] = ()

    @property
    def lag(self) -> int:
        """The number of messages in its queues that are not committed."""
        return sum(queue.lag for queue in self.queues)

    @property
    def lag_s(self) -> float:
        """Seconds since the oldest unread message of its queues was stored; 0 when nothing is unread."""
        return max((queue.lag_s for queue in self.queues), default=0.0)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group on all brokers that answered."""

    group: str
    #: The allocation strategy; None while it has no members, or they receive messages one by one.
    strategy: str | None
    #: Seconds for which a queue is held for its former owner; 0 for no hold.
    handover_timeout_s: float
    #: The broker whose member list the group uses; None if no broker carries its topics. While members subscribe to
    #: different topics, each topic uses the first broker that carries it.
    deciding_broker: str | None
    members: tuple[GroupMemberDescription, ...]
    queues: tuple[GroupQueueDescription, ...]
    #: The queues in which its messages wait for a retry, sorted. They do not count as lag.
    retry_queues: tuple[GroupQueueDescription, ...]
    brokers: tuple[str, ...]
    #: Why brokers did not answer, by name; their queues and members are missing here.
    unanswered: Mapping[str, str]
    #: The number of messages stored in the topic "%DLQ%" and the group.
    dead_letters: int = 0
    #: When the group will be deleted everywhere unless it is used; None if it is in use, or groups never expire.
    expires_at: datetime | None = None
    #: Departed brokers that carry its topics, sorted by name, with the number of missing queues.
    offline: tuple[OfflineBroker, ...] = ()
    #: Bytes deleted before their time because a disk was nearly full, by broker.
    deleted_early: Mapping[str, int] = field(default_factory=dict)
    #: A job that is no member, such as a Spark query, publishes its progress here for monitoring.
    is_published: bool = False

    @property
    def lag(self) -> int:
        """The number of messages that are not committed; in sparse queues, of offsets."""
        return sum(queue.lag for queue in self.queues)

    @property
    def lag_unit(self) -> str:
        """The unit of `lag`: "message", or "offset" if a queue that counts is sparse."""
        return "offset" if any(queue.is_sparse and queue.lag for queue in self.queues) else "message"

    @property
    def lag_s(self) -> float:
        """Seconds since the oldest message that is not committed was stored; 0 when nothing is unread."""
        return max((queue.lag_s for queue in self.queues), default=0.0)

    @property
    def retrying(self) -> int:
        """The number of messages that wait for a retry, or are being retried."""
        return sum(queue.lag for queue in self.retry_queues)

    @property
    def in_flight(self) -> int:
        """The number of messages in flight of those delivered one by one."""
        return sum(queue.work_queue.in_flight for queue in self.queues if queue.work_queue is not None)

    @property
    def is_agreed(self) -> bool:
        """True if every broker knows all members that subscribe to its topics."""
        carriers: dict[str, set[str]] = {}
        for queue in self.queues:
            carriers.setdefault(queue.queue.topic, set()).add(queue.queue.broker_name)
        return all(
            carriers.get(topic, set()) <= set(member.seen_by)
            for member in self.members
            for topic in member.topics or carriers
        )

    @property
    def topics_differ(self) -> bool:
        """True if its members subscribe to different topics, as during a rolling deploy that changes them."""
        return len({member.topics for member in self.members if member.topics}) > 1


def group_from_wire(
    group: str,
    answers: Mapping[str, broker_pb2.DescribeGroupResponse],
    unanswered: Mapping[str, str],
    now: datetime,
    offline: Callable[[str], Iterable[OfflineBroker]] = lambda _: (),
    taken: Mapping[str, work_queues_pb2.DescribeWorkQueuesResponse] | None = None,
) -> GroupDescription:
    """Return the description of a group; `taken` has the state of its work queues by broker."""
    taken = taken or {}
    popped = {
        MessageQueue(item.topic, broker, item.queue_id): _work_queue_from_wire(item)
        for broker, answer in taken.items()
        for item in answer.queues
    }
    every = sorted(
        (_queue_from_wire(broker, item, now, popped) for broker, answer in answers.items() for item in answer.queues),
        key=lambda queue: queue.queue,
    )
    # Messages wait there on purpose, for hours: they would hide the lag of the group.
    retry_queues = tuple(queue for queue in every if queue.queue.topic == retry_topic(group))
    queues = tuple(queue for queue in every if queue.queue.topic != retry_topic(group))
    # Members use the lowest-named broker that carries one of their topics.
    carriers = sorted(broker for broker, answer in answers.items() if answer.queues)
    live = [answers[broker] for broker in carriers if answers[broker].client_ids]
    pops = bool(live) and not live[0].allocation and any(queue.work_queue is not None for queue in queues)
    return GroupDescription(
        group=group,
        strategy=live[0].allocation if live and not pops else None,
        handover_timeout_s=live[0].handover_timeout_ms / 1000 if live else 0.0,
        deciding_broker=carriers[0] if carriers else None,
        members=_members(group, answers, queues),
        queues=queues,
        retry_queues=retry_queues,
        brokers=tuple(sorted(answers)),
        unanswered=dict(sorted(unanswered.items())),
        dead_letters=sum(answer.dead_letters for answer in taken.values()),
        expires_at=_expires_at(answers.values()),
        deleted_early={
            broker: answer.bytes_deleted_early
            for broker, answer in sorted(answers.items())
            if answer.bytes_deleted_early
        },
        offline=by_broker(
            broker for topic in sorted({queue.queue.topic for queue in queues}) for broker in offline(topic)
        ),
        is_published=any(answer.published for answer in answers.values()),
    )


def _expires_at(answers: Iterable[broker_pb2.DescribeGroupResponse]) -> datetime | None:
    knowing = [answer for answer in answers if answer.client_ids or answer.queues]
    if not knowing or not all(answer.HasField("expires_ms") for answer in knowing):
        return None
    return moment(max(answer.expires_ms for answer in knowing))


def _members(
    group: str, answers: Mapping[str, broker_pb2.DescribeGroupResponse], queues: Iterable[GroupQueueDescription]
) -> tuple[GroupMemberDescription, ...]:
    seen_by: dict[str, list[str]] = {}
    topics: dict[str, set[str]] = {}
    for broker in sorted(answers):
        for client_id in answers[broker].client_ids:
            seen_by.setdefault(client_id, []).append(broker)
        for item in answers[broker].topics:
            topics.setdefault(item.client_id, set()).update(
                topic for topic in item.topics if topic != retry_topic(group)
            )
    owned: dict[str, list[GroupQueueDescription]] = {}
    for queue in queues:
        if queue.owner is not None:
            owned.setdefault(queue.owner, []).append(queue)
    return tuple(
        GroupMemberDescription(
            client_id,
            tuple(seen_by.get(client_id, ())),
            tuple(owned.get(client_id, ())),
            tuple(sorted(topics.get(client_id, ()))),
        )
        for client_id in sorted(seen_by.keys() | owned.keys())
    )


def _work_queue_from_wire(popped: work_queues_pb2.PoppedQueue) -> WorkQueueDescription:
    holders = {holder.client_id: holder.messages for holder in popped.holders}
    return from_wire(WorkQueueDescription, popped, holders=holders)


def _queue_from_wire(
    broker: str, item: broker_pb2.GroupQueue, now: datetime, popped: Mapping[MessageQueue, WorkQueueDescription]
) -> GroupQueueDescription:
    queue = MessageQueue(item.topic, broker, item.queue_id)
    oldest = moment(item.oldest_unread_ms) if item.oldest_unread_ms else None
    return from_wire(
        GroupQueueDescription,
        item,
        queue=queue,
        held_for_s=item.held_ms / 1000,
        # A broker's clock may be ahead of this one.
        lag_s=max((now - oldest) / timedelta(seconds=1), 0.0) if oldest else 0.0,
        work_queue=popped.get(queue),
        is_sparse=item.sparse,
    )
