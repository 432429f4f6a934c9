"""All replica sets of a controller, and the decisions that follow from reports."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_common.replicas import election
from minimq_common.replicas import replica_set as rules
from minimq_common.replicas.election import Bootstrap, ReplicaLiveness
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from minimq_nameserver.bounds import MAX_BOOTSTRAPS, MAX_REPLICA_SETS

#: Cluster and broker name.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ReplicaSetStatus:
    record: ReplicaSet
    #: Seconds since the master renewed its lease.
    lease_age_s: float
    elections: int


class ControllerTable:
    """The records and the liveness of their replicas. Pure: time is an argument."""

    def __init__(self, records: Iterable[ReplicaSet], lease_s: float, now: float) -> None:
        self._lease_s = lease_s
        self._records: dict[Key, ReplicaSet] = {}
        self._liveness: dict[Key, ReplicaLiveness] = {}
        self._bootstraps: dict[Key, Bootstrap] = {}  # ordered by their latest report, oldest first
        self._elections: dict[Key, int] = {}
        for record in records:
            self._records[record.key] = record
            self._liveness[record.key] = ReplicaLiveness(record, now)

    def record(self, key: Key) -> ReplicaSet | None:
        return self._records.get(key)

    def repaired(self, report: ReplicaReport) -> ReplicaSet | None:
        """Return the record to restore if a replica knows a later one than the table has; else None."""
        record = self._records.get(report.key)
        repaired = rules.repaired(record, report)
        return repaired if repaired is not record else None

    def found(self, report: ReplicaReport, now: float, coming: int = 0) -> ReplicaSet | None:
        """Note a report of a set without a record; return its first record, or None while undecided."""
        bootstrap = self._bootstraps.pop(report.key, None)
        if bootstrap is None:
            self._check_room(report, now, coming)
            bootstrap = Bootstrap(self._lease_s)
        self._bootstraps[report.key] = bootstrap
        bootstrap.hear(report, now)
        return bootstrap.found(now)

    def hear(self, report: ReplicaReport, now: float) -> ReplicaSet:
        """Note a report of a set with a record, and return the new record. Renews the lease of a master, if allowed."""
        record, liveness = self._records[report.key], self._liveness[report.key]
        liveness.check_alone(report, now)
        renewed = rules.renew(record, report)
        liveness.hear(record, report, now)
        record = liveness.completed(renewed, record)
        return liveness.elect(record, now, self._lease_s) or record

    def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        """Return the record with another in-sync set. Raises `InvalidArgument`, and as `rules.change_in_sync`."""
        record = self._find(known.key)
        return self._liveness[known.key].completed(rules.change_in_sync(record, known, in_sync), record)

    def promote(self, key: Key, replica_id: int, *, unclean: bool, now: float) -> ReplicaSet:
        record, liveness = self._find(key), self._liveness[key]
        if replica_id not in liveness.alive(now):
            raise InvalidArgument(f"replica {replica_id} of {record} does not report to the controller: start it first")
        return liveness.completed(election.promote(record, replica_id, unclean=unclean), record)

    def elections(self, now: float) -> list[ReplicaSet]:
        elected = (self.election(key, now) for key in (*self._liveness, *self._bootstraps))
        return [record for record in elected if record is not None]

    def election(self, key: Key, now: float) -> ReplicaSet | None:
        """Return the record of a replica set with a new master, if an election is due; else None."""
        liveness = self._liveness.get(key)
        if liveness is not None:
            return liveness.elect(self._records[key], now, self._lease_s)
        bootstrap = self._bootstraps.get(key)
        return bootstrap.found(now) if bootstrap is not None else None

    def next_look_at(self, now: float) -> float:
        """Return when `elections` may next change without further reports; infinity for never."""
        elections = [liveness.next_look_at(self._records[key], now) for key, liveness in self._liveness.items()]
        return min([*elections, *(each.next_look_at(now) for each in self._bootstraps.values())], default=math.inf)

    def adopt(self, record: ReplicaSet, now: float) -> None:
        """Store a record. With a new term, a lease begins."""
        known = self._records.get(record.key)
        if known is None or known.term != record.term:
            self._elections[record.key] = self._elections.get(record.key, 0) + 1
        self._records[record.key] = record
        if known is None:
            self._bootstraps.pop(record.key, None)
            self._liveness[record.key] = ReplicaLiveness(record, now)
        else:
            self._liveness[record.key].adopt(record, now)

    def statuses(self, now: float) -> list[ReplicaSetStatus]:
        """Return the status of each replica set, sorted by key."""
        return [
            ReplicaSetStatus(record, self._liveness[key].lease_age(now), self._elections.get(key, 0))
            for key, record in sorted(self._records.items())
        ]

    def _check_room(self, report: ReplicaReport, now: float, coming: int) -> None:
        known = len(self._records) + coming
        if known >= MAX_REPLICA_SETS:
            raise SystemBusy(
                f"the controller has records of {known} brokers, which is the limit: there is no room "
                f"for {report.broker_name}"
            )
        while self._bootstraps and not self._bootstraps[oldest := next(iter(self._bootstraps))].is_recent(now):
            del self._bootstraps[oldest]
        if len(self._bootstraps) >= MAX_BOOTSTRAPS:
            raise SystemBusy(f"{len(self._bootstraps)} brokers without a record report, which is the limit")

    def _find(self, key: Key) -> ReplicaSet:
        record = self._records.get(key)
        if record is None:
            cluster, broker_name = key
            raise InvalidArgument(
                f"broker {broker_name} of cluster {cluster} is not known to this controller: none has reported yet"
            )
        return record
