"""The role of a broker at run time: its controller decides, this module makes it so.

Two tasks: one reports, all the time, and learns the record; one carries out the record, which may take longer than a
lease. Urgent changes are made at once: a former master acknowledges nothing from then on, and a slave nothing of a
former term.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from minimq_broker.core.in_sync import Patience
from minimq_broker.core.term_lease import Confirmations
from minimq_broker.core.upkeep.retention import NOTHING_NEEDED
from minimq_broker.replication.controller import Controller
from minimq_broker.replication.follower import Follower, MasterRef
from minimq_broker.replication.leadership import Leadership
from minimq_broker.services.clock import lease_clock
from minimq_broker.services.engine import Engine
from minimq_broker.services.store_handle import LogStatus, StoreHandle
from minimq_common.errors import CorruptEntry, MiniMQError, NotMaster, TermEnding
from minimq_common.outage_log import OutageLog
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet, shown_id_of_slave
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

_NO_ANSWER = "roles: the controller gives no answer that counts reason=%s"

#: A report is held back for this part of a lease while there is no news.
_HELD = 1 / 6
#: For how long a report is held back before the length of leases is known, in seconds.
_FIRST_HELD_S = 1.0
#: Seconds without a replica set for a slave before that is logged: far longer than the lease after which a
#: first master is named.
_WITHOUT_SET_S = 10.0
#: Delay before a retry after a controller did not answer, or refused, in seconds.
_RETRY_S = 0.2
#: How long the controller may take to hear that this broker stops, in seconds.
_RESIGN_S = 1.0
#: Interval of checks for changes by time alone, in seconds.
_LOOK_S = 0.25


class RoleKeeper:
    """Gives a broker its role, again and again. Not thread-safe: it belongs to the loop of the engine."""

    def __init__(
        self,
        engine: Engine,
        own: ReplicaReport,
        controller: Controller,
        patience: Patience,
        changed: Callable[[], None],
        security: ChannelSecurity = PLAIN,
    ) -> None:
        self._engine = engine
        self._security = security
        #: What never changes of its reports.
        self.own = own
        self.controller = controller
        self._patience = patience
        self._changed = changed
        self._lease_until = 0.0
        self._confirmations = Confirmations(lease_clock())
        #: When the last report that was answered had been sent, and since when reports have not been answered.
        self._silent_since = math.inf
        #: The latest possible end of a master's lease, from the last answer of the controller: it cannot be renewed
        #: without an answer.
        self._outage = OutageLog(log)
        self._master_outage = OutageLog(log)
        #: Since when the controller has been telling this slave of no set.
        self._without_set_since = math.inf
        self._began = asyncio.Event()
        self._changing = PeriodicTask("roles", self._change, _LOOK_S, log)
        self._reporting: asyncio.Task[None] | None = None
        self.record: ReplicaSet | None = None
        self.leadership: Leadership | None = None
        self.follower: Follower | None = None
        self._damage = OwnDamage(engine.handle, lambda: self.follower)

    # ---- what others look at --------------------------------------------------------------------

    @property
    def is_master(self) -> bool:
        """True if this broker leads."""
        return self.leadership is not None

    @property
    def shown_id(self) -> int:
        """The broker id under which it is registered; 0 is the master."""
        if self.is_master:
            return 0
        own_id = self.own.replica_id
        return own_id if self.record is None else shown_id_of_slave(own_id, self.record.master_id)

    @property
    def controller_silent_s(self) -> float:
        """For how long the controller has not answered, in seconds; 0 while it does."""
        return max(lease_clock() - self._silent_since, 0.0)

    def lowest_needed(self) -> int:
        """Return the log position from which others need entries of this broker. Any thread may call this."""
        leadership = self.leadership
        return NOTHING_NEEDED if leadership is None else leadership.lowest_needed()

    async def leads(self, term: int) -> None:
        """Return when this broker leads a term, or a later one."""
        while self.leadership is None or self.leadership.term < term:
            self._began.clear()
            await self._began.wait()

    def refusal(self, *, to_sender: bool) -> MiniMQError | None:
        """Return why nothing may be accepted or acknowledged at this moment; None when it may."""
        if self.leadership is not None:
            return self.leadership.refusal(to_sender=to_sender)
        master = f"the master is at {self.follower.master.address}" if self.follower else "its master is not known yet"
        return NotMaster(f"this broker is not the master of {self.own.broker_name}: {master}")

    def log_grew(self) -> None:
        """Send new entries of the log to slaves, if this broker is the master."""
        if self.leadership is not None:
            self.leadership.grown()

    # ---- coming and going -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to report."""
        self._reporting = asyncio.create_task(self._keep_reporting(), name="roles-report")
        self._changing.start()

    async def stop(self) -> None:
        """Stop leading and following, and notify the controller, which may elect another master at once. Idempotent."""
        reporting, self._reporting = self._reporting, None
        if reporting is None:
            return
        self._damage.stop()
        reporting.cancel()
        await asyncio.gather(reporting, self._changing.stop(), return_exceptions=True)
        await self._end_role()
        with contextlib.suppress(MiniMQError, TimeoutError):
            async with asyncio.timeout(_RESIGN_S):
                await self.controller.report(self._report(resigns=True))
        await self.controller.close()

    # ---- reporting ------------------------------------------------------------------------------

    def _report(self, *, resigns: bool = False) -> ReplicaReport:
        is_barred = self.leadership is None and self._damage.bars(self.record, self.own.replica_id)
        log_status = LogStatus() if is_barred else self._engine.handle.log_status
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
            held_s = self.record.lease_s * _HELD if self.record else _FIRST_HELD_S
            knows_damage = bool(self._damage.reasons)
            try:
                # A disk that has failed needs another master.
                report = self._report(resigns=self._engine.handle.log_status.has_failed)
                if report.resigns and self.leadership is not None:
                    self.leadership.end()  # its successor does not wait
                record = await self.controller.report(report, wait_s=held_s)
                self._damage.told = knows_damage
                if record is not None and report.known is not None and record.number < report.known.number:
                    reason = _what_is_stale(record, report.known)
                    self._outage.failed(_NO_ANSWER, reason, kind="StaleRecord", level=logging.ERROR)
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._silent_since = math.inf
                self._look_for_set(record)
                if record is not None:
                    self._take(record, sent_at)
                if record is None or report.resigns:  # such answers are not held back
                    await asyncio.sleep(_RETRY_S)
            except TermEnding as error:
                if self.leadership is not None:
                    self.leadership.ending()
                self._outage.failed(_NO_ANSWER, error, cause=error, level=logging.INFO)
                await asyncio.sleep(_RETRY_S)
            except Exception as error:  # noqa: BLE001 - without reports this broker would never get a role
                self._silent_since = min(self._silent_since, sent_at)
                self._outage.failed(_NO_ANSWER, error, cause=error)
                await asyncio.sleep(_RETRY_S)

    def _look_for_set(self, record: ReplicaSet | None) -> None:
        now = lease_clock()
        if record is not None or self.own.founds:
            self._without_set_since = math.inf
        else:
            self._without_set_since = min(self._without_set_since, now)
        if now - self._without_set_since < _WITHOUT_SET_S:
            self._outage.worked("roles: the controller answers again")
        else:
            self._outage.failed(
                "roles: no set of that name has a master, and a slave founds none: look at --name and --cluster, or "
                "start its master broker=%s cluster=%s id=%d",
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
        self._changing.wake()

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
                    await asyncio.sleep(min(left_s, _LOOK_S))
                    self._changing.wake()
                else:
                    await self._lead(record)
        elif record.master_id == self.own.replica_id:  # an earlier run of this broker: it waits to be elected
            await self._end_role()
        else:
            master = MasterRef(self.own, record.term, record.master_address)
            if self.follower is None or self.follower.master != master:
                await self._follow(master)

    async def _lead(self, record: ReplicaSet) -> None:
        try:
            self._damage.check()
            await self._engine.lead(record.term, waits_for_replicas=record.sync)
        except MiniMQError:
            # A term is begun once: the controller treats it as another run, and assigns the next one.
            self.own = replace(self.own, run=new_run())
            raise
        self.leadership = Leadership(
            self._engine, record, self.own.replica_id, self.controller, self._patience, self._lease_until
        )
        self.leadership.grown()
        self._master_outage.forget()
        log.info("roles: leading term=%d sync=%s", record.term, record.sync)
        self._begin(record.term)

    async def _follow(self, master: MasterRef) -> None:
        await self._end_role()
        await self._engine.follow()
        self._damage.begin_to_follow()
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


class OwnDamage:
    """The damaged segments of one replica. Belongs to the loop of the engine, except where a method says otherwise."""

    def __init__(self, handle: StoreHandle, follower: Callable[[], Follower | None]) -> None:
        self.told = False
        self._handle = handle
        self._follower = follower
        self._loop = asyncio.get_running_loop()
        handle.damage.repair = self._found

    def stop(self) -> None:
        """Repair nothing any more."""
        self._handle.damage.repair = None

    def begin_to_follow(self) -> None:
        """Forget what could not be repaired: the next detection starts the repair."""
        self._handle.damage.known.clear()

    @property
    def reasons(self) -> Mapping[int, str]:
        """The damage that is to be repaired, by the starts of segments."""
        return {} if self._handle.is_closed else self._handle.store.log.damage.reasons

    def bars(self, record: ReplicaSet | None, own_id: int) -> bool:
        """Return whether this replica may not be elected: it lacks something that another one in sync may have."""
        return bool(self.reasons) and (record is None or record.in_sync != {own_id})

    def check(self) -> None:
        """Raise `CorruptEntry` if this replica was elected before it could report damage of its log."""
        if self.reasons and not self.told:
            raise CorruptEntry(
                f"a segment is damaged, so this replica does not lead: {next(iter(self.reasons.values()))}"
            )

    def _found(self, start: int, reason: str) -> None:
        self._loop.call_soon_threadsafe(self._repair, start, reason)

    def _repair(self, start: int, reason: str) -> None:
        follower, damage = self._follower(), self._handle.damage
        if follower is None or not follower.connected:
            damage.tell(start, reason)
        elif start not in damage.known and self._handle.store.log.mark_damaged(start, reason):
            self.told = False
            log.error("roles: a segment is damaged, and will be repaired segment=%d reason=%s", start, reason)
            follower.repair()


def new_run() -> int:
    """Return a number for a run, which no other has."""
    return secrets.randbits(62) + 1


def _what_is_stale(record: ReplicaSet, known: ReplicaSet) -> str:
    return (
        f"it answers with an old record of {record}, term {record.term}, version {record.version}, though it had told "
        f"term {known.term}, version {known.version}: if that set is no more, start this broker anew"
    )
