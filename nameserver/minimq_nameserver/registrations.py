"""The registration streams of brokers, and what removes brokers from the route table."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import sys
from collections.abc import AsyncIterator, Callable, Collection, Container
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from typing import Any

import grpc.aio

from minimq_common.errors import BrokerConflict, InvalidArgument, MinimqError, Unavailable
from minimq_common.model import QueueData
from minimq_common.names import check_address, check_broker, check_topic
from minimq_common.serving.periodic import SLICE, slices
from minimq_common.wire import rpc
from minimq_common.wire.convert import permission_from_wire, queue_data
from minimq_common.wire.protocol_bounds import MAX_TOPICS
from minimq_nameserver.route_table import TAKEN, BrokerState, Change, Place, RouteTable
from minimq_proto.v1 import nameserver_pb2

log = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]


#: Time for the end of a connection to be noticed: it may arrive together with the next run of its broker.
_ENDING_S = 0.5


class Registrations:
    """Keeps brokers in the route table for as long as their streams last. Lives on one event loop."""

    def __init__(
        self,
        table: RouteTable,
        clock: Callable[[], float],
        changed: Callable[[Collection[str]], None],
        settled: asyncio.Event,
    ) -> None:
        self._table = table
        self._clock = clock
        self._changed = changed
        self._settled = settled
        self._session_ids = itertools.count(1)
        self._streams: dict[int, _Stream] = {}
        self._live: set[rpc.LiveStream] = set()
        #: All brokers of a cluster may register at once; with one at a time, look-ups wait for one slice only.
        self._registering = asyncio.Lock()

    # ---- streams ---------------------------------------------------------------------------------

    async def keep(self, requests: AsyncIterator[nameserver_pb2.RegisterRequest], context: _Context) -> None:
        """Serve the stream of one broker, and remove the broker when it ends."""
        session = next(self._session_ids)
        stopped = False
        with rpc.LiveStream(self._live) as live:
            self._streams[session] = _Stream(live)
            try:
                async for request in requests:
                    answer, stopped = await self._register(session, request)
                    await rpc.write(context, answer.SerializeToString())
            except MinimqError as error:
                level = logging.DEBUG if self._is_logged(error) else logging.WARNING
                log.log(level, "registration rejected reason=%r", error.message)
                raise
            finally:
                # Without an await before it: routes must not lead to a broker whose stream broke.
                self._leave(session, stopped=stopped)

    async def _register(
        self, session: int, request: nameserver_pb2.RegisterRequest
    ) -> tuple[nameserver_pb2.RegisterResponse, bool]:
        if request.check_only:
            await self._check_place(
                (check_broker(request.broker_name), request.replica_id), check_address(request.address), request.run
            )
        elif not request.heartbeat_only:
            async with self._registering:
                self._enter(session, await read_registration(request, self._table.topics()))
        elif not self._table.heartbeat(session, request.data_version, self._clock()):
            raise InvalidArgument(f"heartbeat of {request.broker_name} without a registration of the same version")
        expire_after_ms = round(self._table.expire_after_s * 1000)
        return nameserver_pb2.RegisterResponse(expire_after_ms=expire_after_ms), request.leaving

    async def _check_place(self, place: Place, address: str, run: int) -> None:
        """Raise `BrokerConflict` if another run is registered in a place: its stream is open."""
        await self._settled.wait()  # its holder may be registering again
        self.expire()
        holder = self._table.holder(place, run)
        if holder is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_S):
                await self._streams[holder[0]].ended.wait()
                return
        rejected = replace(holder[1], address=address, run=run)
        conflict = BrokerConflict(f"broker {rejected} is rejected: {holder[1]} {TAKEN}")
        self._table.conflicts.note(rejected, holder[1], conflict.message, self._clock())
        raise conflict

    def _enter(self, session: int, state: BrokerState) -> None:
        self.expire()  # first, so that a silent broker causes no conflict
        known = self._table.broker(session)
        self._carry_out(self._table.register(session, state, self._clock()))
        level = logging.INFO if known is None or known.broker_id != state.broker_id else logging.DEBUG
        log.log(level, "broker registered broker=%s cluster=%s topics=%d", state, state.cluster, len(state.topics))
        missing = self._table.offline.missing_from(state.broker_name)
        if missing and known is None:
            text = "broker registered without topics that it carried before broker=%s missing=%d topic=%s"
            log.warning(text, state, len(missing), min(missing))

    def _is_logged(self, error: MinimqError) -> bool:
        recent = self._table.conflicts.recent(self._clock())
        return any(conflict.times > 1 and conflict.reason == error.message for conflict in recent)

    def _leave(self, session: int, *, stopped: bool) -> None:
        self._streams.pop(session).ended.set()
        state = self._table.broker(session)
        if state is not None:
            log.info("broker left broker=%s stopped=%s", state, stopped)
        self._carry_out(self._table.unregister(session, self._clock(), stopped=stopped))

    def _carry_out(self, change: Change) -> None:
        self._changed(change.topics)
        for session, reason in change.ended:
            log.warning("broker removed reason=%r", reason)
            if session in self._streams:
                self._streams[session].live.end(Unavailable(reason))

    # ---- the end of registrations ----------------------------------------------------------------

    def expire(self) -> None:
        """Remove brokers that have been silent for too long, and end their streams."""
        self._carry_out(self._table.expire(self._clock()))

    def forget(self, broker_name: str) -> bool:
        """Forget a broker that is offline; return whether there was one."""
        change = self._table.forget(broker_name)
        if change is not None:
            self._carry_out(change)
        return change is not None

    def end(self, reason: str) -> None:
        for stream in self._live:
            stream.end(Unavailable(reason))

    def note_conflict(self, rejected: BrokerState, holder: BrokerState, conflict: BrokerConflict) -> None:
        self._table.conflicts.note(rejected, holder, conflict.message, self._clock())
        level = logging.DEBUG if self._is_logged(conflict) else logging.WARNING
        log.log(level, "broker rejected reason=%r", conflict.message)


@dataclass(frozen=True, slots=True)
class _Stream:
    live: rpc.LiveStream
    ended: asyncio.Event = field(default_factory=asyncio.Event)


async def read_registration(request: nameserver_pb2.RegisterRequest, known_topics: Container[str]) -> BrokerState:
    """Decode and check a registration, with pauses between slices of topics in which look-ups are answered."""
    topics: dict[str, QueueData] = {}
    done = 0
    for group in request.groups:
        counts = group.read_queues, group.write_queues
        data = _queue_data(request.broker_name, *counts, group.permission, group.key_queues)
        async for names in slices(group.topics):
            for name in filterfalse(known_topics.__contains__, names):
                check_topic(name)
            # Interned, because many brokers carry a topic and each sends it repeatedly.
            topics.update(dict.fromkeys(map(sys.intern, names), data))
        if len(topics) > MAX_TOPICS:
            raise InvalidArgument(f"broker {request.broker_name} has over {MAX_TOPICS:,} topics, which is the limit")
        done += 1 + len(group.topics)
        if done >= SLICE:
            await asyncio.sleep(0)
            done = 0
    return BrokerState(
        cluster=request.cluster,
        broker_name=request.broker_name,
        broker_id=request.broker_id,
        address=request.address,
        data_version=request.data_version,
        permission=permission_from_wire(request.permission),
        topics=topics,
        replica_id=request.replica_id if request.HasField("replica_id") else None,
        run=request.run,
    )


# Equal topics share one object, also across registrations: this saves memory and makes comparisons quick.
_queue_data = functools.lru_cache(maxsize=1 << 14)(queue_data)
