"""A member of a consumer group: keeps sessions to the brokers, computes its share of the queues, holds the leases.

Every member computes the same allocation from the same list, which comes from one deciding broker (the lowest-named
master that carries a topic of the group). Before a queue is read its broker has to grant the lease, so that members
whose lists differ for a moment never own the same queue.

One thread owns all state here; everything reaches it through one queue of events.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from minimq.rebalance.strategy import AllocationStrategy
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.routes.routing import RouteCache
from minimq.transport.broker_link import BrokerLinks
from minimq.transport.duplex import Duplex
from minimq_common.errors import GroupConflict, InternalError, InvalidArgument, MiniMQError, UsageError
from minimq_common.model import MessageQueue
from minimq_common.rpc import from_failure
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

_TICK_S = 0.2
_RECONNECT_S = 0.5
_LEAVE_S = 2.0

Session = Duplex[broker_pb2.SessionRequest, broker_pb2.SessionEvent]


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease.

    Attributes:
        epoch: proves the ownership.
        offset: where the group goes on, as its broker has it.
        topic_id: tells apart topics that had the same name one after the other.
    """

    epoch: int
    offset: int
    topic_id: int


class QueueOwner(Protocol):
    """Who reads the queues of a member. Called by the member's thread; nothing may block."""

    def granted(self, queue: MessageQueue, grant: Grant) -> None:
        """The queue is ours, or ours again: read it from the offset on, or go on where we are if that is further."""

    def revoked(self, queues: Sequence[MessageQueue]) -> None:
        """Others shall have the queues: stop handing out, commit, then call `GroupMember.release`."""

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        """The queues were not given back in time: read them no more. Commits of them will be refused."""

    def failed(self, error: MiniMQError) -> None:
        """The member cannot be part of its group."""

    def tick(self) -> None:
        """A moment has passed."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What a member tells its group.

    Attributes:
        group: name of the group.
        client_id: name of the member, unique among all clients.
        topics: what it subscribes to.
        start: where the group begins if it is new.
    """

    group: str
    client_id: str
    topics: tuple[str, ...]
    start: broker_pb2.StartPosition


@dataclass(slots=True)
class _Broker:
    """A broker to which a session is kept."""

    name: str
    session: Session | None = None
    #: How many sessions there were, so that the end of an earlier one is told apart.
    connections: int = 0
    members: tuple[str, ...] = ()
    version: int = -1
    reconnect_at: float = 0.0
    heartbeat_at: float = 0.0
    greeted: bool = field(default=False)


class GroupMember:
    """Takes part in a group from `start` to `close`. Thread-safe."""

    def __init__(
        self,
        routes: RouteCache,
        links: BrokerLinks,
        membership: Membership,
        strategy: AllocationStrategy,
        owner: QueueOwner,
        options: ConsumerOptions,
    ) -> None:
        self._routes = routes
        self._links = links
        self._about = membership
        self._strategy = strategy
        self._owner = owner
        self._options = options
        self._events: queue.SimpleQueue[tuple[object, ...]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"minimq-member-{membership.group}", daemon=True)
        # All that follows belongs to the thread.
        self._brokers: dict[str, _Broker] = {}
        self._target: set[MessageQueue] = set()
        self._held: dict[MessageQueue, int] = {}
        self._asked: set[MessageQueue] = set()
        self._giving_back: dict[MessageQueue, float] = {}
        self._rebalance_at = 0.0
        self._refresh_at = time.monotonic() + options.rebalance_interval_s

    def start(self) -> None:
        """Join the group."""
        self._routes.on_change(lambda route: self._events.put(("rebalance",)))
        self._thread.start()

    def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give queues back after their last commit."""
        self._events.put(("release", tuple(queues)))

    def lease_over(self, queue: MessageQueue, epoch: int) -> None:
        """Tell that a broker no longer knows a lease: ask for the queue again if it is still to be this member's."""
        self._events.put(("lease-over", queue, epoch))

    def close(self) -> None:
        """Leave the group; its brokers give the queues to others at once. Idempotent."""
        if self._thread.is_alive():
            self._events.put(("stop",))
            self._thread.join()

    # ---- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=_TICK_S)
            except queue.Empty:
                event = ("tick",)
            if event[0] == "stop":
                self._leave()
                return
            try:
                self._handle(event)
                self._keep_time()
            except UsageError as error:
                self._owner.failed(error)
            except MiniMQError as error:
                log.warning("group: will try again group=%s reason=%s", self._about.group, error)
                self._rebalance_at = min(self._rebalance_at, time.monotonic() + _RECONNECT_S)
            except Exception as error:  # the thread serves all queues: it must outlive a fault in one event
                log.exception("group: failed group=%s", self._about.group)
                self._owner.failed(InternalError(f"group {self._about.group!r}: {type(error).__name__}: {error}"))

    def _handle(self, event: tuple[object, ...]) -> None:
        match event:
            case ("session", str(name), broker_pb2.SessionEvent() as told):
                self._hear(name, told)
            case ("ended", str(name), int(number), error):
                self._session_ended(name, number, error if isinstance(error, MiniMQError) else None)
            case ("release", tuple(queues)):
                self._give_back(queues)
            case ("lease-over", MessageQueue() as item, int(epoch)):
                self._lease_over(item, epoch)
            case ("rebalance",):
                self._rebalance_at = 0.0

    def _keep_time(self) -> None:
        now = time.monotonic()
        for broker in self._brokers.values():
            if broker.session is None and now >= broker.reconnect_at:
                self._connect(broker)
            elif broker.session is not None and now >= broker.heartbeat_at:
                broker.session.send(broker_pb2.SessionRequest(heartbeat=broker_pb2.Heartbeat()))
                broker.heartbeat_at = now + self._options.heartbeat_interval_s
        if now >= self._rebalance_at and self._events.empty():  # many events at once make one round
            if now >= self._refresh_at:
                self._refresh_at = now + self._options.rebalance_interval_s
                self._refresh()
            self._rebalance_at = self._refresh_at
            self._rebalance()
        late = [item for item, since in self._giving_back.items() if now >= since + self._options.drain_s]
        if late:
            log.warning("group: queues taken away, their messages took too long queues=%s", late)
            self._owner.lost(late)
            self._give_back(late)
        self._owner.tick()

    # ---- sessions -------------------------------------------------------------------------------

    def _connect(self, broker: _Broker) -> None:
        address = self._address_of(broker.name)
        if address is None:
            broker.reconnect_at = time.monotonic() + _RECONNECT_S
            return
        link = self._links.to(address)
        name = broker.name
        broker.connections += 1
        number = broker.connections
        session: Session = Duplex(
            link.stub.Session,
            f"broker {address}",
            lambda told: self._events.put(("session", name, told)),
            lambda error: self._events.put(("ended", name, number, error)),
        )
        broker.session = session
        broker.heartbeat_at = time.monotonic() + self._options.heartbeat_interval_s
        # After a broken session the broker may still know the leases, or it may have restarted without them.
        self._tell_all(broker)

    def _tell_all(self, broker: _Broker) -> None:
        """Tell a broker that this member is in the group, and which queues it has or waits for."""
        join = broker_pb2.JoinGroup(
            group=self._about.group,
            topics=self._about.topics,
            allocation=self._strategy.name,
            start=self._about.start,
        )
        self._tell(broker.name, broker_pb2.SessionRequest(client_id=self._about.client_id, join=join))
        self._send_acquire(sorted(item for item in {*self._held, *self._asked} if item.broker_name == broker.name))

    def _refresh(self) -> None:
        """Say everything again: the brokers answer what they have said before, and whatever got lost is mended."""
        for broker in self._brokers.values():
            self._tell_all(broker)

    def _session_ended(self, name: str, number: int, error: MiniMQError | None) -> None:
        broker = self._brokers.get(name)
        if broker is None or broker.connections != number:
            return
        broker.session = None
        broker.version = -1
        broker.reconnect_at = time.monotonic() + _RECONNECT_S
        if isinstance(error, GroupConflict) and not broker.greeted:
            self._owner.failed(error)

    def _hear(self, name: str, told: broker_pb2.SessionEvent) -> None:
        broker = self._brokers.get(name)
        if broker is None:
            return
        broker.greeted = True
        match told.WhichOneof("event"):
            case "members":
                if told.members.version > broker.version:
                    broker.members = tuple(told.members.client_ids)
                    broker.version = told.members.version
                    self._rebalance_at = 0.0
            case "granted":
                granted = told.granted
                grant = Grant(granted.epoch, granted.offset, granted.topic_id)
                self._granted(MessageQueue(granted.topic, name, granted.queue_id), grant)
            case "refused":
                error = from_failure(told.refused.failure)
                if isinstance(error, GroupConflict):
                    self._owner.failed(error)
                else:
                    log.warning("group: refused broker=%s reason=%s", name, error)

    # ---- rebalance ------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        queues = {topic: self._routes.route(topic).read_queues() for topic in self._about.topics}
        names = sorted({item.broker_name for items in queues.values() for item in items})
        for name in names:
            if name not in self._brokers:
                self._connect(self._brokers.setdefault(name, _Broker(name)))
        decider = next((name for name in names if self._address_of(name) is not None), None)
        members = self._brokers[decider].members if decider else ()
        if self._about.client_id not in members:
            return  # the list is on its way
        target: set[MessageQueue] = set()
        for items in queues.values():
            if items:
                group, client_id = self._about.group, self._about.client_id
                target.update(self._allocate(group, client_id, items, members))
        self._target = target
        self._ask(sorted(target - self._held.keys() - self._asked))
        self._withdraw(self._asked - target)
        surplus = sorted(self._held.keys() - target - self._giving_back.keys())
        if surplus:
            now = time.monotonic()
            self._giving_back.update(dict.fromkeys(surplus, now))
            self._owner.revoked(surplus)

    def _allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        try:
            return self._strategy.allocate(group, client_id, queues, members)
        except Exception as error:  # the strategy may be the user's own
            raise InvalidArgument(f"allocation strategy {self._strategy.name!r} failed: {error!r}") from error

    def _ask(self, queues: Sequence[MessageQueue]) -> None:
        self._asked.update(queues)
        self._send_acquire(queues)

    def _send_acquire(self, queues: Sequence[MessageQueue]) -> None:
        for name, items in _by_broker(queues).items():
            acquire = broker_pb2.AcquireQueues(group=self._about.group, queues=items)
            self._tell(name, broker_pb2.SessionRequest(acquire=acquire))

    def _granted(self, item: MessageQueue, grant: Grant) -> None:
        self._asked.discard(item)
        if self._held.get(item) == grant.epoch:
            return  # ours all along: the session had only been broken
        self._held[item] = grant.epoch
        self._giving_back.pop(item, None)
        if item in self._target:
            self._owner.granted(item, grant)
        else:
            self._give_back([item])

    def _lease_over(self, item: MessageQueue, epoch: int) -> None:
        if self._held.get(item) != epoch:
            return
        if item in self._target and item not in self._giving_back:
            self._send_acquire([item])  # the broker has restarted, or the topic was made anew: claim it again
        else:
            self._owner.lost([item])
            self._give_back([item])

    def _withdraw(self, queues: Iterable[MessageQueue]) -> None:
        queues = list(queues)
        self._asked.difference_update(queues)
        self._send_release(queues)

    def _give_back(self, queues: Iterable[MessageQueue]) -> None:
        queues = [item for item in queues if item in self._held]
        for item in queues:
            del self._held[item]
            self._giving_back.pop(item, None)
        self._send_release(queues)
        if self._target.intersection(queues):  # the allocation changed back meanwhile
            self._rebalance_at = 0.0

    def _send_release(self, queues: Sequence[MessageQueue]) -> None:
        for name, items in _by_broker(queues).items():
            release = broker_pb2.ReleaseQueues(group=self._about.group, queues=items)
            self._tell(name, broker_pb2.SessionRequest(release=release))

    def _tell(self, name: str, request: broker_pb2.SessionRequest) -> None:
        broker = self._brokers.get(name)
        if broker is not None and broker.session is not None:
            broker.session.send(request)

    def _leave(self) -> None:
        sessions = [broker.session for broker in self._brokers.values() if broker.session is not None]
        for session in sessions:
            session.send(broker_pb2.SessionRequest(leave=broker_pb2.LeaveGroup(group=self._about.group)))
            session.finish()
        for session in sessions:
            if not session.join(_LEAVE_S):
                session.cancel()

    def _address_of(self, broker_name: str) -> str | None:
        for topic in self._about.topics:
            route = self._routes.known(topic)
            address = route.master_of(broker_name) if route else None
            if address is not None:
                return address
        return None


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[broker_pb2.QueueOffset]]:
    found: defaultdict[str, list[broker_pb2.QueueOffset]] = defaultdict(list)
    for item in queues:
        found[item.broker_name].append(broker_pb2.QueueOffset(topic=item.topic, queue_id=item.queue_id))
    return found
