"""The role of a broker at run time: the controller decides it, this module carries it out.

Two tasks: one continuously sends reports and receives the record of the replica set; the other changes the role, which
may take longer than a lease. The first task applies what is urgent itself: a former master stops acknowledging at
once, and a slave stops acknowledging entries of a former term.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import Callable
from dataclasses import replace

from minimq_broker.calls.engine import Engine
from minimq_broker.commit.store import LogStatus
from minimq_broker.log.clock import lease_clock
from minimq_broker.replication.controller import Controller
from minimq_broker.replication.follower import Follower, MasterRef
from minimq_broker.replication.in_sync import InSyncLimits
from minimq_broker.replication.leadership import Leadership
from minimq_broker.replication.term_lease import Confirmations
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from minimq_common.errors import MinimqError, NotMaster, TermEnding
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet, shown_id_of_slave
from minimq_common.retry_log import RetryLog
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

_NO_ANSWER = "roles: no valid answer from the controller reason=%s"

#: Part of a lease for which the controller may hold back the answer to a report while there is no news.
_HELD = 1 / 6
#: The same in seconds, while the length of leases is not known.
_INITIAL_HOLD_S = 1.0
#: A slave without a replica set for this long logs it. Far longer than the lease after which a first master is named.
_NO_SET_WARNING_S = 10.0
#: Pause after a report that the controller rejected or did not answer.
_RETRY_S = 0.2
_RESIGN_TIMEOUT_S = 1.0
_CHECK_INTERVAL_S = 0.25


class RoleKeeper:
    """Keeps a broker in the role that its controller decides. Belongs to the loop of the engine."""

    def __init__(
        self,
        engine: Engine,
        own: ReplicaReport,
        controller: Controller,
        max_wait: InSyncLimits,
        changed: Callable[[], None],
        security: ChannelSecurity = PLAIN,
    ) -> None:
        self._engine = engine
        self._security = security
        #: The part of its reports that stays the same during a run.
        self.own = own
        self.controller = controller
        self._max_wait = max_wait
        self._changed = changed
        self._lease_until = 0.0
        self._confirmations = Confirmations(lease_clock())
        #: When the first report without an answer was sent; infinite while the controller answers.
        self._silent_since = math.inf
        self._outage = RetryLog(log)
        self._master_outage = RetryLog(log)
        #: Since when the controller has answered this slave without a replica set; infinite if it has one.
        self._no_set_since = math.inf
        self._began = asyncio.Event()
        self._change_task = PeriodicTask("roles", self._change, _CHECK_INTERVAL_S, log)
        self._reporting: asyncio.Task[None] | None = None
        self.record: ReplicaSet | None = None
        self.leadership: Leadership | None = None
        self.follower: Follower | None = None

    # ---- status ---------------------------------------------------------------------------------

    @property
    def shown_id(self) -> int:
        """The broker id under which this broker is registered; 0 if it leads."""
        if self.leadership is not None:
            return 0
        own_id = self.own.replica_id
        return own_id if self.record is None else shown_id_of_slave(own_id, self.record.master_id)

    @property
    def controller_silent_s(self) -> float:
        """Seconds since the controller stopped answering; 0 while it answers."""
        return max(lease_clock() - self._silent_since, 0.0)

    def lowest_needed(self) -> int:
        """Return the log position from which on replicas need entries of this broker. Thread-safe."""
        leadership = self.leadership
        return NOTHING_NEEDED if leadership is None else leadership.lowest_needed()

    async def leads(self, term: int) -> None:
        """Wait until this broker leads `term` or a later one."""
        while self.leadership is None or self.leadership.term < term:
            self._began.clear()
            await self._began.wait()

    def rejection(self, *, to_sender: bool) -> MinimqError | None:
        """Return why writes may not be accepted or acknowledged now, or None. See `WriteRejection`."""
        if self.leadership is not None:
            return self.leadership.rejection(to_sender=to_sender)
        master = f"the master is at {self.follower.master.address}" if self.follower else "its master is not known yet"
        return NotMaster(f"this broker is not the master of {self.own.broker_name}: {master}")

    def log_grew(self) -> None:
        """Send new entries of the log to slaves, if this broker is the master."""
        if self.leadership is not None:
            self.leadership.grown()

    # ---- start and stop -------------------------------------------------------------------------

    def start(self) -> None:
        self._reporting = asyncio.create_task(self._keep_reporting(), name="roles-report")
        self._change_task.start()

    async def stop(self) -> None:
        """Stop leading and following, and resign: the controller may elect another master at once. Idempotent."""
        reporting, self._reporting = self._reporting, None
        if reporting is None:
            return
        reporting.cancel()
        await asyncio.gather(reporting, self._change_task.stop(), return_exceptions=True)
        await self._end_role()
        with contextlib.suppress(MinimqError, TimeoutError):
            async with asyncio.timeout(_RESIGN_TIMEOUT_S):
                await self.controller.report(self._report(resigns=True))
        await self.controller.close()

    # ---- reporting ------------------------------------------------------------------------------

    def _report(self, *, resigns: bool = False) -> ReplicaReport:
        # A damaged replica must not be elected, unless no other one is in sync.
        is_alone = self.record is not None and self.record.in_sync == {self.own.replica_id}
        is_barred = self.leadership is None and not is_alone and bool(self._engine.store.damage)
        log_status = LogStatus() if is_barred else self._engine.store.status
        return replace(
            self.own,
            last_term=log_status.last_term,
            log_end=log_status.end,
            log_id=log_status.log_id,
            resigns=resigns,
            common_end=self.leadership.common_end if self.leadership else None,
            known=self._known,
        )

    @property
    def _known(self) -> ReplicaSet | None:
        led = self.leadership.record if self.leadership else None
        return max((record for record in (self.record, led) if record), key=lambda record: record.number, default=None)

    async def _keep_reporting(self) -> None:
        while True:
            sent_at = lease_clock()
            is_held = False
            try:
                is_held = await self._report_once(sent_at)
            except TermEnding as error:
                if self.leadership is not None:
                    self.leadership.ending()
                self._outage.failed(_NO_ANSWER, error, cause=error, level=logging.INFO)
            except Exception as error:  # noqa: BLE001 - without reports this broker would never get a role
                self._silent_since = min(self._silent_since, sent_at)
                self._outage.failed(_NO_ANSWER, error, cause=error)
            if not is_held:
                await asyncio.sleep(_RETRY_S)

    async def _report_once(self, sent_at: float) -> bool:
        """Send a report and apply the answer; return whether the controller holds back answers without news."""
        held_s = self.record.lease_s * _HELD if self.record else _INITIAL_HOLD_S
        # After a disk failure another replica must lead.
        report = self._report(resigns=self._engine.store.status.has_failed)
        if report.resigns and self.leadership is not None:
            self.leadership.end()  # the successor may begin at once
        record = await self.controller.report(report, wait_s=held_s)
        if record is not None and report.known is not None and record.number < report.known.number:
            reason = (
                f"its record of {record}, term {record.term}, version {record.version}, is older than the one it sent "
                f"before, term {report.known.term}, version {report.known.version}: if that replica set was deleted, "
                "restart this broker"
            )
            self._outage.failed(_NO_ANSWER, reason, kind="StaleRecord", level=logging.ERROR)
            return False
        self._silent_since = math.inf
        self._check_has_set(record)
        if record is None:
            return False
        self._take(record, sent_at)
        return not report.resigns

    def _check_has_set(self, record: ReplicaSet | None) -> None:
        now = lease_clock()
        if record is not None or self.own.founds:
            self._no_set_since = math.inf
        else:
            self._no_set_since = min(self._no_set_since, now)
        if now - self._no_set_since < _NO_SET_WARNING_S:
            self._outage.worked("roles: the controller answers again")
        else:
            self._outage.failed(
                "roles: no replica set of that name has a master, and a slave cannot create one: check --name and "
                "--cluster, or start the master broker=%s cluster=%s id=%d",
                self.own.broker_name,
                self.own.cluster,
                self.own.replica_id,
                kind="NoSet",
            )

    def _take(self, record: ReplicaSet, sent_at: float) -> None:
        self.record = record
        leads = record.is_master(self.own.replica_id, self.own.run)
        if leads:
            self._lease_until = sent_at + record.lease_s
        if self.leadership is not None:
            if leads and self.leadership.term == record.term:
                self.leadership.renew(record, self._lease_until)
            else:
                self.leadership.end()
        self._confirmations.accept(record.term)
        if self.follower is not None and self.follower.master.term != record.term:
            self.follower.end()
        self._change_task.wake()

    # ---- changing -------------------------------------------------------------------------------

    async def _change(self) -> None:
        record = self.record
        if record is None:
            return
        if record.is_master(self.own.replica_id, self.own.run):
            if self.leadership is None or self.leadership.term != record.term:
                await self._end_role()
                left_s = self._confirmations.leads_from(record.wait_s) - lease_clock()
                if left_s > 0:
                    await asyncio.sleep(min(left_s, _CHECK_INTERVAL_S))
                    self._change_task.wake()
                else:
                    await self._lead(record)
        elif record.master_id == self.own.replica_id:  # an earlier run of this broker is the master: wait for election
            await self._end_role()
        else:
            master = MasterRef(self.own, record.term, record.master_address)
            if self.follower is None or self.follower.master != master:
                await self._follow(master)
            elif self._engine.store.damage:
                self.follower.copy_if_damaged()

    async def _lead(self, record: ReplicaSet) -> None:
        try:
            await self._engine.lead(record.term, waits_for_replicas=record.sync)
        except MinimqError:
            # A term can be begun only once. As a new run, this broker may be elected for the next term.
            self.own = replace(self.own, run=new_run())
            raise
        self.leadership = Leadership(
            self._engine, record, self.own.replica_id, self.controller, self._max_wait, self._lease_until
        )
        self.leadership.grown()
        self._master_outage.forget()
        log.info("roles: leading term=%d sync=%s", record.term, record.sync)
        self._begin(record.term)

    async def _follow(self, master: MasterRef) -> None:
        await self._end_role()
        await self._engine.follow()
        self.follower = Follower(self._engine, master, self._confirmations, self._master_outage, self._security)
        self.follower.start()
        log.info("roles: following term=%d master=%s", master.term, master.address)
        self._begin(master.term)

    def _begin(self, term: int) -> None:
        self._engine.begin(term)
        self._changed()
        self._began.set()

    async def _end_role(self) -> None:
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            await leadership.stop()
            await self._engine.follow()
        follower, self.follower = self.follower, None
        if follower is not None:
            await follower.stop()


def new_run() -> int:
    """Return a random number that identifies one run of a broker."""
    return secrets.randbits(62) + 1
