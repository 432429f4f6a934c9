"""A broker of a simulated world: the real tables of leases and groups, and around them what the services do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minimq.consuming.member_state import Grant
from minimq_broker.groups.groups import GroupConfig, GroupTable
from minimq_broker.groups.leases import Granted, LeaseEvent, LeaseKey, LeaseTable, Wanted
from minimq_common.errors import GroupConflict
from minimq_common.model import MessageQueue
from support.simulation import GROUP, TOPICS, Process, Session, Violation, key_of, short

if TYPE_CHECKING:
    from support.group_world import World

#: Changes of a group are collected for so long before its members are told.
ROUND_S = 0.05
#: How often a broker may look at the time.
TICK_S = 0.05


class Connection:
    """A client as its broker sees it."""

    def __init__(self, session: Session, now: float) -> None:
        self.session = session
        self.connected = True
        self.heard_at = now
        self.buried_at = float("inf")


class SimulatedBroker(Process):
    """A broker, over all its runs."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world)
        self.name = name
        self.term = 0
        self.started_once = False
        self._last_epochs: dict[LeaseKey, int] = {}
        self.start()

    def start(self) -> None:
        """Begin a run that knows of the former one what is on disk: the term, and that the group has started."""
        self.term += 1
        self.world.note(f"{self.name} starts for the {self.term}. time")
        self.alive = True
        started = (
            {(GROUP, topic_id) for topic_id, _ in TOPICS.values()} if self.started_once else set[tuple[str, int]]()
        )
        self.leases = LeaseTable(self.term, self.world.now + self.world.times.grace_s, started)
        self.groups = GroupTable(self.term << 32)
        self._connections: dict[str, Connection] = {}
        self._given_back: dict[tuple[str, MessageQueue], int] = {}
        self._to_broadcast = False
        #: When it looks at the time next: until then time alone changes nothing here.
        self._looks_at = math.inf
        #: The oracle of holds: who left a queue, under which epoch, and until when others have to wait.
        self._holds: dict[LeaseKey, tuple[str, int, float]] = {}
        #: Owners that have lost a queue, which this broker does not know yet, and have saved its state: by what lease.
        self._saved_ahead: dict[LeaseKey, tuple[str, int]] = {}
        self._look_by(0.0)
        self.world.route(self.name)

    def stop(self) -> None:
        """End this run. A session it has not heard of yet stays open, as one behind a proxy may: its words are lost."""
        self.alive = False
        self._inbox.clear()
        for connection in self._connections.values():
            connection.session.break_()
        if self.world.chance.random() < 0.7:  # otherwise the name server hangs meanwhile
            self.world.route(self.name)

    def reset(self, queue: MessageQueue) -> None:
        """Let the group go on elsewhere in a queue: what its owner does under the epoch it knows is rejected."""

        def renew() -> None:
            key = key_of(queue)
            owner = self.leases.owner(key)
            self._look_by(0.0)
            self._tell(self.leases.renew(key))
            if owner is not None and self.leases.owner(key) == owner:
                raise Violation(f"{owner[0]} goes on under {short(owner[1])} though {queue} was reset")

        self.post(renew)

    def _look_by(self, due: float) -> None:
        """Look at the time with the first tick after something is due."""
        tick = TICK_S * (math.floor(max(due, self.world.now) / TICK_S) + 1) if due < math.inf else due
        if tick < self._looks_at:
            self._looks_at = tick
            self.world.at(tick, self._look, tick, self.term)

    def _look(self, tick: float, term: int) -> None:
        if self.term == term and self.alive and tick == self._looks_at:
            self._looks_at = math.inf
            if not self.hangs:
                self._keep_time()
            self._look_by(self.hangs_until if self.hangs else self._next_due())

    def _keep_time(self) -> None:
        now, times = self.world.now, self.world.times
        for name, connection in list(self._connections.items()):
            if connection.connected and now >= connection.heard_at + times.timeout_s:
                connection.session.break_()
                self._lose(connection)
            if now >= connection.buried_at and self._connections.get(name) is connection:
                del self._connections[name]
                self.world.note(f"{self.name} buries {name}")
                self._leave(name)
        self._tell(self.leases.expire(now))

    def _next_due(self) -> float:
        """Return when time will change something, unless somebody says something before."""
        ends = [
            connection.heard_at + self.world.times.timeout_s if connection.connected else connection.buried_at
            for connection in self._connections.values()
        ]
        expiry = self.leases.next_expiry
        return min(ends if expiry is None else [*ends, expiry], default=math.inf)

    # ---- sessions ---------------------------------------------------------------------------------

    def receive(self, session: Session, words: Sequence[Any]) -> None:
        self.post(self._handle, session, words, self.term)

    def disconnected(self, session: Session) -> None:
        self.post(self._disconnected, session)

    def _disconnected(self, session: Session) -> None:
        self._lose(self._connections.get(session.member.name), session)

    def _lose(self, connection: Connection | None, session: Session | None = None) -> None:
        if connection is not None and connection.connected and session in (None, connection.session):
            connection.connected = False
            self._look_by(0.0)
            connection.buried_at = self.world.now + self.world.times.grace_s

    def _handle(self, session: Session, words: Sequence[Any], term: int) -> None:
        if self.term != term or not self.alive:
            return
        name, connection = session.member.name, self._connections.get(session.member.name)
        if connection is None or connection.session is not session:
            if words[0] != "join" or (connection is not None and connection.connected):
                session.break_()  # the name is in use by a connection that is not known to be broken
                return
            connection = self._connections[name] = Connection(session, self.world.now)
        connection.heard_at = self.world.now
        if words[0] == "heartbeat":
            session.down("heartbeat", words[1])
            return
        self._look_by(0.0)
        getattr(self, f"_on_{words[0]}")(name, session, *words[1:])

    def _on_join(
        self, name: str, session: Session, held: Sequence[MessageQueue], filters: tuple[tuple[str, str], ...]
    ) -> None:
        self.started_once = True
        handover_timeout_ms = round(self.world.times.handover_timeout_s * 1000)
        agreement = GroupConfig(filters, self.world.strategy.name, handover_timeout_ms)
        try:
            changed = self.groups.join(GROUP, name, agreement, held)
        except GroupConflict:
            self.world.note(f"{self.name} rejects {name}")
            return
        if changed is None:
            session.down("members", self.groups.members(GROUP))
        else:
            self._changed()

    def _on_holding(self, name: str, session: Session, held: Sequence[MessageQueue]) -> None:
        self.groups.hold(GROUP, name, held)

    def _on_acquire(self, name: str, session: Session, queue: MessageQueue, epoch: int, given_back: int) -> None:
        if self.groups.is_member(GROUP, name):
            self._given_back[name, queue] = given_back
            held = self.groups.holds(GROUP, name, queue)
            if self._saved_ahead.get(key_of(queue), ("", 0))[0] == name:
                del self._saved_ahead[key_of(queue)]  # it goes on
            self._tell(self.leases.acquire(key_of(queue), name, self.world.now, epoch, held=held))

    def _on_release(self, name: str, session: Session, queue: MessageQueue, epoch: int) -> None:
        self._note_hold(key_of(queue), name)
        self._tell(self.leases.release(key_of(queue), name, self.world.now, self.world.times.handover_timeout_s))

    def _on_saved(self, name: str, session: Session, queue: MessageQueue, epoch: int) -> None:
        former, held_epoch, _ = self._holds.get(key_of(queue), ("", 0, 0.0))
        if former == name and epoch in (0, held_epoch):
            del self._holds[key_of(queue)]
        owner = self.leases.owner(key_of(queue))
        if owner is not None and owner[0] == name and epoch in (0, owner[1]):
            self._saved_ahead[key_of(queue)] = owner
        self._tell(self.leases.saved(key_of(queue), name, epoch, self.world.now))

    def _on_leave(self, name: str, session: Session) -> None:
        self._leave(name)

    def _leave(self, name: str) -> None:
        for queue in self.world.queues:
            if queue.broker_name == self.name:
                self._note_hold(key_of(queue), name)
        self._tell(self.leases.drop(GROUP, name, self.world.now, self.world.times.handover_timeout_s))
        if self.groups.leave(GROUP, name) is not None:
            self._changed()

    def _changed(self) -> None:
        for client_id in self.groups.admissible(GROUP, self.world.now):
            self._say(client_id, "conflict over")
        if not self._to_broadcast:
            self._to_broadcast = True
            self.world.after(ROUND_S, self._round_is_over, self.term)

    def _round_is_over(self, term: int) -> None:
        if self.term == term:
            self.post(self._broadcast)

    def _broadcast(self) -> None:
        self._to_broadcast = False
        members = self.groups.members(GROUP)
        for client_id in members.client_ids:
            self._say(client_id, "members", members)

    def _say(self, client_id: str, *words: Any) -> None:
        connection = self._connections.get(client_id)
        if connection is not None:
            connection.session.down(*words)

    # ---- leases -----------------------------------------------------------------------------------

    def pulled(self, name: str, queue: MessageQueue, epoch: int) -> None:
        """A member asks for more under a lease. Raises `Fenced`."""
        key = key_of(queue)
        self.leases.check(key, name, epoch)
        latest = self._last_epochs.get(key, 0)
        if epoch != latest:
            raise Violation(f"{name} may pull {queue} under {short(epoch)} after {short(latest)} was granted")

    def _note_hold(self, key: LeaseKey, name: str) -> None:
        owner = self.leases.owner(key)
        if owner is not None and owner[0] == name and self._saved_ahead.get(key) != owner:
            self._holds[key] = *owner, self.world.now + self.world.times.handover_timeout_s

    def _tell(self, events: Sequence[LeaseEvent]) -> None:
        for event in events:
            if isinstance(event, Granted):
                self._check_grant(event)
            # It waits for the disk first.
            self.world.after(self.world.chance.uniform(0.0, 0.01), self._bring, self.term, event)

    def _check_grant(self, event: Granted) -> None:
        last = self._last_epochs.get(event.key, 0)
        if event.epoch < last or (event.epoch == last and self.leases.owner(event.key) != (event.client_id, last)):
            raise Violation(f"{self.name} grants {event.key.queue} under {short(event.epoch)} after {short(last)}")
        if event.epoch > last:
            self.world.note(f"{self.name} grants {event.key.queue.queue_id} to {event.client_id} {short(event.epoch)}")
            former, _, until = self._holds.pop(event.key, (event.client_id, 0, 0.0))
            if former != event.client_id and self.world.now < until:
                raise Violation(f"{self.name} grants {event.key.queue}, which is held for {former} until {until:.3f}")
        self._last_epochs[event.key] = event.epoch

    def _bring(self, term: int, event: LeaseEvent) -> None:
        if self.term != term or not self.alive:
            return
        topic = next(name for name, (topic_id, _) in TOPICS.items() if topic_id == event.key.queue.topic_id)
        queue = MessageQueue(topic, self.name, event.key.queue.queue_id)
        if isinstance(event, Granted) and self.leases.owner(event.key) == (event.client_id, event.epoch):
            given_back = self._given_back[event.client_id, queue]
            self._say(event.client_id, "granted", queue, Grant(event.epoch, 0, event.key.queue.topic_id, given_back))
        elif isinstance(event, Wanted):
            self._say(event.client_id, "wanted", queue)
