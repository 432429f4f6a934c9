"""A member of a simulated world: the real decisions, and around them what the member's thread and its reader do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from minimq.consuming.assignment import RebalanceSchedule, SharedTopics, shared_topics
from minimq.consuming.broker_sessions import Heartbeats
from minimq.consuming.member_state import (
    Grant,
    LeaseDeadline,
    LeaseLost,
    MemberState,
    ReleaseLease,
    RequestLease,
    Revoke,
    StartReading,
    StateSaved,
    Step,
)
from minimq.rebalance import allocate_group
from minimq_broker.groups.groups import Members
from minimq_common.errors import Fenced
from minimq_common.model import MemberList, MessageQueue
from support.simulated_broker import SimulatedBroker
from support.simulation import GROUP, TOPICS, Process, Session, Violation, short

if TYPE_CHECKING:
    from support.group_world import World

#: As the member's thread has them.
RECONNECT_S, GAP_S, TICK_S, LEAVE_S = 0.5, 0.2, 0.2, 2.0


class Line:
    """A member's session with one broker, as the member knows it."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.retry_at = 0.0
        self.beat_at = 0.0
        self.beats = Heartbeats()
        self.cut_until = 0.0


class SimulatedMember(Process):
    """A member: its thread and its reader.

    Args:
        world: in which it lives.
        name: its client id.
        topics: what it subscribes to.
        wanted: by what it filters messages.

    Attributes:
        reads: what the reader hands out, with the epoch.
    """

    def __init__(self, world: World, name: str, topics: Sequence[str], wanted: str) -> None:
        super().__init__(world)
        self.name = name
        self.topics = topics
        self._filters = tuple(sorted((topic, wanted) for topic in topics))
        self.reads: dict[MessageQueue, int] = {}
        carriers = {broker for topic in topics for broker in TOPICS[topic][1]}
        self.lines = {broker: Line() for broker in world.brokers if broker in carriers}
        self._paused: set[MessageQueue] = set()
        self._leaves: set[MessageQueue] = set()
        self._trusts: dict[MessageQueue, LeaseDeadline] = {}
        self._begun: dict[MessageQueue, int] = {}
        self._lists: dict[str, Members] = {}
        self._routed = {broker for broker in self.lines if world.brokers[broker].alive}
        self._state = MemberState(
            revoke_timeout_s=world.times.revoke_timeout_s, lease_timeout_s=world.times.lease_timeout_s
        )
        self._rounds = RebalanceSchedule(gap_s=GAP_S, interval_s=world.times.interval_s, now=world.now)
        self._sent_changes = 0
        self._send_holding_at = world.now
        #: Whether the task under way may have made the member the owner of a queue: by a grant, or by a sign of life.
        self._may_have_gained = False
        world.note(f"{name} joins with {', '.join(topics)}")
        self._tick()
        self._pull()

    def owns(self, queue: MessageQueue) -> bool:
        """Return true if the reader would hand out what it has of a queue."""
        return (
            self.alive
            and queue in self.reads
            and self.world.now < self._trusts[queue].until
            and queue not in self._paused
        )

    # ---- faults -----------------------------------------------------------------------------------

    def crash(self) -> None:
        self.alive = False
        for line in self.lines.values():
            if line.session is not None:
                line.session.break_()

    def leave(self) -> None:
        """End in order, unless it hangs."""
        self.reads.clear()
        self._do(self._state.retire())
        for line in self.lines.values():
            if line.session is not None:
                line.session.up("leave")
        self.alive = False
        sessions = [line.session for line in self.lines.values() if line.session is not None]
        for session in sessions:
            self.world.after(LEAVE_S, session.break_)

    def cut(self, broker: str, seconds: float) -> None:
        """Break the connection to a broker, and let none come about for a while."""
        line = self.lines.get(broker)
        if line is not None:
            line.cut_until = self.world.now + seconds
            if line.session is not None:
                line.session.break_()

    def look_at_route(self, broker: str) -> None:
        """Learn whether routes lead to a broker: where its master has gone, they do not."""
        self.post(self._take_route, broker)

    # ---- the thread -------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.alive:
            # After a hang it is open what comes first: the tick, or what has come meanwhile.
            if not self._inbox and (not self.hangs or self.world.chance.random() < 0.05):
                self.post(_nothing)
            self.world.after(TICK_S, self._tick)

    def post(self, action: Callable[..., None], *arguments: Any) -> None:
        if self.alive:
            super().post(action, *arguments)

    def _perform(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        action(*arguments)
        self._keep_time()
        if self._may_have_gained:
            self._may_have_gained = False
            self.world.check(self)

    def _keep_time(self) -> None:
        now = self.world.now
        # First of all: what it tells brokers to hold must be what it still trusts, also after it has slept.
        self._do(self._state.tick(now))
        for name, line in self.lines.items():
            if line.session is None and now >= line.retry_at:
                line.retry_at = now + RECONNECT_S
                broker = self.world.brokers[name]
                if not broker.alive or now < line.cut_until:
                    continue
                line.session = Session(self.world, self, broker)
                line.beats.begin(now)
                self._send_join(name)
                self._beat(line)
            elif line.session is not None and now >= line.beat_at:
                self._beat(line)
        if not self._inbox and self._rounds.is_due(now):
            self._round()
        if self._sent_changes != self._state.changes and now >= self._send_holding_at:
            self._sent_changes = self._state.changes
            self._send_holding_at = now + GAP_S
            for line in self.lines.values():
                if line.session is not None:
                    line.session.up("holding", tuple(self._state.held()))

    def _beat(self, line: Line) -> None:
        assert line.session is not None
        line.session.up("heartbeat", line.beats.send(self.world.now))
        line.beat_at = self.world.now + self.world.times.heartbeat_s

    def ended(self, session: Session) -> None:
        line = self.lines[session.broker.name]
        if line.session is session:
            line.session = None
            until = line.beats.answered_at + self.world.times.grace_s
            self._state.disconnected(session.broker.name, until, self.world.now)

    def hear(self, session: Session, words: Sequence[Any]) -> None:
        name, now = session.broker.name, self.world.now
        line = self.lines[name]
        if line.session is not session:
            return
        if words[0] == "heartbeat":
            line.beats.answered(words[1])
        self._do(self._state.heard(name, line.beats.answered_at, now))
        self._may_have_gained = True
        match words[0]:
            case "members":
                if words[1] != self._lists.get(name):
                    self._lists[name] = words[1]
                    self._rounds.want(now)
            case "granted":
                self._do(self._state.granted(words[1], words[2]._replace(trust=self._state.trust(name)), now))
            case "wanted":
                self._do(self._state.wanted(words[1]))
                self._rounds.want(now)
            case "conflict over":
                self._send_join(name)

    def _send_join(self, name: str) -> None:
        session = self.lines[name].session
        if session is not None:
            session.up("join", tuple(self._state.held()), self._filters)
            self._do(self._state.connected(name))

    def _take_route(self, broker: str) -> None:
        routed = {name for name in self.lines if name == broker and self.world.brokers[name].alive}
        if routed != self._routed & {broker}:
            self._routed = self._routed - {broker} | routed
            self._rounds.want(self.world.now)

    def _round(self) -> None:
        if self._rounds.begin(self.world.now):
            for name in self.lines:
                self._send_join(name)
        if not self._routed:
            return
        carriers = {topic: self._routed.intersection(TOPICS[topic][1]) for topic in self.topics}
        lists = {name: MemberList(members.client_ids, members.topics) for name, members in self._lists.items()}
        found = shared_topics(self.name, {topic: names for topic, names in carriers.items() if names}, lists)
        if found is not None:
            target = [queue for shared in found for queue in self._share(shared)]
            self._do(self._state.aim(target, self.world.now))

    def _share(self, shared: SharedTopics) -> list[MessageQueue]:
        held = self._lists[shared.decider].held
        owners = {queue: client_id for client_id, queues in held.items() for queue in queues}
        queues = [
            queue for queue in self.world.queues if queue.topic in shared.topics and queue.broker_name in self._routed
        ]
        return allocate_group(self.world.strategy, GROUP, self.name, queues, shared.members, owners)

    # ---- what is done -----------------------------------------------------------------------------

    def _do(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case StartReading(queue, grant):
                    self._begin(queue, grant)
                case Revoke(queue):
                    self._leaves.add(queue)
                    self._finish_later(queue)
                case LeaseLost(queue):
                    self.world.note(f"{self.name} loses {queue.broker_name}/{queue.queue_id}")
                    self._forget(queue)
                case RequestLease(queue, epoch, given_back):
                    self._send_of(queue, "acquire", epoch, given_back)
                case ReleaseLease(queue, epoch):
                    self._send_of(queue, "release", epoch)
                case StateSaved(queue, epoch):
                    self._send_of(queue, "saved", epoch)

    def _send_of(self, queue: MessageQueue, word: str, *numbers: int) -> None:
        session = self.lines[queue.broker_name].session
        if session is not None:
            session.up(word, queue, *numbers)

    def _begin(self, queue: MessageQueue, grant: Grant) -> None:
        if grant.epoch < self._begun.get(queue, 0):
            raise Violation(f"{self.name} begins {queue} under {short(grant.epoch)}, later than a later one")
        paused = queue in self._paused or (queue in self._trusts and self._trusts[queue].is_broken)
        if self.reads.get(queue) == grant.epoch and not paused:
            raise Violation(f"{self.name} begins {queue} under {short(grant.epoch)}, which it reads already")
        self.world.note(f"{self.name} begins {queue.broker_name}/{queue.queue_id} {short(grant.epoch)}")
        self._begun[queue] = self.reads[queue] = grant.epoch
        self._may_have_gained = True
        self._trusts[queue] = grant.trust
        self._paused.discard(queue)
        self._leaves.discard(queue)

    def _forget(self, queue: MessageQueue) -> None:
        self.reads.pop(queue, None)
        self._paused.discard(queue)
        self._trusts.pop(queue, None)
        self._leaves.discard(queue)

    def _finish_later(self, queue: MessageQueue) -> None:
        """The reader works on what is in flight, which may take too long, and gives the queue back."""
        epoch = self.reads[queue]
        chance, revoke_timeout_s = self.world.chance, self.world.times.revoke_timeout_s
        seconds = chance.uniform(0.0, 0.1 if chance.random() < 0.9 else 2 * revoke_timeout_s)
        if chance.random() < 0.03:
            return  # it never comes to an end

        def finish() -> None:
            if self.hangs:
                self.world.after(0.1, finish)
            elif self.alive and queue in self._leaves and self.reads.get(queue) == epoch:
                self._forget(queue)
                handover_timeout_s = self.world.times.handover_timeout_s
                saves_at_once = self.world.chance.random() < 0.6
                if handover_timeout_s and saves_at_once:
                    self.post(self._save, queue)
                self.post(self._release, queue, epoch)
                if handover_timeout_s and not saves_at_once and self.world.chance.random() < 0.7:
                    self.world.after(
                        self.world.chance.uniform(0.0, 2 * handover_timeout_s), self.post, self._save, queue
                    )

        self.world.after(seconds, finish)

    def _save(self, queue: MessageQueue) -> None:
        self._do(self._state.saved([queue]))

    def _release(self, queue: MessageQueue, epoch: int) -> None:
        self._do(self._state.released({queue: epoch}))

    def _pull(self) -> None:
        """Now and then the reader asks a broker for more, and may hear that its lease is over."""
        if not self.alive:
            return
        world = self.world
        reachable = []
        if self.reads and not self.hangs:
            brokers = {name for name, line in self.lines.items() if world.now >= line.cut_until}
            reachable = [
                queue for queue in self.reads if queue.broker_name in brokers and world.brokers[queue.broker_name].alive
            ]
        if reachable:
            queue = world.chance.choice(reachable)
            broker, epoch = world.brokers[queue.broker_name], self.reads[queue]
            world.after(world.delay(), broker.post, self._pulled, broker, queue, epoch)
        world.after(world.chance.uniform(0.05, 0.5), self._pull)

    def _pulled(self, broker: SimulatedBroker, queue: MessageQueue, epoch: int) -> None:
        if not broker.alive:
            return
        try:
            broker.pulled(self.name, queue, epoch)
        except Fenced:
            self.world.after(self.world.delay(), self._rejected, queue, epoch)

    def _rejected(self, queue: MessageQueue, epoch: int) -> None:
        if self.reads.get(queue) == epoch:
            self._paused.add(queue)
            self.post(self._hear_of_end, queue, epoch)

    def _hear_of_end(self, queue: MessageQueue, epoch: int) -> None:
        self._do(self._state.lease_over(queue, epoch, self.world.now))


def _nothing() -> None:
    """The thread only looks at the time."""
