"""The requests of a member of a consumer group to brokers, and the lists that brokers send it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from minimq.rebalance import name_of
from minimq.rebalance.strategy import AllocationStrategy
from minimq.receiving.assignment import InitialOffsets
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.member_state import Ask, GiveBack, Saved, Step
from minimq_common.model import MemberList, MessageQueue
from minimq_proto.v1 import broker_pb2

#: Queues that one request names: a tenth of what brokers take, and no more than topics that they take.
AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Membership:
    """The facts that a member tells its group."""

    group: str
    client_id: str
    filters: dict[str, str]
    #: Where the group begins if it is new.
    start: broker_pb2.StartPosition

    @property
    def topics(self) -> list[str]:
        """The topics that it subscribes to, sorted."""
        return sorted(self.filters)


def join(
    membership: Membership, strategy: AllocationStrategy, options: ConsumerOptions, held: Sequence[MessageQueue]
) -> Iterator[broker_pb2.SessionRequest]:
    """Yield the requests by which a member joins its group, with the queues that it holds."""
    topics = membership.topics
    yield broker_pb2.SessionRequest(
        client_id=membership.client_id,
        join=broker_pb2.JoinGroup(
            group=membership.group,
            topics=topics,
            allocation=name_of(strategy),
            start=membership.start,
            hold_ms=round(options.hold_s * 1000),
            filters=[membership.filters[topic] for topic in topics],
            held=map(_name, held[:AT_ONCE]),
        ),
    )
    yield from _more_held(membership.group, held)


def holding(group: str, held: Sequence[MessageQueue]) -> Iterator[broker_pb2.SessionRequest]:
    """Yield the requests that list the queues that a member holds."""
    yield broker_pb2.SessionRequest(holding=broker_pb2.Holding(group=group, queues=map(_name, held[:AT_ONCE])))
    yield from _more_held(group, held)


def _more_held(group: str, held: Sequence[MessageQueue]) -> Iterator[broker_pb2.SessionRequest]:
    for start in range(AT_ONCE, len(held), AT_ONCE):
        part = broker_pb2.Holding(group=group, queues=map(_name, held[start : start + AT_ONCE]), adds=True)
        yield broker_pb2.SessionRequest(holding=part)


def of_queues(
    group: str, steps: Sequence[Step], begun: InitialOffsets, now: float
) -> Iterator[tuple[str, broker_pb2.SessionRequest]]:
    """Yield the requests for steps of one kind, with their brokers; one request names many queues."""
    by_broker: defaultdict[str, list[broker_pb2.QueueEpoch]] = defaultdict(list)
    for step in steps:
        if isinstance(step, Ask | GiveBack | Saved):
            item = broker_pb2.QueueEpoch(topic=step.queue.topic, queue_id=step.queue.queue_id, epoch=step.epoch)
            if isinstance(step, Ask):
                item.given_back = step.given_back
            by_broker[step.queue.broker_name].append(item)
    for name, every in by_broker.items():
        for start in range(0, len(every), AT_ONCE):
            items = every[start : start + AT_ONCE]
            match steps[0]:
                case Ask():
                    acquire = broker_pb2.AcquireQueues(group=group, queues=items, begun=_begun_of(items, begun, now))
                    yield name, broker_pb2.SessionRequest(acquire=acquire)
                case GiveBack():
                    yield name, broker_pb2.SessionRequest(release=broker_pb2.ReleaseQueues(group=group, queues=items))
                case _:
                    yield name, broker_pb2.SessionRequest(saved=broker_pb2.StateSaved(group=group, queues=items))


def _begun_of(
    items: Iterable[broker_pb2.QueueEpoch], begun: InitialOffsets, now: float
) -> Iterator[broker_pb2.TopicBegun]:
    for topic in sorted({item.topic for item in items}):
        ago_ms = begun.ago_ms(topic, now)
        if ago_ms is not None:
            yield broker_pb2.TopicBegun(topic=topic, ago_ms=ago_ms)


def queue_of(item: broker_pb2.QueueName) -> MessageQueue:
    """Return the queue that a broker has named."""
    return MessageQueue(item.topic, item.broker_name, item.queue_id)


def _name(item: MessageQueue) -> broker_pb2.QueueName:
    return broker_pb2.QueueName(topic=item.topic, broker_name=item.broker_name, queue_id=item.queue_id)


def member_list_of(members: broker_pb2.GroupMembers) -> MemberList:
    """Return who subscribes to what, by the list of a broker."""
    return MemberList(members.client_ids, {item.client_id: item.topics for item in members.topics})


def owners_of(members: broker_pb2.GroupMembers) -> dict[MessageQueue, str]:
    """Return who had which queue when the member list of a broker began."""
    return {queue_of(item): held.client_id for held in members.held for item in held.queues}
