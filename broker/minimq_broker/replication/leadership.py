"""The work of a master: feed slaves, maintain the in-sync set, and advance the confirmed position."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial

from minimq_broker.calls.engine import Engine
from minimq_broker.calls.streams import FrameStream
from minimq_broker.features.registry import check_features
from minimq_broker.log.clock import lease_clock
from minimq_broker.replication.controller import Controller
from minimq_broker.replication.feed import Context, Feed, FollowerHello
from minimq_broker.replication.in_sync import InSync, InSyncLimits, ReplicaProgress
from minimq_broker.replication.term_history import TermStart, common_point
from minimq_broker.replication.term_lease import TermLease
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from minimq_common.errors import BrokerConflict, MinimqError, NotEnoughReplicas, NotMaster, ReplicaSetChanged, StaleTerm
from minimq_common.replicas.replica_set import ReplicaSet
from minimq_common.serving.periodic import PeriodicTask
from minimq_proto.v1 import replication_pb2

log = logging.getLogger(__name__)

#: Interval of checks for slaves that leave the in-sync set; joining is noticed at once. Also the pause after a rejected
#: change.
_CHECK_INTERVAL_S = 0.1
#: Seconds before an unanswered change of the in-sync set is sent to the controller again.
_ANSWER_S = 2.0


class Leadership:
    """One broker as the master of one term. Belongs to the loop on which it was made."""

    def __init__(
        self,
        engine: Engine,
        record: ReplicaSet,
        own_id: int,
        controller: Controller,
        max_wait: InSyncLimits,
        lease_until: float,
    ) -> None:
        store = self._store = engine.store
        self._own_id = own_id
        self._controller = controller
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._lease = TermLease(record.lease_s, lease_until)
        self._ended = False
        self._feeds: dict[int, Feed] = {}
        #: Announced versions of features by name, by replica id.
        self._features: dict[int, dict[str, int]] = {}
        #: Slaves already logged as having the id of another one, and as having the log of another broker.
        self._rejected: set[FollowerHello] = set()
        self._foreign: set[FollowerHello] = set()
        self.record = record
        self.in_sync = InSync(
            own_id, record.in_sync, max_wait, self._loop.time(), sync=record.sync, confirmed=store.confirmed
        )
        #: Woken when the in-sync set should change.
        self._record_task = PeriodicTask("in-sync set", self._record_set, math.inf, log)
        self._check_task = PeriodicTask("replicas", self._look, _CHECK_INTERVAL_S, log)
        self._note_features()
        self._record_task.start()
        self._check_task.start()

    @property
    def term(self) -> int:
        return self.record.term

    # ---- may this broker serve? -----------------------------------------------------------------

    def rejection(self, *, to_sender: bool) -> MinimqError | None:
        """Return why writes may not be accepted or acknowledged now, or None. See `WriteRejection`."""
        if self._ended or lease_clock() >= self._until:
            return NotMaster(
                f"this broker may no longer be the master of {self.record.broker_name}: another was elected, or its "
                "controller does not answer and not all replicas in sync confirm it; look up the route and retry"
            )
        in_sync = len(self.in_sync.members)
        if to_sender and self.record.sync and in_sync < self.record.min_in_sync:
            return NotEnoughReplicas(
                f"{in_sync} replicas of {self.record.broker_name} are in sync, and "
                f"{self.record.min_in_sync} are needed: start its slaves, wait until they have caught up, or send "
                "elsewhere"
            )
        return None

    @property
    def lease_left_s(self) -> float:
        """Seconds for which this broker may serve without any further answer; always a whole lease if it is alone."""
        return 0.0 if self._ended else min(max(self._until - lease_clock(), 0.0), self.record.lease_s)

    @property
    def by_replicas_s(self) -> float:
        """Seconds served by confirmations of slaves alone; 0 while the controller's lease holds."""
        now = lease_clock()
        return now - self._lease.controller_until if self._lease.controller_until <= now < self._until else 0.0

    @property
    def _until(self) -> float:
        return self._lease.until(self.in_sync.electable - {self._own_id})

    # ---- lease and record -----------------------------------------------------------------------

    def renew(self, record: ReplicaSet, lease_until: float) -> None:
        """Apply an answer of the controller that names this broker the master of this term."""
        self._lease.renew(lease_until)
        self._take(record)

    def ending(self) -> None:
        """Note that the controller has chosen a successor: this broker serves only until its lease ends."""
        self._lease.ending()

    def _ask(self) -> float | None:
        return None if self._ended else self._lease.ask(lease_clock())

    def _take(self, record: ReplicaSet) -> None:
        if record.term != self.term or record.version <= self.record.version:
            return
        if record.in_sync != self.record.in_sync:
            log.info("replication: in sync term=%d replicas=%s", record.term, sorted(record.in_sync))
        self.record = record
        self.in_sync.recorded(record.in_sync, self._loop.time())
        self._note_features()
        self.grown()

    def grown(self) -> None:
        """Advance the confirmed position and wake the feeds, after the log or the position of a slave has grown."""
        if self._ended:
            return
        self._store.confirmation.confirm(self.in_sync.confirm(self._store.end, self._loop.time()))
        for feed in self._feeds.values():
            feed.wake()

    def progress(self) -> Mapping[int, ReplicaProgress]:
        """Return the progress of each slave."""
        return self.in_sync.progress(self._loop.time())

    @property
    def common_end(self) -> int | None:
        """The position up to which every replica in sync has the log; None after the end of the leadership."""
        return None if self._ended else self.in_sync.common_end(self._store.end, self._loop.time())

    def lowest_needed(self) -> int:
        """Return the log position from which on slaves in sync need entries. Thread-safe."""
        needed = [progress.position for slave, progress in self.progress().items() if slave in self.in_sync.members]
        return min(needed, default=NOTHING_NEEDED)

    def end(self) -> None:
        """Confirm and acknowledge nothing from now on. Must be followed by `stop`. Idempotent."""
        self._ended = True

    async def stop(self) -> None:
        """End all streams to slaves. Idempotent."""
        self.end()
        for feed in self._feeds.values():
            feed.end()
        ends = (self._record_task.stop(), self._check_task.stop(), *(feed.ended() for feed in self._feeds.values()))
        await asyncio.gather(*ends, return_exceptions=True)

    # ---- slaves ---------------------------------------------------------------------------------

    async def serve(
        self, follow: replication_pb2.Follow, requests: AsyncIterator[replication_pb2.ReplicaRequest], context: Context
    ) -> None:
        slave = FollowerHello(follow.replica_id, follow.run, follow.address, follow.log_id)
        replica_id = slave.replica_id
        if replica_id == self._own_id:
            raise self._conflict(slave, self.record.master_address)
        while (former := self._feeds.get(replica_id)) is not None:
            if former.slave.run != slave.run and not former.is_ending:
                raise self._conflict(slave, former.slave.address)
            former.end()  # a replica that reconnects has left its former stream
            await former.ended()
            if self._feeds.get(replica_id) is former:
                del self._feeds[replica_id]
        if follow.term != self.term or self._ended:
            raise StaleTerm(f"term {follow.term} is not served here: this broker leads term {self.term}")
        features = {each.name: each.version for each in follow.features}
        name = f"the log of {self.record.broker_name}"
        check_features(self._store.state.features, features, name, f"replica {replica_id} at {slave.address}")
        self._features[replica_id] = features
        self._note_features()
        self._introduce(slave)
        confirmed = partial(self._lease.confirmed, replica_id)
        theirs, unsent = [TermStart(start.term, start.position) for start in follow.terms], self._engine.unsent
        point = None if follow.anew else common_point(self._store.state.terms, self._store.end, theirs, follow.log_end)
        if point is None or point < self._store.log.complete_from:
            log.debug("replication: slave has to copy everything id=%d", replica_id)
            # The slave will delete its data, so it must stop counting as in sync now.
            self.in_sync.attach(replica_id, 0, self._loop.time())
            self.in_sync.detach(replica_id, self._loop.time())
            self._moved()
            frame = replication_pb2.ReplicaFrame(copy=replication_pb2.CopyAll(), log_id=self._store.state.log_id)
            await FrameStream(context, unsent).write(lambda: frame)
            return
        feed = Feed(
            self._store, self.in_sync, slave, point, self._moved, unsent, self.record.lease_s, self._ask, confirmed
        )
        self._feeds[replica_id] = feed
        self._note_features()
        try:
            await feed.run(requests, context)
        finally:
            if self._feeds.get(replica_id) is feed:
                del self._feeds[replica_id]

    def _note_features(self) -> None:
        # Also of a replica that is not in sync yet: it gets all entries.
        replicas = (self.in_sync.members | self._feeds.keys()) - {self._own_id}
        self._store.replica_features.announced = {each: self._features.get(each, {}) for each in replicas}

    def _conflict(self, slave: FollowerHello, other: str) -> BrokerConflict:
        conflict = BrokerConflict(
            f"replica {slave.replica_id} of {self.record} is at {other}, but {slave.address} says that it is "
            "the same replica: give one of them another --id, or stop it"
        )
        if slave not in self._rejected:
            self._rejected.add(slave)
            log.error("replication: a slave is rejected reason=%s", conflict)
        return conflict

    def _introduce(self, slave: FollowerHello) -> None:
        own_log_id = self._store.state.log_id
        if slave.has_foreign_log(own_log_id) and slave not in self._foreign:
            self._foreign.add(slave)
            log.error(
                "replication: a slave has the log of another broker id=%d address=%s log=%s expected=%s",
                slave.replica_id,
                slave.address,
                slave.log_id,
                own_log_id,
            )

    def _moved(self) -> None:
        self.grown()
        if self._wanted() is not None:
            self._record_task.wake()

    # ---- the in-sync set ------------------------------------------------------------------------

    def _wanted(self) -> frozenset[int] | None:
        # A requested replica counts as electable until the controller answers, so request only while its lease holds.
        if self._ended or lease_clock() >= self._lease.controller_until:
            return None
        wanted = self.in_sync.wanted(self._loop.time())
        return wanted if wanted != self.in_sync.members or self.in_sync.is_in_doubt else None

    def _look(self) -> None:
        self._moved()
        self._store.confirmation.expire(time.monotonic())

    async def _record_set(self) -> None:
        wanted = self._wanted()
        if wanted is None:
            return
        self.in_sync.ask(wanted)
        try:
            async with asyncio.timeout(_ANSWER_S):
                self._take(await self._controller.change_in_sync(self.record, wanted))
        except Exception as error:
            await asyncio.sleep(_CHECK_INTERVAL_S)  # each acknowledgement of a slave wakes this
            if not isinstance(error, ReplicaSetChanged | StaleTerm):
                raise
            # The next report will bring the current record.
            log.debug("replication: in-sync set not recorded wanted=%s reason=%s", sorted(wanted), error)
