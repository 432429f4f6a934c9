"""Leases at run time: handles requests of members, grants queues when their time has come, and notifies members."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from minimq_broker.calls.engine import Engine
from minimq_broker.groups.leases import Fencing, Granted, LeaseEvent, LeaseKey, Wanted
from minimq_broker.groups.offsets import InitialOffset, InitialOffsets
from minimq_broker.log.clock import now_ms
from minimq_broker.state.state import QueueKey
from minimq_common.errors import InvalidArgument, MinimqError, NotMaster, QueueNotFound, SystemBusy, TopicNotFound
from minimq_common.model import MessageQueue
from minimq_common.names import MAX_GROUP
from minimq_common.serving.periodic import slices
from minimq_common.wire.rpc import to_failure
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Notifies a member of a group, given by group and client id; ignores one that is gone.
Tell = Callable[[str, str, broker_pb2.SessionEvent], None]


#: Maximum queues of this broker that one member may request, and that all members of all groups may.
MAX_OF_MEMBER = 20_000
MAX_WANTED = 300_000
#: Retry interval of grants while this broker may not write.
_RETRY_S = 0.1


class _QueueRequest(NamedTuple):
    item: broker_pb2.QueueEpoch
    beginning: InitialOffset


class LeaseKeeper:
    """Changes leases on request of members, and notifies them of the result. Belongs to the event loop."""

    def __init__(self, engine: Engine, starts: InitialOffsets, broker_name: str, tell: Tell) -> None:
        self._engine = engine
        self._starts = starts
        self._broker_name = broker_name
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._news: asyncio.Queue[LeaseEvent] = asyncio.Queue()
        #: By group and client: how often the member had given each queue back when it requested it. Omits zeros.
        self._given_back: dict[tuple[str, str], dict[QueueKey, int]] = {}
        #: Requests that are not granted yet, by group and client, then by topic and queue id. A missing queue may be
        #: created later, or created again without the client noticing that it was gone.
        self._wishes: dict[tuple[str, str], dict[tuple[str, int], _QueueRequest]] = {}
        self._wish_count = 0
        #: Repeats requests whose queues have appeared. The event is set when there may be some.
        self._retry_task: asyncio.Task[None] | None = None
        self._look_again = asyncio.Event()
        engine.streams.receive(self._deliver(), "lease-news")

    def retire(self) -> None:
        """Stop changing leases: the engine now has those of a new role."""
        if self._timer is not None:
            self._timer.cancel()

    async def acquire(
        self,
        client_id: str,
        request: broker_pb2.AcquireQueues,
        start: broker_pb2.StartPosition,
        *,
        is_back: bool = False,
    ) -> None:
        """Grant queues to a member once they exist and are free. `is_back`: it continues a former session."""
        if not self._engine.tables.groups.is_member(request.group, client_id):
            raise InvalidArgument(f"{client_id} is not in group {request.group!r}: join it before acquiring queues")
        now = min(request.now_ms or now_ms(), now_ms())  # the clock of a former master may have been ahead
        since = {item.topic: now - item.ago_ms for item in request.begun}
        wishes = [_QueueRequest(item, InitialOffset(start, since.get(item.topic))) for item in request.queues]
        if is_back:
            await self._replaced(request.group, client_id, wishes)
        await self._ask(request.group, client_id, wishes)

    async def _replaced(self, group: str, client_id: str, wishes: Sequence[_QueueRequest]) -> None:
        leases = self._engine.tables.leases

        def owned(key: LeaseKey) -> bool:
            owner = leases.owner(key)
            return owner is not None and owner[0] == client_id

        unknown = [key for wish in wishes if not wish.item.epoch and (key := self._find(group, wish.item))]
        self.renew(key for key in unknown if owned(key))

    async def _ask(self, group: str, client_id: str, wishes: Sequence[_QueueRequest]) -> None:
        # Before any grant: a later decision could move the group ahead of what its member is reading by then.
        for topic, beginning in {wish.item.topic: wish.beginning for wish in wishes}.items():
            await self._starts.decide(group, topic, beginning)
        async for part in slices(wishes):
            if not self._engine.tables.groups.is_member(group, client_id):
                return  # it has left meanwhile
            for wish in part:
                self._acquire(group, client_id, wish)
            self._set_timer()

    def _acquire(self, group: str, client_id: str, wish: _QueueRequest) -> None:
        item = wish.item
        key = self._find(group, item)
        self._keep_wish(group, client_id, key, wish)
        if key is None:
            return
        queue = MessageQueue(item.topic, self._broker_name, item.queue_id)
        self._note_given_back(client_id, key, item.given_back)
        held = self._engine.tables.groups.holds(group, client_id, queue)
        self._announce(self._engine.tables.leases.acquire(key, client_id, self._loop.time(), item.epoch, held=held))

    def _keep_wish(self, group: str, client_id: str, key: LeaseKey | None, wish: _QueueRequest) -> None:
        wishes = self._wishes.get((group, client_id), {})
        own = self._engine.tables.leases.of_member(group, client_id)
        name = wish.item.topic, wish.item.queue_id
        if name not in wishes:
            if key not in own:
                self._check_room(group, client_id, len(wishes) + len(own))
            self._wish_count += 1
        self._wishes.setdefault((group, client_id), wishes)[name] = wish

    def _check_room(self, group: str, client_id: str, own: int) -> None:
        if own >= MAX_OF_MEMBER:
            raise SystemBusy(
                f"{client_id} requests more than {MAX_OF_MEMBER} queues of this broker for group {group!r}: "
                "start more members of the group, each of which then gets fewer",
                limit="member-queues",
            )
        if self._wish_count + len(self._engine.tables.leases) >= MAX_WANTED:
            raise SystemBusy(
                f"the members of all groups request more than {MAX_WANTED} queues of this broker: stop consumers that "
                "are not needed, or give topics fewer queues",
                limit="queues",
            )

    def retry_wishes(self) -> None:
        """Repeat pending requests whose queues have appeared, in the background."""
        if self._wishes and (self._retry_task is None or self._retry_task.done()):
            self._retry_task = self._engine.streams.receive(self._retry_wishes(), "lease-wishes")
        self._look_again.set()

    async def _retry_wishes(self) -> None:
        while self._look_again.is_set():
            self._look_again.clear()
            for group, client_id in list(self._wishes):
                wishes = list(self._wishes.get((group, client_id), {}).values())
                async for part in slices(wishes):
                    come = [wish for wish in part if self._has_appeared(group, client_id, wish)]
                    if come:
                        self._engine.streams.receive(self._ask_again(group, client_id, come), "lease-wishes")
                await asyncio.sleep(0)

    async def _ask_again(self, group: str, client_id: str, wishes: Sequence[_QueueRequest]) -> None:
        try:
            await self._ask(group, client_id, wishes)
        except MinimqError as error:
            self._engine.rejections.note(error)
            self._tell(group, client_id, rejection(group, error))

    def _has_appeared(self, group: str, client_id: str, wish: _QueueRequest) -> bool:
        key = self._find(group, wish.item)
        return key is not None and client_id not in self._engine.tables.leases.status(key, self._loop.time()).waiting

    async def release(self, group: str, client_id: str, queues: Sequence[broker_pb2.QueueEpoch]) -> None:
        """Take queues back from a member. Holds those that it owned for the hold time of its group."""
        async for part in slices(queues):
            for item in part:
                self._forget_wish(group, client_id, item.topic, item.queue_id)
            for key, _ in self._present(group, part):
                handover_s = self._handover_timeout_s(group)
                self._announce(self._engine.tables.leases.release(key, client_id, self._loop.time(), handover_s))
            self._set_timer()

    async def saved(self, group: str, client_id: str, queues: Sequence[broker_pb2.QueueEpoch]) -> None:
        """End the hold of queues whose state a member has saved, or will have saved by the time it releases them."""
        async for part in slices(queues):
            for key, item in self._present(group, part):
                self._announce(self._engine.tables.leases.saved(key, client_id, item.epoch, self._loop.time()))
            self._set_timer()

    def drop(self, group: str, client_id: str) -> bool:
        """Take some queues of a member that leaves; True if none is left. Must precede its removal from the group."""
        handover_s = self._handover_timeout_s(group)
        self._announce(self._engine.tables.leases.drop(group, client_id, self._loop.time(), handover_s))
        self._wish_count -= len(self._wishes.pop((group, client_id), ()))
        self._given_back.pop((group, client_id), None)
        self._set_timer()
        return not self._engine.tables.leases.of_member(group, client_id)

    def renew(self, keys: Iterable[LeaseKey]) -> None:
        """Fence owners and grant their queues again, after all facts that the caller records before its next await."""
        for key in keys:
            self._announce(self._engine.tables.leases.renew(key))

    def _note_given_back(self, client_id: str, key: LeaseKey, times: int) -> None:
        member = key.group, client_id
        if times:
            self._given_back.setdefault(member, {})[key.queue] = times
        else:
            self._given_back.get(member, {}).pop(key.queue, None)

    def _forget_wish(self, group: str, client_id: str, topic: str, queue_id: int) -> None:
        wishes = self._wishes.get((group, client_id), {})
        self._wish_count -= wishes.pop((topic, queue_id), None) is not None
        if not wishes:
            self._wishes.pop((group, client_id), None)

    def _handover_timeout_s(self, group: str) -> float:
        agreement = self._engine.tables.groups.agreement(group)
        return agreement.handover_timeout_ms / 1000 if agreement else 0.0

    def _present(
        self, group: str, queues: Sequence[broker_pb2.QueueEpoch]
    ) -> list[tuple[LeaseKey, broker_pb2.QueueEpoch]]:
        return [(key, item) for item in queues if (key := self._find(group, item)) is not None]

    def _find(self, group: str, item: broker_pb2.QueueEpoch) -> LeaseKey | None:
        with suppress(TopicNotFound, QueueNotFound):
            return LeaseKey(group, self._engine.store.state.queue(item.topic, item.queue_id))
        return None

    # ---- time -----------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._engine.tables.leases.next_expiry
        self._timer = None if due is None else self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._announce(self._engine.tables.leases.expire(self._loop.time()))
        self._set_timer()

    # ---- notifying members ----------------------------------------------------------------------

    def _announce(self, events: Iterable[LeaseEvent]) -> None:
        for event in events:
            self._news.put_nowait(event)

    async def _deliver(self) -> None:
        while True:
            events = [await self._news.get()]
            while not self._news.empty():
                events.append(self._news.get_nowait())
            await self._settle()
            async for part in slices(events):
                for event in part:
                    self._bring(event)

    async def _settle(self) -> None:
        while True:
            try:
                await self._engine.writes.record(lambda _: None)
            except NotMaster:  # another broker may grant queues now; this one may become the master again
                await asyncio.sleep(_RETRY_S)
            except MinimqError as error:
                log.warning("lease: granting although nothing can be written reason=%s", error)
                return
            else:
                return

    def _bring(self, event: LeaseEvent) -> None:
        try:
            match event:
                case Granted(client_id, key, epoch):
                    if self._engine.tables.leases.owner(key) == (client_id, epoch):  # else it was released
                        granted = self._granted(key, epoch)
                        granted.given_back = self._given_back.get((key.group, client_id), {}).get(key.queue, 0)
                        self._forget_wish(key.group, client_id, granted.topic, granted.queue_id)
                        self._tell(key.group, client_id, broker_pb2.SessionEvent(granted=granted))
                case Wanted(client_id, key):
                    topic, queue_id = self._topic_name(key.queue), key.queue.queue_id
                    wanted = broker_pb2.QueueWanted(group=key.group, topic=topic, queue_id=queue_id)
                    self._tell(key.group, client_id, broker_pb2.SessionEvent(wanted=wanted))
                case Fencing(_, key):
                    self._engine.arrivals.wake(key.queue)  # waiting pulls check their lease again
        except TopicNotFound:
            log.info("lease: the topic was deleted client=%s", event.client_id)
        except Exception:  # one broken queue must not stop the grants of all others
            log.exception("lease: cannot notify the member client=%s key=%s", event.client_id, event.key)

    def _granted(self, key: LeaseKey, epoch: int) -> broker_pb2.QueueGranted:
        group, queue = key
        topic = self._topic_name(queue)
        # A queue created after the group had started has no committed offset and is read from its beginning. The pull
        # reports if that offset is no longer stored.
        offset = self._engine.store.state.offset(group, queue) or 0
        return broker_pb2.QueueGranted(
            group=group, topic=topic, queue_id=queue.queue_id, epoch=epoch, offset=offset, topic_id=queue.topic_id
        )

    def _topic_name(self, queue: QueueKey) -> str:
        name = self._engine.store.state.topic_name(queue.topic_id)
        if name is None:
            raise TopicNotFound(f"the topic with id {queue.topic_id} was deleted")
        return name


def rejection(group: str, error: MinimqError) -> broker_pb2.SessionEvent:
    rejected = broker_pb2.SessionRejected(group=group[:MAX_GROUP], failure=to_failure(error))
    return broker_pb2.SessionEvent(rejected=rejected)
