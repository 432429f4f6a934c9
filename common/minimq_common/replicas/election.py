"""The election of a master: the first of a replica set, the next one, or one promoted by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from minimq_common.errors import BrokerConflict, InvalidArgument, NotInSync, ReplicaSetChanged
from minimq_common.replicas.replica_set import MAX_REPLICAS, ReplicaReport, ReplicaSet, leads_term, renews_lease

#: An authority waits longer than the lease by this share of it.
_MARGIN = 0.1


def takeover_after(lease_s: float) -> float:
    """Return the seconds after the last report of a master at which another may be elected."""
    return lease_s * (1 + _MARGIN)


def _wait_after(lease_s: float) -> float:
    return math.ceil(1000 * takeover_after(lease_s)) / 1000


def found(report: ReplicaReport, lease_s: float) -> ReplicaSet | None:
    """Return the first record of a replica set, with the reporter as its master; None if it may not found a set."""
    if not report.founds or report.resigns:
        return None
    return ReplicaSet(
        cluster=report.cluster,
        broker_name=report.broker_name,
        term=report.last_term + 1,
        master_id=report.replica_id,
        master_run=report.run,
        in_sync=frozenset({report.replica_id}),
        version=1,
        sync=report.sync,
        min_in_sync=report.min_in_sync,
        lease_s=lease_s,
        addresses={report.replica_id: report.address},
        log_term=report.last_term,
        log_id=report.log_id,
        wait_s=_wait_after(lease_s) if report.last_term else 0.0,  # a lost record: a former master may be serving
    )


def what_was_promoted(replica_set: ReplicaSet, replica_id: int) -> tuple[bool, str]:
    """Return whether a promotion by `promote` may lose acknowledged messages, and a line for the log."""
    is_unclean = replica_id not in replica_set.in_sync
    what = "unclean promotion, acknowledged messages that the replica does not have are lost"
    return is_unclean, (
        f"{what if is_unclean else 'promotion'} broker={replica_set.broker_name} cluster={replica_set.cluster} "
        f"to={replica_id} term={replica_set.term} in_sync={sorted(replica_set.in_sync)}"
    )


def promote(replica_set: ReplicaSet, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
    """Return the record with a replica as the successor; the same record if it is already the master or successor."""
    if replica_id == (replica_set.master_id if replica_set.successor is None else replica_set.successor):
        return replica_set
    if replica_set.successor is not None:
        raise ReplicaSetChanged(f"replica {replica_set.successor} of {replica_set} is being promoted: try again")
    if replica_id not in replica_set.in_sync and not unclean:
        known = ", ".join(map(str, sorted(replica_set.in_sync)))
        raise NotInSync(
            f"replica {replica_id} of {replica_set} is not in sync ({known}), so it may lack acknowledged messages: "
            "promote one that is in sync, wait until this one is, or add --unclean and lose the messages that it lacks"
        )
    return replace(
        replica_set,
        # A successor that is not in sync is elected without checking its log.
        in_sync=replica_set.in_sync - {replica_id} if unclean else replica_set.in_sync,
        successor=replica_id,
        version=replica_set.version + 1,
    )


def check_promoted(replica_set: ReplicaSet, replica_id: int) -> None:
    """Raise `ReplicaSetChanged` if the promotion of a replica ended with another master."""
    if replica_set.master_id != replica_id:
        raise ReplicaSetChanged(
            f"replica {replica_id} of {replica_set} was not elected: it stopped reporting, and replica "
            f"{replica_set.master_id} is the master; look at its log, and try again"
        )


def may_lead(replica_set: ReplicaSet, report: ReplicaReport) -> bool:
    """Tell whether a replica may be elected: it is in sync, and still has the log with which it joined.

    A replica joins the in-sync set with the entry that begins the term, so a member without that term in its log has
    lost data. A master alone in its set may have stopped before it wrote that entry, so its log only has to be as new
    as at its election. A log with another id belongs to another replica set. A log without an id lacks even the
    beginning of the set's log, if that has one.
    """
    if report.resigns or report.replica_id not in replica_set.in_sync:
        return False
    if replica_set.log_id and report.log_id != replica_set.log_id:
        return False
    known = replica_set.log_term if len(replica_set.in_sync) == 1 else replica_set.term
    return report.last_term >= known


def elect(
    replica_set: ReplicaSet, alive: Iterable[ReplicaReport], *, lease_s: float | None = None, has_stopped: bool = False
) -> ReplicaSet | None:
    """Return the record with a new master, or None if there is no candidate."""
    reports = {report.replica_id: report for report in alive if not report.resigns}
    winner = None if replica_set.successor is None else reports.get(replica_set.successor)
    if winner is None or (winner.replica_id in replica_set.in_sync and not may_lead(replica_set, winner)):
        candidates = [report for report in reports.values() if may_lead(replica_set, report)]
        if not candidates:
            return None
        winner = min(candidates, key=lambda report: (-report.last_term, -report.log_end, report.replica_id))
    # A master that has begun its term has waited until no other served in an older term; its next run need not wait.
    is_next_run = winner.replica_id == replica_set.master_id and winner.last_term >= replica_set.term
    # If an old copy replaced the record, logs may contain a later term. No term may begin twice.
    known = [each.last_term for each in reports.values() if each.log_id and each.log_id == replica_set.log_id]
    return replace(
        replica_set,
        # The log of a replica that led alone, or was promoted unclean, may contain a later term.
        term=max(replica_set.term, winner.last_term, *known) + 1,
        master_id=winner.replica_id,
        master_run=winner.run,
        in_sync=frozenset({winner.replica_id}),
        version=replica_set.version + 1,
        sync=winner.sync if winner.founds else replica_set.sync,
        min_in_sync=winner.min_in_sync if winner.founds else replica_set.min_in_sync,
        lease_s=lease_s or replica_set.lease_s,
        addresses={**replica_set.addresses, winner.replica_id: winner.address},
        log_term=winner.last_term,
        successor=None,
        common_end=min(replica_set.common_end, winner.log_end),
        wait_s=0.0 if has_stopped or is_next_run else max(_wait_after(replica_set.lease_s), replica_set.wait_s),
    )


class Bootstrap:
    """Collects the reports of the replicas of one set until the authority has a record of it."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._heard: dict[int, tuple[ReplicaReport, float]] = {}
        self._decided_at = 0.0

    def hear(self, report: ReplicaReport, now: float) -> None:
        """Record a report. Raises `InvalidArgument` if `MAX_REPLICAS` other replicas report."""
        if not self._recent(now):
            self._heard.clear()
            self._decided_at = now + takeover_after(self._lease_s)
        if report.replica_id not in self._heard and len(self._heard) >= MAX_REPLICAS:
            raise InvalidArgument(
                f"{MAX_REPLICAS} replicas of {report.broker_name} report, which is the limit: there is no place for "
                f"{report.replica_id}"
            )
        self._heard[report.replica_id] = report, now

    def is_recent(self, now: float) -> bool:
        """Tell whether any replica has reported within the time of a lease."""
        return bool(self._recent(now))

    def found(self, now: float) -> ReplicaSet | None:
        """Return the first record, or None while it is too early or no replica may found a set."""
        reports = [report for report in self._recent(now) if not report.resigns]
        founders = [report for report in reports if report.founds]
        if not founders or (now < self._decided_at and any(report.last_term for report in reports)):
            return None
        mode, first = min(founders, key=_rank), min(reports, key=_rank)
        if not first.last_term:
            first = mode
        return found(replace(first, founds=True, sync=mode.sync, min_in_sync=mode.min_in_sync), self._lease_s)

    def next_look_at(self, now: float) -> float:
        """Return when to call `found` again if no report arrives before; infinity for never."""
        return self._decided_at if self._decided_at > now else math.inf

    def _recent(self, now: float) -> list[ReplicaReport]:
        return [report for report, at in self._heard.values() if now - at < takeover_after(self._lease_s)]


def _rank(report: ReplicaReport) -> tuple[int, int, int]:
    return -report.last_term, -report.log_end, report.replica_id


@dataclass(frozen=True, slots=True)
class _Heard:
    report: ReplicaReport
    at: float
    #: When this run reported first, or again after a pause.
    since: float
    #: When the report arrived, the log went at least as far as the `common_end` that the master had reported.
    has_all: bool


class ReplicaLiveness:
    """The latest reports of the replicas of one set, in memory only.

    Starts as if the master had just renewed its lease: an authority that has just started does not know its leases.

    Each report of the master contains `common_end`, up to which every member has the log. A member with a shorter log
    has been reset to an old copy, and is not elected. Each report is compared, on arrival, with the latest `common_end`
    at that time, because the log may have grown since.
    """

    def __init__(self, replica_set: ReplicaSet, now: float) -> None:
        self._heard: dict[int, _Heard] = {}
        self._common_end = 0
        self._leadership: tuple[int, int, int] | None = None
        self.adopt(replica_set, now)

    def adopt(self, replica_set: ReplicaSet, now: float) -> None:
        """Use another record from now on; with a new master, or none, a new lease time begins."""
        if replica_set.leadership != self._leadership:
            self._leadership = replica_set.leadership
            self._takeover_after_s = takeover_after(replica_set.lease_s)
            self._lease_over_at = now + self._takeover_after_s
            self._common_end = replica_set.common_end
            self._has_stopped = False
        elif replica_set.sync:  # `common_end` never decreases
            self._common_end = max(self._common_end, replica_set.common_end)
        else:
            self._common_end = replica_set.common_end

    def completed(self, changed: ReplicaSet, before: ReplicaSet) -> ReplicaSet:
        """Return a changed record of the same term with the latest `common_end`; the same record if unchanged."""
        if changed is before:
            return before
        # A replica that joins an asynchronous master may be behind; the next report contains the new `common_end`.
        is_open = not changed.sync and not changed.in_sync <= before.in_sync
        return replace(changed, common_end=0 if is_open else self._common_end)

    def check_alone(self, report: ReplicaReport, now: float) -> None:
        """Raise `BrokerConflict` if another process, at another address, reports as the same replica."""
        known = self._heard.get(report.replica_id)
        if known is not None and self._is_recent(known, now):
            check_same(known.report, report)

    def hear(self, replica_set: ReplicaSet, report: ReplicaReport, now: float) -> None:
        """Record a report. A report of the master renews its lease, or ends it if the master resigns."""
        known = self._heard.get(report.replica_id)
        goes_on = known is not None and known.report.run == report.run and self._is_recent(known, now)
        # A log with a later term than the record cannot be compared with `common_end`.
        has_all = report.log_end >= self._common_end or report.last_term > replica_set.term
        self._heard[report.replica_id] = _Heard(report, now, known.since if known and goes_on else now, has_all)
        self.measure(replica_set, report)
        if report.resigns and replica_set.is_master(report.replica_id, report.run):
            self._lease_over_at = now
            self._has_stopped = leads_term(replica_set, report)
        elif renews_lease(replica_set, report):
            self._lease_over_at = now + self._takeover_after_s
            self._has_stopped = False

    def measure(self, replica_set: ReplicaSet, report: ReplicaReport) -> None:
        """Record the `common_end` of a report if it is from the master, even if the report is old."""
        if report.common_end is not None and leads_term(replica_set, report):
            self._common_end = report.common_end

    def lease_age(self, now: float) -> float:
        """Return the seconds since the master's lease was renewed; a lease that it resigned counts as ended."""
        return now - (self._lease_over_at - self._takeover_after_s)

    def alive(self, now: float) -> Mapping[int, ReplicaReport]:
        """Return the latest reports by replica id, without replicas that resign or have stopped reporting."""
        return {
            replica_id: heard.report
            for replica_id, heard in self._heard.items()
            if self._is_recent(heard, now) and not heard.report.resigns
        }

    def next_look_at(self, replica_set: ReplicaSet, now: float) -> float:
        """Return when to call `elect` again if no report arrives before; infinity for never."""
        waited = (heard.since + self._takeover_after_s for heard in self._candidates(replica_set, now))
        return min((at for at in (self._lease_over_at, *waited) if at > now), default=math.inf)

    def elect(self, replica_set: ReplicaSet, now: float, lease_s: float | None = None) -> ReplicaSet | None:
        """Return the record with a new master, or None while it is too early or there is no candidate."""
        if now < self._lease_over_at:
            return None
        alive = self.alive(now)
        stopped = {heard.report.replica_id for heard in self._heard.values() if heard.report.resigns}
        if (
            replica_set.successor in alive
            or replica_set.in_sync <= alive.keys() | stopped
            or any(heard.since + self._takeover_after_s <= now for heard in self._candidates(replica_set, now))
        ):
            fit = [
                report
                for replica_id, report in alive.items()
                # A replica that is not a member was promoted by hand; its log does not matter.
                if self._heard[replica_id].has_all or replica_id not in replica_set.in_sync
            ]
            known = replace(replica_set, common_end=self._common_end)
            return elect(known, fit, lease_s=lease_s, has_stopped=self._has_stopped)
        return None

    def _candidates(self, replica_set: ReplicaSet, now: float) -> list[_Heard]:
        return [
            heard
            for heard in self._heard.values()
            if self._is_recent(heard, now) and heard.has_all and may_lead(replica_set, heard.report)
        ]

    def _is_recent(self, heard: _Heard, now: float) -> bool:
        return now - heard.at < self._takeover_after_s


def check_same(known: ReplicaReport, report: ReplicaReport) -> None:
    """Raise `BrokerConflict` unless both reports come from one process, or from one that restarted at its address."""
    if known.run != report.run and known.address != report.address and not known.resigns:
        raise BrokerConflict(
            f"replica {report.replica_id} of {report.broker_name} (cluster {report.cluster}) is at {known.address}, "
            f"but {report.address} says that it is the same replica: give one of them another --id, or stop it"
        )
