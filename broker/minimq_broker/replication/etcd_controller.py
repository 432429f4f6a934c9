"""The controller without a process of its own: a record in etcd, which every replica changes by the same rules.

These keys begin with `minimq/CLUSTER/BROKER/`:

    record          the `ReplicaSet`; replaced only by transactions that compare its revision
    reports/ID      the latest `Report` of a replica

A report is one transaction: it puts the key of the reporter and reads the record. So a master renews its lease by a
write that etcd has put in one order with all elections. A replica counts the lease of its master from the moment at
which it sees a new revision of the master's report; its election compares that revision, too, and fails if the master
has reported since. Leases of etcd itself are not used: they are renewed by its leader alone, which may have been
replaced without knowing it, they begin anew with every leader, and they are whole seconds long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

import msgspec

from minimq_broker.replication.etcd_link import EtcdLink, Outcome
from minimq_common import replica_set as rules
from minimq_common.errors import InvalidArgument, ReplicaSetChanged
from minimq_common.replica_set import ReplicaSet, Report
from minimq_common.roll_call import RollCall

#: Seconds between two looks at the record while an answer is held back: far cheaper than a watch is complicated, which
#: would have to be moved to another member of etcd, without a gap, when its own fails.
_LOOK_S = 0.2


class EtcdController:
    """Keeps the record in etcd. See the protocol `Controller` for what its methods promise.

    Args:
        endpoints: HOST:PORT of each member of etcd.
        term_lease_s: length of the leases of masters, in terms that begin from now on.

    Raises:
        InvalidArgument: the library for etcd is not installed.
    """

    def __init__(self, endpoints: Sequence[str], term_lease_s: float) -> None:
        # A report reaches the last of three members while the lease is good.
        self._link = EtcdLink(endpoints, timeout_s=max(term_lease_s / 5, 0.5))
        self._term_lease_s = term_lease_s
        self._views: dict[tuple[str, str], _View] = {}

    async def report(self, report: Report, *, known_version: int = 0, wait_s: float = 0.0) -> ReplicaSet | None:
        """Say that a replica lives, and return the record."""
        deadline = time.monotonic() + wait_s
        view = self._view(report.key)
        await view.look({view.report_key(report.replica_id): msgspec.json.encode(report)})
        if view.record is None and (founded := rules.found(report, self._term_lease_s)) is not None:
            await view.replace(founded)
        if view.record is not None and (renewed := rules.renew(view.record, report)) is not view.record:
            await view.replace(renewed)  # or it is, when the next report comes
        await view.elect()
        while not _is_news(view.record, report, known_version) and time.monotonic() < deadline:
            await view.wait(deadline)
        if view.record is not None:
            rules.check_not_ending(view.record, report)
        return view.record

    async def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        """Replace the in-sync set and return the record as it is then."""
        view = self._view(known.key)
        await view.look()
        while True:
            changed = rules.change_in_sync(view.existing(), known, in_sync)
            if changed is view.record or await view.replace(changed):
                return changed

    async def promote(self, cluster: str, broker_name: str, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
        """Make a replica the master, and return the record that says so."""
        view = self._view((cluster, broker_name))
        await view.look()
        deadline = time.monotonic() + rules.patience(view.existing().lease_s)
        while not view.is_alive(replica_id):
            if time.monotonic() >= deadline:
                raise InvalidArgument(f"replica {replica_id} of {view.record} does not report: start it first")
            await view.wait(deadline)
        while True:
            promoted = rules.promote(view.existing(), replica_id, unclean=unclean)
            if promoted is view.record or await view.replace(promoted):
                break
        while (record := view.existing()).successor is not None:
            await view.wait()
        if record.master_id != replica_id:
            raise ReplicaSetChanged(
                f"replica {replica_id} of {record} was not elected: it fell silent, and replica {record.master_id} "
                "is the master; look at its log, and try again"
            )
        return record

    async def close(self) -> None:
        """End the connections; calls under way fail."""
        await self._link.close()

    def _view(self, key: tuple[str, str]) -> _View:
        if key not in self._views:
            self._views[key] = _View(self._link, key, self._term_lease_s)
        return self._views[key]


class _View:
    """One replica set as this process sees it: the record, its revision, and whose reports it has seen change."""

    def __init__(self, link: EtcdLink, key: tuple[str, str], term_lease_s: float) -> None:
        self.record: ReplicaSet | None = None
        self._link = link
        self._term_lease_s = term_lease_s
        self._prefix = f"minimq/{key[0]}/{key[1]}/"
        self._record_key = self._prefix + "record"
        self._seen: Outcome | None = None
        self._call: RollCall | None = None

    def report_key(self, replica_id: int) -> str:
        return f"{self._prefix}reports/{replica_id}"

    def existing(self) -> ReplicaSet:
        if self.record is None:
            raise InvalidArgument(f"etcd has no {self._record_key}: no replica has reported yet")
        return self.record

    def is_alive(self, replica_id: int) -> bool:
        return self._call is not None and replica_id in self._call.alive(time.monotonic())

    async def look(self, puts: dict[str, bytes] | None = None) -> None:
        """Bring the view up to date, after some puts."""
        self._take(await self._link.transact({}, puts or {}, self._prefix))

    async def replace(self, record: ReplicaSet, unless_heard: int | None = None) -> bool:
        """Replace the record unless it has changed, or a replica has reported; say whether that was done."""
        assert self._seen is not None
        keys = [self._record_key]
        if unless_heard is not None:
            keys.append(self.report_key(unless_heard))
        expected = {key: self._seen.revision(key) for key in keys}
        outcome = await self._link.transact(expected, {self._record_key: msgspec.json.encode(record)}, self._prefix)
        self._take(outcome)
        return outcome.succeeded

    async def elect(self) -> None:
        """Elect a master if it is time; when somebody else was quicker, or the master is back, the view shows it."""
        if self.record is None or self._call is None:
            return
        elected = self._call.elect(self.record, time.monotonic(), self._term_lease_s)
        if elected is not None:
            await self.replace(elected, unless_heard=self.record.master_id)

    async def wait(self, deadline: float | None = None) -> None:
        """Look again after a moment, or when it may be time for an election."""
        now = time.monotonic()
        until = now + _LOOK_S if deadline is None else min(now + _LOOK_S, deadline)
        if self.record is not None and self._call is not None:
            until = min(until, self._call.next_look_at(self.record, now))
        await asyncio.sleep(max(0.0, until - now))
        await self.look()
        await self.elect()

    def _take(self, outcome: Outcome) -> None:
        """Note what was seen, at the time at which it was seen: whatever it was had happened before."""
        now = time.monotonic()
        if self._seen is not None and outcome.latest < self._seen.latest:
            return  # another look has overtaken this one
        before, self._seen = self._seen, outcome
        known, stored = self.record, outcome.stored.get(self._record_key)
        if stored is None:
            self.record = self._call = None
            return
        self.record = msgspec.json.decode(stored.value, type=ReplicaSet)
        if self._call is None or known is None:
            self._call = RollCall(self.record.lease_s, now)
        elif known.term != self.record.term:
            self._call.begin_term(self.record, now)
        for key in outcome.stored.keys() - {self._record_key}:
            # What was there at the first look may be old.
            if before is not None and before.revision(key) < outcome.revision(key):
                self._call.hear(self.record, msgspec.json.decode(outcome.stored[key].value, type=Report), now)


def _is_news(record: ReplicaSet | None, report: Report, known_version: int) -> bool:
    if report.resigns:
        return True  # it is about to leave
    if record is None:
        return False
    ending = record.successor is not None and record.is_master(report.replica_id, report.run)
    return record.version != known_version and not ending
