"""The gRPC face of the controller: reports in, the table, decisions to the disk and out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc.aio

from minimq_common.controller_wire import replica_set_from_wire, replica_set_to_wire, report_from_wire
from minimq_common.errors import BrokerConflict, StoreError, Unavailable
from minimq_common.model import Permission
from minimq_common.outage_log import OutageLog
from minimq_common.replica_set import (
    ReplicaSet,
    check_not_ending,
    check_promoted,
    is_news,
    what_was_mended,
    what_was_promoted,
)
from minimq_common.replica_set import Report as ReplicaReport  # a call has the name
from minimq_nameserver.bounds import MAX_HELD_REPORTS
from minimq_nameserver.broker_state import BrokerState
from minimq_nameserver.controller.decisions import DecisionFile
from minimq_nameserver.controller.table import ControllerTable, Key, Standing
from minimq_proto.v1 import controller_pb2, controller_pb2_grpc

log = logging.getLogger(__name__)

#: Seconds for which an answer is held back at most, whatever the reporter wants.
_LONGEST_HOLD_S = 60.0


class ControllerService(controller_pb2_grpc.ControllerServicer):
    """Answers replicas out of one table. Everything runs on one event loop, so nothing is locked.

    A decision is written while the loop stands still, for the time of one sync: no report comes between what was
    decided and what it was decided on. There are few: a replica starts, is elected, or joins or leaves a set.

    Args:
        directory: where the decisions are kept.
        lease_s: length of the leases of masters.
        refused: called with a broker whose place another one has, with that one, and with what it is told.

    Raises:
        StoreError: the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        lease_s: float,
        refused: Callable[[BrokerState, BrokerState, BrokerConflict], None] = lambda *_: None,
    ) -> None:
        self._file = DecisionFile(directory)
        self._refused = refused
        self._lease_s = lease_s
        self._table = ControllerTable(self._file.load(), lease_s, time.monotonic())
        self._news: dict[Key, asyncio.Event] = {}
        self._waiting: Counter[Key] = Counter()  # how many wait for that
        self._held: dict[asyncio.Timeout, None] = {}  # reports whose answer is held back, the oldest first
        self._electing: asyncio.Task[None] | None = None
        self._stopping = False
        self._election_outage = OutageLog(log)
        self._file_outage = OutageLog(log)

    def start(self) -> None:
        """Begin to elect."""
        self._electing = asyncio.create_task(self._elect(), name="controller-elect")

    async def stop(self) -> None:
        """Elect no more, and let held calls fail, so that their callers look for another controller. Idempotent."""
        self._stopping = True
        for event in self._news.values():
            event.set()
        electing, self._electing = self._electing, None
        if electing is not None:
            electing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await electing

    def close(self) -> None:
        """Close the file; nothing may be called any more."""
        self._file.close()

    def standings(self) -> list[Standing]:
        """Return how each replica set is; to be called on the loop."""
        return self._table.standings(time.monotonic())

    # ---- Calls -----------------------------------------------------------------------------------

    async def Report(
        self,
        request: controller_pb2.ReportRequest,
        context: grpc.aio.ServicerContext[controller_pb2.ReportRequest, controller_pb2.ReportResponse],
    ) -> controller_pb2.ReportResponse:
        """Note that a replica lives, and answer the record, at the latest when the reporter wants to know."""
        report = report_from_wire(request)
        self._receive(report)
        record = await self._hold(report, request.wait_ms / 1000)
        return controller_pb2.ReportResponse(
            replica_set=replica_set_to_wire(record) if record else None,
            master_lives=self._table.master_lives(report.key, time.monotonic()),
        )

    async def ChangeInSync(
        self,
        request: controller_pb2.ChangeInSyncRequest,
        context: grpc.aio.ServicerContext[controller_pb2.ChangeInSyncRequest, controller_pb2.ChangeInSyncResponse],
    ) -> controller_pb2.ChangeInSyncResponse:
        """Replace the in-sync set of a replica set, for its master."""
        record = self._table.change_in_sync(replica_set_from_wire(request.known), request.in_sync)
        self._decide(record)
        return controller_pb2.ChangeInSyncResponse(replica_set=replica_set_to_wire(record))

    async def Promote(
        self,
        request: controller_pb2.PromoteReplicaRequest,
        context: grpc.aio.ServicerContext[controller_pb2.PromoteReplicaRequest, controller_pb2.PromoteReplicaResponse],
    ) -> controller_pb2.PromoteReplicaResponse:
        """Make a replica the master once the lease of the present one is over, and answer then."""
        record = await self._promote((request.cluster, request.broker_name), request.replica_id, request.unclean)
        return controller_pb2.PromoteReplicaResponse(replica_set=replica_set_to_wire(record))

    # ---- Decisions -------------------------------------------------------------------------------

    def _receive(self, report: ReplicaReport) -> None:
        if (record := self._table.mended(report)) is not None:
            self._decide(record)
            log.error("%s", what_was_mended(record, report))
        if self._table.record(report.key) is None:
            record = self._table.found(report, time.monotonic())
            if record is None:
                return
            self._decide(record)
        try:
            heard = self._table.hear(report, time.monotonic())
        except BrokerConflict as conflict:
            self._note_conflict(report, conflict)
            raise
        self._decide(heard)

    def _note_conflict(self, report: ReplicaReport, conflict: BrokerConflict) -> None:
        """Let operators see a replica that is refused: its own log is the last place where they look."""
        record = self._table.record(report.key)
        holder = record.addresses.get(report.replica_id) if record is not None else None
        if holder is not None:
            self._refused(_as_broker(report, report.address), _as_broker(report, holder), conflict)

    async def _hold(self, report: ReplicaReport, wait_s: float) -> ReplicaSet | None:
        """Wait until there is news for a reporter, for that time at most, and return the record."""
        wait_s = min(wait_s, _LONGEST_HOLD_S)
        if wait_s > 0 and not is_news(self._table.record(report.key), report):
            if len(self._held) >= MAX_HELD_REPORTS:
                oldest = next(iter(self._held))
                del self._held[oldest]
                if not oldest.expired():
                    oldest.reschedule(0)
            holding = asyncio.timeout(wait_s)
            self._held[holding] = None
            try:
                async with holding:
                    while not is_news(self._table.record(report.key), report):
                        await self._change(report.key)
            except TimeoutError:
                pass
            finally:
                self._held.pop(holding, None)
        record = self._table.record(report.key)
        if record is not None:
            check_not_ending(record, report)
        return record

    async def _promote(self, key: Key, replica_id: int, unclean: bool) -> ReplicaSet:
        known = self._table.record(key)
        record = self._table.promote(key, replica_id, unclean=unclean, now=time.monotonic())
        self._decide(record)
        if record is not known:  # else it is the master already, or about to be
            is_unclean, what = what_was_promoted(record, replica_id)
            log.log(logging.ERROR if is_unclean else logging.INFO, "%s", what)
        self._hold_elections()  # the lease of a master that is gone is over already
        while (record := self._table.record(key) or record).successor is not None:
            await self._change(key)
        check_promoted(record, replica_id)
        return record

    async def _change(self, key: Key) -> None:
        """Wait until the record of a replica set changes."""
        if self._stopping:
            raise Unavailable("the controller stops")
        news = self._news.setdefault(key, asyncio.Event())
        self._waiting[key] += 1
        try:
            await news.wait()
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
                self._news.pop(key, None)
        if self._stopping:
            raise Unavailable("the controller stops")

    async def _elect(self) -> None:
        while True:
            wait_s = self._lease_s / 4
            try:
                self._hold_elections()
                now = time.monotonic()
                # What comes meanwhile puts elections off, or is decided when it comes.
                wait_s = min(self._table.next_look_at(now) - now, wait_s)
            except StoreError:
                pass  # it was logged
            except Exception as error:  # noqa: BLE001 - without elections brokers would stay without a master
                message = "the elections failed, and are tried again reason=%r"
                self._election_outage.crashed(message, error, cause=error)
            else:
                self._election_outage.worked("the elections go on")
            await asyncio.sleep(wait_s)

    def _hold_elections(self) -> None:
        for record in self._table.elections(time.monotonic()):
            self._decide(record)

    def _decide(self, record: ReplicaSet) -> None:
        """Write what is decided, then let it hold; nothing happens when it holds already."""
        known = self._table.record(record.key)
        if record is known:
            return
        try:
            self._file.save(record)
        except StoreError as error:
            message = "a decision was not made broker=%s cluster=%s reason=%s"
            self._file_outage.failed(
                message, record.broker_name, record.cluster, error, cause=error, level=logging.ERROR
            )
            raise
        self._file_outage.worked("decisions are made again broker=%s cluster=%s", record.broker_name, record.cluster)
        self._table.adopt(record, time.monotonic())
        if known is None and record.log_term and record.master_run:
            log.warning(
                "nothing was recorded of a broker that has a log, its replica with the longest one becomes the master: "
                "was the directory of the controller lost? broker=%s cluster=%s log=%s",
                record.broker_name,
                record.cluster,
                record.log_id,
            )
        level = logging.INFO if known is None or known.term != record.term else logging.DEBUG
        log.log(
            level,
            "decided broker=%s cluster=%s term=%d master=%d address=%s in_sync=%s",
            record.broker_name,
            record.cluster,
            record.term,
            record.master_id,
            record.master_address,
            sorted(record.in_sync),
        )
        event = self._news.pop(record.key, None)
        if event is not None:
            event.set()


def _as_broker(report: ReplicaReport, address: str) -> BrokerState:
    """Return who reports, or who else has its place, as one of those that register."""
    return BrokerState(
        report.cluster, report.broker_name, report.replica_id, address, 0, Permission.READ_WRITE, topics={}
    )
