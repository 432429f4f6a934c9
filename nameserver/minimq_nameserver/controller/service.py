"""The gRPC service of the controller: receives reports, writes decisions to disk, then answers them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio

from minimq_common.errors import BrokerConflict, StoreError, Unavailable
from minimq_common.model import Permission
from minimq_common.replicas.election import check_promoted, what_was_promoted
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet, check_not_ending, is_news, what_was_repaired
from minimq_common.retry_log import RetryLog
from minimq_common.serving.periodic import PeriodicTask
from minimq_common.wire.convert import from_wire, replica_set_from_wire, to_wire
from minimq_nameserver.bounds import MAX_HELD_REPORTS
from minimq_nameserver.controller.decisions import DecisionFile
from minimq_nameserver.controller.table import ControllerTable, Key, ReplicaSetStatus
from minimq_nameserver.route_table import BrokerState
from minimq_proto.v1 import controller_pb2

log = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]

#: Maximum time for which an answer is held back, whatever the replica requests.
_MAX_HOLD_S = 60.0
#: Minimum pause between two checks for due elections, as a multiple of the time that a check takes.
_PAUSE_FACTOR = 20

#: The result of a rule: a record, or None if there is nothing to decide.
Decision = TypeVar("Decision", bound=ReplicaSet | None)


class ControllerService:
    """Answers replicas from one table. Everything runs on one event loop, except writing decisions to disk."""

    def __init__(
        self,
        directory: Path,
        lease_s: float,
        rejected: Callable[[BrokerState, BrokerState, BrokerConflict], None] = lambda *_: None,
    ) -> None:
        self._file = DecisionFile(directory)
        self._rejected = rejected
        self._lease_s = lease_s
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="controller-writer")
        self._table = ControllerTable(self._file.load(), lease_s, time.monotonic())
        self._deciding: dict[Key, asyncio.Task[None]] = {}  # decisions that are being written
        self._news: dict[Key, asyncio.Event] = {}
        self._waiting: Counter[Key] = Counter()  # number of waiters for each event in `_news`
        self._held: dict[asyncio.Timeout, None] = {}  # reports whose answers are held back, oldest first
        self._elections = PeriodicTask("elections", self._elect, lambda: self._pause_s, log, at_once=True)
        self._pause_s = 0.0
        self._stopping = False
        self._file_outage = RetryLog(log)

    def start(self) -> None:
        self._elections.start()

    async def stop(self) -> None:
        """Stop electing, and fail calls that are held back. Idempotent."""
        self._stopping = True
        for event in self._news.values():
            event.set()
        await self._elections.stop()

    async def close(self) -> None:
        """Close the file. No call is allowed afterwards."""
        await asyncio.to_thread(self._writer.shutdown, cancel_futures=True)
        self._file.close()

    def statuses(self) -> list[ReplicaSetStatus]:
        """Return the status of each replica set. Must be called on the loop."""
        return self._table.statuses(time.monotonic())

    # ---- Calls -----------------------------------------------------------------------------------

    async def Report(self, request: controller_pb2.ReportRequest, context: _Context) -> controller_pb2.ReportResponse:
        """Note that a replica is alive, and answer the record. Held back for up to `wait_ms` without news."""
        report = from_wire(ReplicaReport, request)
        await self._receive(report)
        record = await self._hold(report, request.wait_ms / 1000)
        return controller_pb2.ReportResponse(replica_set=to_wire(controller_pb2.ReplicaSet, record) if record else None)

    async def ChangeInSync(
        self, request: controller_pb2.ChangeInSyncRequest, context: _Context
    ) -> controller_pb2.ChangeInSyncResponse:
        """Replace the in-sync set of a replica set, for its master."""
        known = replica_set_from_wire(request.known)
        record = await self._decide(known.key, lambda: self._table.change_in_sync(known, request.in_sync))
        return controller_pb2.ChangeInSyncResponse(replica_set=to_wire(controller_pb2.ReplicaSet, record))

    async def Promote(
        self, request: controller_pb2.PromoteReplicaRequest, context: _Context
    ) -> controller_pb2.PromoteReplicaResponse:
        """Make a replica the master. Answers once it is, after the lease of the current master has ended."""
        record = await self._promote((request.cluster, request.broker_name), request.replica_id, request.unclean)
        return controller_pb2.PromoteReplicaResponse(replica_set=to_wire(controller_pb2.ReplicaSet, record))

    # ---- Decisions -------------------------------------------------------------------------------

    async def _receive(self, report: ReplicaReport) -> None:
        repaired = await self._decide(report.key, lambda: self._table.repaired(report))
        if repaired is not None:
            log.error("%s", what_was_repaired(repaired, report))
        await self._decide(report.key, lambda: self._found(report))
        if self._table.record(report.key) is None:
            return
        try:
            await self._decide(report.key, lambda: self._table.hear(report, time.monotonic()))
        except BrokerConflict as conflict:
            record = self._table.record(report.key)
            if record is not None and (holder := record.addresses.get(report.replica_id)) is not None:
                self._rejected(_as_broker(report, report.address), _as_broker(report, holder), conflict)
            raise

    def _found(self, report: ReplicaReport) -> ReplicaSet | None:
        if self._table.record(report.key) is not None:
            return None
        coming = sum(self._table.record(key) is None for key in self._deciding)
        return self._table.found(report, time.monotonic(), coming)

    async def _hold(self, report: ReplicaReport, wait_s: float) -> ReplicaSet | None:
        wait_s = min(wait_s, _MAX_HOLD_S)
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
        known: ReplicaSet | None = None

        def promote() -> ReplicaSet:
            nonlocal known
            known = self._table.record(key)
            return self._table.promote(key, replica_id, unclean=unclean, now=time.monotonic())

        record = await self._decide(key, promote)
        if record is not known:  # otherwise it is, or will be, the master already
            is_unclean, what = what_was_promoted(record, replica_id)
            log.log(logging.ERROR if is_unclean else logging.INFO, "%s", what)
        await self._elect_master(key)  # at once if the lease has already ended
        while (record := self._table.record(key) or record).successor is not None:
            await self._change(key)
        check_promoted(record, replica_id)
        return record

    async def _change(self, key: Key) -> None:
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
        self._pause_s = self._lease_s / 4
        due = self._table.elections(time.monotonic())
        outcomes = await asyncio.gather(*(self._elect_master(each.key) for each in due), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        now = time.monotonic()
        # Reports during the pause only postpone elections, or are decided when they arrive.
        self._pause_s = min(self._table.next_look_at(now) - now, self._pause_s)
        # Checking thousands of sets takes long, and each may be due at another moment.
        self._pause_s = max(self._pause_s, _PAUSE_FACTOR * (time.monotonic() - now))

    async def _elect_master(self, key: Key) -> None:
        await self._decide(key, lambda: self._table.election(key, time.monotonic()))

    async def _decide(self, key: Key, rule: Callable[[], Decision]) -> Decision:
        # Waits for earlier decisions about the set, then writes that of `rule`, even if the caller is cancelled.
        while (deciding := self._deciding.get(key)) is not None:
            await asyncio.wait((deciding,))
        record = rule()
        if record is not None and record is not self._table.record(key):
            deciding = self._deciding[key] = asyncio.create_task(self._carry_out(record), name="controller-decide")
            await asyncio.shield(deciding)
        return record

    async def _carry_out(self, record: ReplicaSet) -> None:
        try:
            await self._write(record)
            self._adopt(record)
        finally:
            del self._deciding[record.key]

    async def _write(self, record: ReplicaSet) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._file.save, record)
        except StoreError as error:
            message = "a decision was not made broker=%s cluster=%s reason=%s"
            self._file_outage.failed(
                message, record.broker_name, record.cluster, error, cause=error, level=logging.ERROR
            )
            raise
        self._file_outage.worked("decisions are made again broker=%s cluster=%s", record.broker_name, record.cluster)

    def _adopt(self, record: ReplicaSet) -> None:
        known = self._table.record(record.key)
        self._table.adopt(record, time.monotonic())
        if known is None and record.log_term and record.master_run:
            log.warning(
                "no record of a broker that has a log, so its replica with the longest log becomes the master: "
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
    return BrokerState(
        report.cluster, report.broker_name, report.replica_id, address, 0, Permission.READ_WRITE, topics={}
    )
