"""The choice of the first master of a replica set that has no record.

Most often the set is new. But what was recorded may be lost, and then the replicas have logs: the one that has most is
to be the master, not the one that is there first, since all others take back what the master does not have.

Pure: time is an argument, in seconds of any clock that never goes back.
"""

from __future__ import annotations

import math
from dataclasses import replace

from minimq_common.errors import InvalidArgument
from minimq_common.replicas.election import found, takeover_after
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from minimq_common.wire.replica_bounds import MAX_REPLICAS


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
