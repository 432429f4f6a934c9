"""The replicas of a set that have reported lately, and the time at which one of them has to be elected.

Pure: time is an argument, in seconds of any clock that never goes back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from minimq_common.errors import BrokerConflict
from minimq_common.replicas.election import elect, may_lead, takeover_after
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet, leads_term, renews_lease


@dataclass(frozen=True, slots=True)
class _Heard:
    """The latest report of a replica."""

    report: ReplicaReport
    at: float
    since: float
    #: Its log goes at least as far as the master had said, by then, that every member's goes.
    has_all: bool


class ReplicaLiveness:
    """The latest reports of the replicas of one set; they are forgotten with the authority's process.

    It begins as if the master had just renewed its lease: an authority that has just started does not know its grants.

    The master says with each report up to where every member has the log. A member whose log ends before that is an old
    copy of what the member was, and is not elected. Each report is measured when it comes, by what the master had said
    until then: it is no fault that the log has grown since.
    """

    def __init__(self, replica_set: ReplicaSet, now: float) -> None:
        self._heard: dict[int, _Heard] = {}
        self._common_end = 0
        self._leadership: tuple[int, int, int] | None = None
        self.adopt(replica_set, now)

    def adopt(self, replica_set: ReplicaSet, now: float) -> None:
        """Go by another record from now on; with a new master, or none, the time of a lease begins."""
        if replica_set.leadership != self._leadership:
            self._leadership = replica_set.leadership
            self._takeover_after_s = takeover_after(replica_set.lease_s)
            self._lease_over_at = now + self._takeover_after_s
            self._common_end = replica_set.common_end
            self._has_stopped = False
        elif replica_set.sync:  # what every member has is never less than it was
            self._common_end = max(self._common_end, replica_set.common_end)
        else:
            self._common_end = replica_set.common_end

    def completed(self, changed: ReplicaSet, before: ReplicaSet) -> ReplicaSet:
        """Return a changed record of the same term with what the master has said; the same one if nothing changed.

        What the master says is not recorded by itself: that would be a write for every report.
        """
        if changed is before:
            return before
        # Whoever joins an asynchronous master may be behind; how far is told by the next report.
        is_open = not changed.sync and not changed.in_sync <= before.in_sync
        return replace(changed, common_end=0 if is_open else self._common_end)

    def check_alone(self, report: ReplicaReport, now: float) -> None:
        """Check that a replica has no other process, which is recognized by its address: one that restarts keeps it."""
        known = self._heard.get(report.replica_id)
        if known is not None and self._is_recent(known, now):
            check_same(known.report, report)

    def hear(self, replica_set: ReplicaSet, report: ReplicaReport, now: float) -> None:
        """Note a report; that of the master renews its lease, or ends it when it resigns."""
        known = self._heard.get(report.replica_id)
        goes_on = known is not None and known.report.run == report.run and self._is_recent(known, now)
        # A log that knows a later term than the record is not measured by it.
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
        """Note up to where every member has the log, if it is the master who reports; it need not live any more."""
        if report.common_end is not None and leads_term(replica_set, report):
            self._common_end = report.common_end

    def lease_age(self, now: float) -> float:
        """Return the time since the lease of the master was renewed; one that was given up counts as over."""
        return now - (self._lease_over_at - self._takeover_after_s)

    def alive(self, now: float) -> Mapping[int, ReplicaReport]:
        """Return the latest report of each replica that was heard of lately and goes on, by replica id."""
        return {
            replica_id: heard.report
            for replica_id, heard in self._heard.items()
            if self._is_recent(heard, now) and not heard.report.resigns
        }

    def next_look_at(self, replica_set: ReplicaSet, now: float) -> float:
        """Return when `elect` may find what it did not find now, were no report to come; infinity for never."""
        waited = (heard.since + self._takeover_after_s for heard in self._candidates(replica_set, now))
        return min((at for at in (self._lease_over_at, *waited) if at > now), default=math.inf)

    def elect(self, replica_set: ReplicaSet, now: float, lease_s: float | None = None) -> ReplicaSet | None:
        """Return the record with a new master, or None while it is too early or there is no candidate.

        Not before the lease of the present master is over. After that at once if every member of the in-sync set is
        there, or has said that it stops, or if a candidate has been there for the time of a lease: when all of them
        come back after a failure of everything, the one with the longest log is to win, not the quickest.
        """
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
                # Who is no member is promoted by hand, whatever it has.
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
    """Check that the one who reports is the one who reported lately, or comes after it."""
    if known.run != report.run and known.address != report.address and not known.resigns:
        raise BrokerConflict(
            f"replica {report.replica_id} of {report.broker_name} (cluster {report.cluster}) is at {known.address}, "
            f"but {report.address} says that it is the same replica: give one of them another --id, or stop it"
        )
