"""The sessions of one member to its brokers, which are kept alive and reopened, and the requests on them."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from minimq.connection.connection import Connection
from minimq.connection.retry_schedule import PAUSE_S
from minimq.connection.stream import Stream
from minimq.consuming.assignment import InitialOffsets
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.member_state import ReleaseLease, RequestLease, StateSaved, Step
from minimq.rebalance import name_of
from minimq.rebalance.strategy import AllocationStrategy
from minimq_common.errors import Fenced, MinimqError, NotAuthenticated, TransportError
from minimq_common.model import MemberList, MessageQueue
from minimq_common.retry_log import RetryLog
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

_LEAVE_S = 2.0
#: Maximum number of queues in one request, below the limits of brokers: 4096 queues, 1024 topics.
AT_ONCE = 1_000

Session = Stream[broker_pb2.SessionRequest, broker_pb2.SessionEvent]
Post = Callable[[Callable[[], None]], None]


class Heartbeats:
    """Numbers the heartbeats of one session, and keeps when the latest answered one was sent."""

    def __init__(self) -> None:
        self.answered_at = 0.0
        self._number = 0
        #: When each unanswered heartbeat was sent, by number, in order.
        self._sent: dict[int, float] = {}

    def begin(self, now: float) -> None:
        """Start over for a new session. Its first event answers a request that is sent at `now` or later."""
        self._sent.clear()
        self.answered_at = now

    def send(self, now: float) -> int:
        """Record that a heartbeat is sent now; return its number."""
        self._number += 1
        self._sent[self._number] = now
        return self._number

    def answered(self, number: int) -> None:
        if number in self._sent:
            self.answered_at = self._sent[number]
            self._sent = {later: at for later, at in self._sent.items() if later > number}


@dataclass(slots=True)
class _Broker:
    name: str
    session: Session | None = None
    #: Address of the latest session.
    address: str = ""
    #: Number of the latest session: late events of earlier ones are dropped.
    number: int = 0
    retry_at: float = 0.0
    beat_at: float = 0.0
    beats: Heartbeats = field(default_factory=Heartbeats)
    #: The broker has sent an event in any session.
    greeted: bool = False
    outage: RetryLog = field(default_factory=lambda: RetryLog(log))


class BrokerSessions:
    """Keeps one session per broker. Used by the member's task alone; callbacks of streams go through `post`."""

    def __init__(
        self,
        connection: Connection,
        master_of: Callable[[str], str | None],
        post: Post,
        on_event: Callable[[str, broker_pb2.SessionEvent], None],
        on_rejection: Callable[[str, MinimqError], None],
        on_break: Callable[[str, MinimqError | None], None],
        on_fenced: Callable[[Fenced], None],
        heartbeat_s: float,
    ) -> None:
        self._connection = connection
        self._master_of = master_of
        self._post = post
        self._on_event = on_event
        self._on_rejection = on_rejection
        self._on_break = on_break
        self._on_fenced = on_fenced
        self._heartbeat_s = heartbeat_s
        self._brokers: dict[str, _Broker] = {}

    def add(self, names: Iterable[str]) -> None:
        """Add brokers; `keep` opens their sessions."""
        for name in names:
            self._brokers.setdefault(name, _Broker(name))

    def keep(self, now: float) -> Iterator[str]:
        """Send due heartbeats and open missing sessions; yield each opened one, for requests before its heartbeat."""
        for broker in list(self._brokers.values()):
            self._leave_for_master(broker)
            if broker.session is None and now >= broker.retry_at:
                if self._open(broker, now):
                    yield broker.name
                    self._beat(broker, now)
            elif broker.session is not None and now >= broker.beat_at:
                self._beat(broker, now)

    def address(self, name: str) -> str:
        return self._brokers[name].address

    def open_names(self) -> list[str]:
        return [broker.name for broker in self._brokers.values() if broker.session is not None]

    def answered_at(self, name: str) -> float:
        """Return when the latest request known to have reached a broker was sent."""
        return self._brokers[name].beats.answered_at

    def send(self, name: str, request: broker_pb2.SessionRequest) -> None:
        """Send a request; dropped without a session, since a new session repeats all requests."""
        broker = self._brokers.get(name)
        if broker is not None and broker.session is not None:
            broker.session.send(request)

    async def close(self, goodbye: broker_pb2.SessionRequest) -> None:
        sessions = [broker.session for broker in self._brokers.values() if broker.session is not None]
        for session in sessions:
            session.send(goodbye)
            session.finish()
        await asyncio.gather(*(session.wait_ended(_LEAVE_S) for session in sessions))
        for session in sessions:
            session.cancel()  # does nothing if it has ended

    def _open(self, broker: _Broker, now: float) -> bool:
        address = self._master_of(broker.name)
        broker.retry_at = now + PAUSE_S
        if address is None:
            return False
        broker.address = address
        broker.number += 1
        number = broker.number
        broker.beats.begin(now)
        broker.session = Stream(
            self._connection,
            address,
            lambda stub: stub.Session,
            lambda event: self._post(lambda: self._hear(broker, number, event)),
            lambda error: self._post(lambda: self._ended(broker, number, error)),
        )
        return True

    def _leave_for_master(self, broker: _Broker) -> None:
        # If the route has no master, the session with the former one ends by itself.
        if broker.session is None:
            return
        address = self._master_of(broker.name)
        if address is not None and address != broker.address:
            log.info("group: the master is another one broker=%s address=%s", broker.name, address)
            session, broker.session = broker.session, None
            broker.number += 1
            broker.retry_at = 0.0
            session.cancel()
            self._on_break(broker.name, None)

    def _beat(self, broker: _Broker, now: float) -> None:
        heartbeat = broker_pb2.Heartbeat(number=broker.beats.send(now))
        self.send(broker.name, broker_pb2.SessionRequest(heartbeat=heartbeat))
        broker.beat_at = now + self._heartbeat_s

    def _hear(self, broker: _Broker, number: int, event: broker_pb2.SessionEvent) -> None:
        if broker.number != number:
            return
        broker.greeted = True
        broker.outage.worked("group: session is back broker=%s address=%s", broker.name, broker.address)
        if event.HasField("heartbeat"):
            broker.beats.answered(event.heartbeat.number)
        self._on_event(broker.name, event)

    def _ended(self, broker: _Broker, number: int, error: MinimqError | None) -> None:
        if broker.number != number:
            return
        broker.session = None
        if isinstance(error, Fenced):
            self._on_fenced(error)
            return
        if error is not None:  # a full broker says when to come back
            broker.retry_at += max(error.retry_after_s - PAUSE_S, 0.0)
        if error is None or isinstance(error, TransportError):
            broker.outage.failed(
                "group: session is broken, trying again broker=%s address=%s reason=%s",
                broker.name,
                broker.address,
                error or "closed by the broker",
                cause=error,
            )
        self._on_break(broker.name, error)
        # Rejections are reported until the broker has sent a first event. Later ones may be transient, but an unknown
        # key stays unknown.
        if error is not None and (not broker.greeted or isinstance(error, NotAuthenticated)):
            self._on_rejection(broker.name, error)


def new_run() -> int:
    """Return the time and random bits, to tell a consumer from others with its client id; the newest has the id."""
    return time.time_ns() // 1_000 << 12 | random.getrandbits(12)


@dataclass(frozen=True, slots=True)
class Membership:
    """The properties of a member that it reports when it joins its group."""

    group: str
    client_id: str
    filters: dict[str, str]
    #: Where a new group begins.
    start: broker_pb2.StartPosition
    #: Tells this consumer from others with its client id.
    run: int = field(default_factory=new_run)

    @property
    def topics(self) -> list[str]:
        """The subscribed topics, sorted."""
        return sorted(self.filters)


def join(
    membership: Membership, strategy: AllocationStrategy, options: ConsumerOptions, held: Sequence[MessageQueue]
) -> Iterator[broker_pb2.SessionRequest]:
    topics = membership.topics
    yield broker_pb2.SessionRequest(
        client_id=membership.client_id,
        run=membership.run,
        join=broker_pb2.JoinGroup(
            group=membership.group,
            topics=topics,
            allocation=name_of(strategy),
            start=membership.start,
            handover_timeout_ms=round(options.handover_timeout_s * 1000),
            filters=[membership.filters[topic] for topic in topics],
            held=map(_name, held[:AT_ONCE]),
        ),
    )
    yield from islice(holding(membership.group, held), 1, None)


def holding(group: str, held: Sequence[MessageQueue]) -> Iterator[broker_pb2.SessionRequest]:
    for start in range(0, max(len(held), 1), AT_ONCE):
        part = broker_pb2.Holding(group=group, queues=map(_name, held[start : start + AT_ONCE]), adds=start > 0)
        yield broker_pb2.SessionRequest(holding=part)


def of_queues(
    group: str, steps: Sequence[Step], begun: InitialOffsets, now: float
) -> Iterator[tuple[str, broker_pb2.SessionRequest]]:
    """Yield the requests for steps of one type, each with its broker name; one request carries many queues."""
    by_broker: defaultdict[str, list[broker_pb2.QueueEpoch]] = defaultdict(list)
    for step in steps:
        if isinstance(step, RequestLease | ReleaseLease | StateSaved):
            item = broker_pb2.QueueEpoch(topic=step.queue.topic, queue_id=step.queue.queue_id, epoch=step.epoch)
            if isinstance(step, RequestLease):
                item.given_back = step.given_back
            by_broker[step.queue.broker_name].append(item)
    for name, every in by_broker.items():
        for start in range(0, len(every), AT_ONCE):
            items = every[start : start + AT_ONCE]
            match steps[0]:
                case RequestLease():
                    acquire = broker_pb2.AcquireQueues(
                        group=group, queues=items, begun=_begun_of(items, begun, now), now_ms=begun.time_ms(name, now)
                    )
                    yield name, broker_pb2.SessionRequest(acquire=acquire)
                case ReleaseLease():
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
    return MessageQueue(item.topic, item.broker_name, item.queue_id)


def _name(item: MessageQueue) -> broker_pb2.QueueName:
    return broker_pb2.QueueName(topic=item.topic, broker_name=item.broker_name, queue_id=item.queue_id)


def member_list_of(members: broker_pb2.GroupMembers) -> MemberList:
    return MemberList(members.client_ids, {item.client_id: item.topics for item in members.topics})


def owners_of(members: broker_pb2.GroupMembers) -> dict[MessageQueue, str]:
    """Return the owner of each queue when this version of a broker's member list began."""
    return {queue_of(item): held.client_id for held in members.held for item in held.queues}
