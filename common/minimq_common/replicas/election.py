"""The election of a master: the first one of a replica set, the next one, and one that is promoted by hand.

Pure: time is an argument. `replica_set.py` says when an authority may elect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from minimq_common.errors import (
    InvalidArgument,
    NotInSync,
    ReplicaSetChanged,
)
from minimq_common.replicas.replica_set import (
    MAX_REPLICAS,
    ReplicaReport,
    ReplicaSet,
)

#: By how much longer than the lease an authority waits, as a share of it.
_MARGIN = 0.1


def takeover_after(lease_s: float) -> float:
    """Return how long after the last report of a master another may be given a term, in seconds."""
    return lease_s * (1 + _MARGIN)


def _wait_after(lease_s: float) -> float:
    return math.ceil(1000 * takeover_after(lease_s)) / 1000


def found(report: ReplicaReport, lease_s: float) -> ReplicaSet | None:
    """Return the first record of a replica set, with the reporter as its master; None unless it may found one."""
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
        wait_s=_wait_after(lease_s) if report.last_term else 0.0,  # the records were lost, a master may be serving
    )


def what_was_promoted(replica_set: ReplicaSet, replica_id: int) -> tuple[bool, str]:
    """Return whether a promotion, which `promote` has recorded, may lose what was acknowledged, and a line about it."""
    is_unclean = replica_id not in replica_set.in_sync
    what = "unclean promotion, acknowledged messages that the replica does not have are lost"
    return is_unclean, (
        f"{what if is_unclean else 'promotion'} broker={replica_set.broker_name} cluster={replica_set.cluster} "
        f"to={replica_id} term={replica_set.term} in_sync={sorted(replica_set.in_sync)}"
    )


def promote(replica_set: ReplicaSet, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
    """Return the record with a replica that shall be the next master; the same one when it is the master already.

    From then on the lease of the master is renewed no more; once it is over, `elect` ends the promotion.
    """
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
        # Whoever is not a member is elected whatever it has.
        in_sync=replica_set.in_sync - {replica_id} if unclean else replica_set.in_sync,
        successor=replica_id,
        version=replica_set.version + 1,
    )


def check_promoted(replica_set: ReplicaSet, replica_id: int) -> None:
    """Check how the promotion of a replica ended."""
    if replica_set.master_id != replica_id:
        raise ReplicaSetChanged(
            f"replica {replica_id} of {replica_set} was not elected: it stopped reporting, and replica "
            f"{replica_set.master_id} is the master; look at its log, and try again"
        )


def may_lead(replica_set: ReplicaSet, report: ReplicaReport) -> bool:
    """Say whether a replica may be elected: it is in sync, and its log is still the one that made it a member.

    Whoever joins the set has the entry with which the term begins. A member whose log does not know the term has lost
    its data since. A master that is alone in its set may have ended before it began: its log has to be no older than
    when it was elected. A log with another identity is that of another replica set, whatever it knows; one without an
    identity lacks even the beginning of a set whose log has one.
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
    """Return the record with a new master, or None if there is no candidate.

    The promoted replica if it is alive and, unless it was promoted unclean, may lead. Else, of those that may lead, the
    one with the latest term, then the longest log, then the smallest id. To be called only when the lease of the
    present master is over.
    """
    reports = {report.replica_id: report for report in alive if not report.resigns}
    winner = None if replica_set.successor is None else reports.get(replica_set.successor)
    if winner is None or (winner.replica_id in replica_set.in_sync and not may_lead(replica_set, winner)):
        candidates = [report for report in reports.values() if may_lead(replica_set, report)]
        if not candidates:
            return None
        winner = min(candidates, key=lambda report: (-report.last_term, -report.log_end, report.replica_id))
    # If the record was put back to an old copy, a later term was given out. It must not have two beginnings in logs.
    # Whoever has begun a term has waited until nobody served in an older one; its next process serves after that one.
    is_next_run = winner.replica_id == replica_set.master_id and winner.last_term >= replica_set.term
    known = [each.last_term for each in reports.values() if each.log_id and each.log_id == replica_set.log_id]
    return replace(
        replica_set,
        # The log of a replica that was on its own, or unclean, may know a later term.
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
    """The reports of the replicas of one set, until an authority has a record of the set."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._heard: dict[int, tuple[ReplicaReport, float]] = {}
        self._decided_at = 0.0

    def hear(self, report: ReplicaReport, now: float) -> None:
        """Note a report. Raises `InvalidArgument` when as many other replicas report as there may be."""
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
        """Say whether any replica was heard of lately."""
        return bool(self._recent(now))

    def found(self, now: float) -> ReplicaSet | None:
        """Return the first record, or None while it is not time, or while none of the replicas founds a set.

        At once when no replica has a log. Otherwise when reports were collected for the time of a lease: the replica
        with the latest term leads, of several the one with the longest log. One that founds no set by itself may be
        that; the mode is that of one that does.
        """
        reports = [report for report in self._recent(now) if not report.resigns]
        founders = [report for report in reports if report.founds]
        if not founders or (now < self._decided_at and any(report.last_term for report in reports)):
            return None
        mode, first = min(founders, key=_rank), min(reports, key=_rank)
        if not first.last_term:
            first = mode
        return found(replace(first, founds=True, sync=mode.sync, min_in_sync=mode.min_in_sync), self._lease_s)

    def next_look_at(self, now: float) -> float:
        """Return when `found` may find what it did not find now, were no report to come; infinity for never."""
        return self._decided_at if self._decided_at > now else math.inf

    def _recent(self, now: float) -> list[ReplicaReport]:
        return [report for report, at in self._heard.values() if now - at < takeover_after(self._lease_s)]


def _rank(report: ReplicaReport) -> tuple[int, int, int]:
    return -report.last_term, -report.log_end, report.replica_id
