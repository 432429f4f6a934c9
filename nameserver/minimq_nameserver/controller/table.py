"""All replica sets of a controller, and what becomes of a report."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from minimq_common import replica_set as rules
from minimq_common.errors import InvalidArgument
from minimq_common.founding import Founding
from minimq_common.replica_set import ReplicaSet, Report
from minimq_common.roll_call import RollCall

#: Cluster and broker name.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Standing:
    """How a replica set is.

    Attributes:
        record: what is decided.
        lease_age_s: seconds since the master renewed its lease.
        elections: how many masters were named since the start.
    """

    record: ReplicaSet
    lease_age_s: float
    elections: int


class ControllerTable:
    """The records, and who was heard of. Pure: time is an argument.

    A method that decides returns the record as it shall be. It holds from `adopt` on, which is called when it is on
    disk: a decision that could not be written was never made.

    Args:
        records: what was decided before the start.
        lease_s: length of the leases in terms that begin from now on.
        now: the time.
    """

    def __init__(self, records: Iterable[ReplicaSet], lease_s: float, now: float) -> None:
        self._lease_s = lease_s
        self._records: dict[Key, ReplicaSet] = {}
        self._calls: dict[Key, RollCall] = {}
        self._foundings: dict[Key, Founding] = {}
        self._elections: dict[Key, int] = {}
        for record in records:
            self._records[record.key] = record
            self._calls[record.key] = RollCall(record, now)

    def record(self, key: Key) -> ReplicaSet | None:
        """Return what is decided about a replica set."""
        return self._records.get(key)

    def master_lives(self, key: Key, now: float) -> bool:
        """Say whether the lease of the master of a replica set may not be over yet."""
        call = self._calls.get(key)
        return call is not None and call.master_lives(now)

    def mended(self, report: Report) -> ReplicaSet | None:
        """Return the record as it shall be, when a replica was told a later one than there is; else None."""
        record = self._records.get(report.key)
        mended = rules.mended(record, report)
        return mended if mended is not record else None

    def found(self, report: Report, now: float) -> ReplicaSet | None:
        """Note a report of a replica set that has no record, and return the first one; None while there is none."""
        founding = self._foundings.setdefault(report.key, Founding(self._lease_s))
        founding.hear(report, now)
        return founding.found(now)

    def hear(self, report: Report, now: float) -> ReplicaSet:
        """Note a report of a replica set that has a record, and return the record as it shall be.

        The report of a master that may renew its lease renews it.

        Raises:
            BrokerConflict: another process has the same id.
        """
        record, call = self._records[report.key], self._calls[report.key]
        call.check_alone(report, now)
        call.hear(record, report, now)
        record = call.completed(rules.renew(record, report), record)
        return call.elect(record, now, self._lease_s) or record

    def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        """Return the record with another in-sync set. Raises as the function of that name, and `InvalidArgument`."""
        record = self._find(known.key)
        return self._calls[known.key].completed(rules.change_in_sync(record, known, in_sync), record)

    def promote(self, key: Key, replica_id: int, *, unclean: bool, now: float) -> ReplicaSet:
        """Return the record with the replica that shall be the next master.

        Raises:
            InvalidArgument: there is no record, or the replica has not been heard of lately.
            NotInSync, ReplicaSetChanged: as the function of that name says.
        """
        record, call = self._find(key), self._calls[key]
        if replica_id not in call.alive(now):
            raise InvalidArgument(f"replica {replica_id} of {record} does not report to the controller: start it first")
        return call.completed(rules.promote(record, replica_id, unclean=unclean), record)

    def elections(self, now: float) -> list[ReplicaSet]:
        """Return the records of those replica sets that get another master now, or their first."""
        elected = [call.elect(self._records[key], now, self._lease_s) for key, call in self._calls.items()]
        founded = [founding.found(now) for founding in self._foundings.values()]
        return [record for record in (*elected, *founded) if record is not None]

    def next_look_at(self, now: float) -> float:
        """Return when `elections` may have something new, were no report to come; infinity for never."""
        elections = [call.next_look_at(self._records[key], now) for key, call in self._calls.items()]
        return min([*elections, *(each.next_look_at(now) for each in self._foundings.values())], default=math.inf)

    def adopt(self, record: ReplicaSet, now: float) -> None:
        """Make a record what is decided; with a new term, a lease begins."""
        known = self._records.get(record.key)
        if known is None or known.term != record.term:
            self._elections[record.key] = self._elections.get(record.key, 0) + 1
        self._records[record.key] = record
        if known is None:
            self._foundings.pop(record.key, None)
            self._calls[record.key] = RollCall(record, now)
        else:
            self._calls[record.key].adopt(record, now)

    def standings(self, now: float) -> list[Standing]:
        """Return how each replica set is."""
        return [
            Standing(record, self._calls[key].lease_age(now), self._elections.get(key, 0))
            for key, record in sorted(self._records.items())
        ]

    def _find(self, key: Key) -> ReplicaSet:
        record = self._records.get(key)
        if record is None:
            cluster, broker_name = key
            raise InvalidArgument(
                f"broker {broker_name} of cluster {cluster} is not known to this controller: none has reported yet"
            )
        return record
