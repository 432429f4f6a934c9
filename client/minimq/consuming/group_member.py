"""A member of a consumer group: keeps sessions to brokers, computes its share of the queues, holds their leases.

All members compute the same allocation from the same member list, that of one deciding broker (see `shared_topics`).
Lists may differ for a moment, so a queue is read only under a lease from its broker: two members never own the same
queue. Sessions lead to the masters.

`MemberState` decides, `BrokerSessions` does the I/O; both live on the event loop of the connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby

from minimq.connection.client import ClusterClient
from minimq.connection.loop_thread import CLOSED, on_own_thread, set_outcome
from minimq.connection.replica_selector import ReplicaSelector
from minimq.connection.retry_schedule import PAUSE_S
from minimq.consuming import broker_sessions
from minimq.consuming.assignment import InitialOffsets, RebalanceSchedule, SharedTopics, carriers_of, shared_topics
from minimq.consuming.broker_sessions import BrokerSessions, Membership, member_list_of, owners_of
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.fetcher import Fetcher
from minimq.consuming.group_errors import DeletedTopics, GroupErrors
from minimq.consuming.group_start import GroupStart
from minimq.consuming.member_state import Grant, LeaseLost, MemberState, Revoke, StartReading, Step
from minimq.rebalance import AllocationStrategy, allocate_group
from minimq_common.errors import Closed, Fenced, InternalError, InvalidArgument, MinimqError, TopicNotFound, UsageError
from minimq_common.model import MessageQueue
from minimq_common.retry_log import RetryLog
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

_TICK_S = 0.2
#: Brokers notify members of changes; a rebalance without a notification repairs what a lost notification left behind.
REBALANCE_INTERVAL_S = 20.0
#: Seconds between heartbeats to each broker: three of them fit into `LEASE_TIMEOUT_S`.
HEARTBEAT_INTERVAL_S = 10.0
#: Silence of a broker after which its queues count as lost: half of its `--session-timeout`, after which it grants them
#: to others.
LEASE_TIMEOUT_S = 30.0
#: Short, because a queue that moves in the next rebalance waits this long.
_MIN_REBALANCE_GAP_S = 0.05
#: Minimum seconds between two `Holding` requests, which are not urgent.
_MIN_HOLDING_GAP_S = 0.2


class GroupMember:
    """Takes part in a group from `start` to `leave`. Lives on the event loop; strategies of users run on a thread."""

    def __init__(
        self,
        client: ClusterClient,
        places: ReplicaSelector,
        membership: Membership,
        strategy: AllocationStrategy,
        fetcher: Fetcher,
        group_start: GroupStart,
        options: ConsumerOptions,
    ) -> None:
        self._connection = client.connection
        self._routes = client.routes
        self._places = places
        self._about = membership
        self._strategy = strategy
        self._fetcher = fetcher
        self._group_start = group_start
        self._options = options
        #: Wakes `_run`.
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._division: asyncio.Future[Sequence[MessageQueue]] | None = None
        self._state = MemberState(revoke_timeout_s=options.revoke_timeout_s, lease_timeout_s=LEASE_TIMEOUT_S)
        self._sessions = BrokerSessions(
            client.connection,
            self._master_of,
            self._post,
            self._hear,
            on_rejection=self._rejected,
            on_break=self._session_broke,
            on_fenced=self._fenced,
            heartbeat_s=HEARTBEAT_INTERVAL_S,
        )
        #: The latest member list of each broker.
        self._lists: dict[str, broker_pb2.GroupMembers] = {}
        #: The topics that only other members of the group subscribe to. Replaced as a whole: any thread may read it.
        self._initial_offsets = InitialOffsets()
        now = time.monotonic()
        self._rejections = GroupErrors(membership.group, fetcher.rejected, options.start_timeout_s, now)
        self._rounds = RebalanceSchedule(gap_s=_MIN_REBALANCE_GAP_S, interval_s=REBALANCE_INTERVAL_S, now=now)
        self._deleted = DeletedTopics(client.routes, membership.group, fetcher.failed)
        self._outage = RetryLog(log)
        self._sent_changes = 0
        self._send_holding_at = now

    @property
    def was_taken(self) -> bool:
        """True once any broker has accepted this member."""
        return self._rejections.was_taken

    def start(self) -> None:
        """Join the group."""
        self._routes.on_change(lambda route: self._post(self._want_round))
        self._running = asyncio.create_task(self._run())

    def release(self, epochs: Mapping[MessageQueue, int]) -> None:
        """Return queues to their brokers after the last commit, each under the epoch at which it was read."""
        left = dict(epochs)
        self._post(lambda: self._do(self._state.released(left)))

    def mark_state_saved(self, queues: Iterable[MessageQueue]) -> None:
        """Report that the user's state of queues is saved, before or after their release. On any thread."""
        saved = tuple(queues)
        self._post(lambda: self._do(self._state.saved(saved)))

    def lease_over(self, queue: MessageQueue, epoch: int, error: MinimqError) -> None:
        """Handle a broker's answer that it no longer knows a lease: ask for the queue again if it is still wanted."""
        self._post(partial(self._lease_over, queue, epoch, error))

    async def wait_begun(self, timeout_s: float) -> None:
        """Wait until it is fixed where the group begins, at most for the timeout."""
        await self._group_start.wait(timeout_s)

    async def leave(self) -> None:
        """Return all queues and leave the group; commit before. Idempotent."""
        await asyncio.sleep(0)  # lets work that was posted before run first
        self._is_leaving = True
        self._changed.set()
        if self._division is not None:  # the strategy may hang
            set_outcome(self._division, (), Closed(CLOSED))
        if self._running is not None:
            await asyncio.wait([self._running])

    def close(self) -> None:
        """Do nothing: `leave` has freed everything."""

    # ---- the loop -------------------------------------------------------------------------------

    def _post(self, work: Callable[[], None]) -> None:
        self._connection.call_soon(self._work, work)

    def _work(self, work: Callable[[], None]) -> None:
        if not self._is_leaving and self._running is not None and not self._running.done():
            with self._reporting():
                work()
            self._changed.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_leaving:
            self._changed.clear()
            with self._reporting():
                await self._keep_time()
            timer = loop.call_later(self._idle_s(), self._changed.set)
            await self._changed.wait()
            timer.cancel()
        self._do(self._state.retire())
        leave = broker_pb2.LeaveGroup(group=self._about.group)
        await self._sessions.close(broker_pb2.SessionRequest(leave=leave))

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except UsageError as error:
            self._fetcher.failed(error)
        except MinimqError as error:
            message = "group: will try again group=%s reason=%s"
            self._outage.failed(message, self._about.group, error, cause=error)
            self._rounds.want(time.monotonic() + max(PAUSE_S, error.retry_after_s))
        except Exception as error:  # the task serves all queues: one failure must not end it
            log.exception("group: failed group=%s", self._about.group)
            self._fetcher.failed(InternalError(f"group {self._about.group!r}: {type(error).__name__}: {error}"))

    def _idle_s(self) -> float:
        due_at = self._rounds.due_at
        if self._sent_changes != self._state.changes:
            due_at = min(due_at, self._send_holding_at)
        return min(max(due_at - time.monotonic(), 0.0), _TICK_S)

    async def _keep_time(self) -> None:
        now = time.monotonic()
        self._deleted.look(now)
        # First: a process that slept must not claim queues whose leases may have expired.
        self._do(self._state.tick(now))
        for name in self._sessions.keep(now):
            # Repeats all requests: the broker may still know the leases, or have restarted without them.
            self._send_join(name)
        if self._rounds.is_due(now):
            await self._round(now)
            self._outage.worked("group: goes on group=%s", self._about.group)
        if self._sent_changes != self._state.changes and now >= self._send_holding_at:
            self._send_holding(now)
        self._rejections.look(now)
        self._fetcher.tick()

    def _want_round(self) -> None:
        self._rounds.want(time.monotonic())

    def _lease_over(self, item: MessageQueue, epoch: int, error: MinimqError) -> None:
        if isinstance(error, TopicNotFound):
            self._deleted.suspect(item.topic, time.monotonic())
        self._do(self._state.lease_over(item, epoch, time.monotonic()))

    # ---- events of brokers ----------------------------------------------------------------------

    def _hear(self, name: str, event: broker_pb2.SessionEvent) -> None:
        now = time.monotonic()
        self._do(self._state.heard(name, self._sessions.answered_at(name), now))
        match event.WhichOneof("event"):
            case "members":
                if self._about.client_id in event.members.client_ids:
                    self._rejections.accepted(name, now)
                self._note_begun(name, event.members)
                if event.members != self._lists.get(name):
                    self._lists[name] = event.members
                    self._rounds.want(now)
            case "granted":
                granted = event.granted
                self._rejections.served(name)
                self._initial_offsets.began(granted.topic, self._sessions.answered_at(name))
                grant = Grant(
                    granted.epoch,
                    granted.offset,
                    granted.topic_id,
                    granted.given_back,
                    self._sessions.address(name),
                    trust=self._state.trust(name),
                )
                self._do(self._state.granted(MessageQueue(granted.topic, name, granted.queue_id), grant, now))
            case "wanted":
                # Another member expects a queue of this one, so its member list or its routes may be newer.
                self._do(self._state.wanted(MessageQueue(event.wanted.topic, name, event.wanted.queue_id)))
                self._rounds.want(now)
            case "rejected":
                self._rejected(name, from_failure(event.rejected.failure))
            case "conflict_over":
                self._send_join(name)

    def _note_begun(self, name: str, members: broker_pb2.GroupMembers) -> None:
        sent_at = self._sessions.answered_at(name)  # a lower bound
        begun = {item.topic: sent_at - item.ago_ms / 1000 for item in members.begun}
        self._initial_offsets.reported(name, begun, members.now_ms / 1000 - time.monotonic())
        members.ClearField("begun")
        members.ClearField("now_ms")

    def _rejected(self, name: str, error: MinimqError) -> None:
        self._rejections.rejected(name, error, time.monotonic())

    def _fenced(self, error: Fenced) -> None:
        about = self._about
        log.error("group: this consumer has ended group=%s client=%s reason=%s", about.group, about.client_id, error)
        self._fetcher.rejected(error)
        self._fetcher.lost(self._fetcher.queues)
        self._is_leaving = True

    def _session_broke(self, name: str, error: MinimqError | None) -> None:
        self._rejections.parted(name)
        self._places.failed(self._sessions.address(name), error)
        members = self._lists.get(name)
        grace_s = members.grace_ms / 1000 if members is not None else 0.0
        until = self._sessions.answered_at(name) + grace_s
        if queues := self._state.disconnected(name, until, time.monotonic()):
            log.info("group: leases are unconfirmed group=%s queues=%s", self._about.group, len(queues))

    # ---- rounds ---------------------------------------------------------------------------------

    async def _round(self, now: float) -> None:
        if self._rounds.begin(now):
            # A full round: brokers repeat their answers, which repairs lost ones.
            for name in self._sessions.open_names():
                self._send_join(name)
        queues = {topic: await self._queues_of(topic) for topic in self._about.topics}
        names = sorted({item.broker_name for items in queues.values() for item in items})
        self._sessions.add(names)
        if not names:
            self._do(self._state.aim([], now))  # no queue may be read now
            return
        found = self._shared(queues)
        if found is None:
            return  # a member list is still to come, and requests the next round
        target = [queue for shared in found for queue in await self._share(shared, queues)]
        undecided = self._undecided(queues, now)
        if undecided:
            self._rounds.want(now + PAUSE_S)
        target = [
            item
            for item in target
            if item.topic not in undecided and self._initial_offsets.has_reported(item.broker_name)
        ]
        self._fetcher.expect(len(target))
        self._do(self._state.aim(target, now))

    def _shared(self, queues: Mapping[str, Sequence[MessageQueue]]) -> list[SharedTopics] | None:
        places = {item.broker_name for items in queues.values() for item in items}
        places = {name for name in places if self._master_of(name) is not None}
        if not places:
            return None
        lists = {name: member_list_of(members) for name, members in self._lists.items()}
        return shared_topics(self._about.client_id, carriers_of(queues, places), lists)

    async def _share(
        self, shared: SharedTopics, queues: Mapping[str, Sequence[MessageQueue]]
    ) -> Sequence[MessageQueue]:
        """Compute the queues of this member. Every member computes the same division, since the input is the same."""
        about, owners = self._about, owners_of(self._lists[shared.decider])
        every = [queue for topic in shared.topics for queue in queues[topic]]
        divide = partial(allocate_group, self._strategy, about.group, about.client_id, every, shared.members, owners)
        try:
            if self._is_leaving:
                raise Closed(CLOSED)
            self._division = on_own_thread(divide)
            return await self._division
        except Exception as error:  # the strategy may be the user's own
            raise InvalidArgument(f"allocation strategy {self._strategy.name!r} failed: {error!r}") from error

    def _undecided(self, queues: Mapping[str, Sequence[MessageQueue]], now: float) -> set[str]:
        if self._about.start.at == broker_pb2.START_AT_EARLIEST:
            return set()  # every broker begins at the first message in any case
        return self._initial_offsets.undecided(
            {topic: {item.broker_name for item in items} for topic, items in queues.items()}, now
        )

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        return (await self._routes.find(topic)).read_queues()

    def _master_of(self, broker_name: str) -> str | None:
        routes = filter(None, map(self._routes.known, self._about.topics))
        return next(filter(None, (route.master_of(broker_name) for route in routes)), None)

    # ---- requests and steps ---------------------------------------------------------------------

    def _send_join(self, name: str) -> None:
        for request in broker_sessions.join(self._about, self._strategy, self._options, self._state.held()):
            self._sessions.send(name, request)
        self._do(self._state.connected(name))

    def _send_holding(self, now: float) -> None:
        self._sent_changes = self._state.changes
        self._send_holding_at = now + _MIN_HOLDING_GAP_S
        requests = list(broker_sessions.holding(self._about.group, self._state.held()))
        for name in self._sessions.open_names():
            for request in requests:
                self._sessions.send(name, request)

    def _do(self, steps: Sequence[Step]) -> None:
        for kind, group in groupby(steps, type):
            alike = [*group]
            if kind is Revoke:
                self._fetcher.revoked([step.queue for step in alike])
            elif kind is LeaseLost:
                self._lose([step.queue for step in alike])
            elif isinstance(alike[0], StartReading):  # there is never more than one
                self._fetcher.granted(*alike[0])
            else:
                now = time.monotonic()
                for name, request in broker_sessions.of_queues(self._about.group, alike, self._initial_offsets, now):
                    self._sessions.send(name, request)

    def _lose(self, queues: Sequence[MessageQueue]) -> None:
        # For a deleted topic, the user gets one error from `DeletedTopics` instead.
        gone = [queue for queue in queues if self._deleted.may_be(queue.topic)]
        self._fetcher.lost(gone, deleted=True)
        if lost := [queue for queue in queues if queue not in gone]:
            log.warning("group: queues are lost group=%s queues=%s", self._about.group, ", ".join(map(str, lost)))
            self._fetcher.lost(lost)
