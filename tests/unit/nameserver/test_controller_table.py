"""The controller against replicas whose reports and answers are lost, late or repeated, and whose clocks differ."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minimq_common.errors import MinimqError, TermEnding
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet, check_not_ending
from minimq_nameserver.controller.table import ControllerTable
from support.reports import report

LEASE_S = 10.0
KEY = ("default", "broker-a")


@dataclass
class Replica:
    """A replica as far as the controller matters: what it has, what it was told, and how long it believes to lead."""

    replica_id: int
    rate: float  # seconds on its clock in one true second
    run: int = 1
    last_term: int = 0
    entries: set[int] = field(default_factory=set)
    known: ReplicaSet | None = None
    wanted: frozenset[int] = frozenset()  # an in-sync set that it asked for, and that may hold already
    lease_until: float = -1.0  # true time
    stopped: bool = False
    cut_until: float = -1.0
    common_end: int | None = None  # as the master: as far as all members are the same

    def is_master(self, now: float) -> bool:
        return not self.stopped and now < self.lease_until

    def report(self, *, resigns: bool = False) -> ReplicaReport:
        log_end = len(self.entries)
        values = {"run": self.run, "last_term": self.last_term, "log_end": log_end, "resigns": resigns}
        return report(self.replica_id, common_end=self.common_end, known=self.known, **values)

    def learn(self, record: ReplicaSet) -> None:
        if self.known is None or record.number > self.known.number:
            self.known, self.wanted = record, frozenset()

    def take(self, record: ReplicaSet, asked: ReplicaReport, sent_at: float) -> None:
        """Believe the answer to a report, whenever it comes and whichever came before."""
        if asked.run != self.run:
            return  # it was for the process before this one
        self.learn(record)
        if record.is_master(self.replica_id, self.run):
            self.lease_until = max(self.lease_until, sent_at + record.lease_s / self.rate)
            if record.term > self.last_term:
                self.last_term, self.common_end = record.term, None


class World:
    """A controller, three replicas, and a network and an operator that do all they can to confuse them.

    Masters write entries; one is confirmed when all that the master knows to be in sync have it. It checks, all
    the time, that there is one master, and at every clean election, that the winner has all that was ever confirmed.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.disk: dict[tuple[str, str], ReplicaSet] = {}
        self.table = ControllerTable([], LEASE_S, self.now)
        self.replicas = [Replica(each, self.random.choice([0.96, 1.0, 1.04])) for each in range(3)]
        self.runs = itertools.count(2)
        self.numbers = itertools.count()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.terms: dict[int, tuple[int, int]] = {}
        self.confirmed: set[int] = set()
        self.unclean: set[int] = set()
        self.elections = 0

    def run(self, events: int) -> None:
        for replica in self.replicas:
            self.every(0.3, 3.0, lambda replica=replica: self.send(replica))  # type: ignore[misc]
        self.every(0.2, 2.0, self.look_after_the_set)
        self.every(0.2, 1.0, self.write)
        self.every(0.05, 1.0, self.tick)
        self.every(2.0, 20.0, self.disturb)
        for _ in range(events):
            self.now, _, event = heapq.heappop(self.events)
            event()
            masters = [each.replica_id for each in self.replicas if each.is_master(self.now)]
            assert len(masters) <= 1, f"replicas {masters} all believe to hold the lease, at {self.now}"
            assert self.table.record(KEY) == self.disk.get(KEY)

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), event))

    def every(self, shortest: float, longest: float, event: Callable[[], None]) -> None:
        def again() -> None:
            event()
            self.at(self.now + self.random.uniform(shortest, longest), again)

        self.at(self.random.uniform(0, longest), again)

    def travel(self, event: Callable[[], None]) -> None:
        """Carry a message: mostly soon, sometimes late, twice or never."""
        for _ in range(self.random.choices([1, 0, 2], [8, 1, 1])[0]):
            late = self.random.random() < 0.05
            self.at(self.now + self.random.uniform(0, 25.0 if late else 0.2), event)

    # ---- The controller --------------------------------------------------------------------------

    def tick(self) -> None:
        for record in self.table.elections(self.now):
            self.decide(record)

    def decide(self, record: ReplicaSet) -> None:
        known = self.table.record(KEY)
        if record is known:
            return
        assert record.version > (known.version if known else 0)
        if known is None or (record.term, record.master_id, record.master_run) != (
            known.term,
            known.master_id,
            known.master_run,
        ):
            assert record.term not in self.terms, f"term {record.term} was given twice"
            self.terms[record.term] = record.master_id, record.master_run
            self.elections += 1
            winner = self.replicas[record.master_id]
            assert known is None or record.master_id in known.in_sync | self.unclean
            if record.master_id in self.unclean:
                self.confirmed &= winner.entries
            if record.master_run == winner.run:  # else it has gone, and leads nothing
                assert winner.entries >= self.confirmed, f"replica {record.master_id} lacks what was confirmed"
                self.unclean.clear()
        self.disk[KEY] = record
        self.table.adopt(record, self.now)

    def receive(self, said: ReplicaReport, sent_at: float) -> None:
        assert self.table.repaired(said) is None  # nothing was ever lost
        if self.table.record(KEY) is None:
            founded = self.table.found(said, self.now)
            if founded is None:
                return
            self.decide(founded)
        self.decide(self.table.hear(said, self.now))
        record = self.table.record(KEY)
        assert record is not None
        try:
            check_not_ending(record, said)
        except TermEnding:
            return
        replica = self.replicas[said.replica_id]
        if self.now >= replica.cut_until:
            self.travel(lambda: replica.take(record, said, sent_at))

    # ---- The replicas ----------------------------------------------------------------------------

    def send(self, replica: Replica) -> None:
        if not replica.stopped and self.now >= replica.cut_until:
            said, sent_at = replica.report(), self.now
            self.travel(lambda: self.receive(said, sent_at))

    def master(self) -> Replica | None:
        return next((each for each in self.replicas if each.is_master(self.now)), None)

    def follows(self, replica: Replica, master: Replica) -> bool:
        """A slave that was told of a later term acknowledges the earlier one no more."""
        assert master.known is not None
        told = replica.known.term if replica.known else 0
        return replica is master or (
            not replica.stopped and self.now >= replica.cut_until and told <= master.known.term
        )

    def write(self) -> None:
        master = self.master()
        if master is None or master.known is None:
            return
        entry = next(self.numbers)
        master.entries.add(entry)
        members = [self.replicas[each] for each in master.known.in_sync | master.wanted]
        for member in members:
            if self.follows(member, master) and member.last_term == master.known.term:
                member.entries = set(master.entries)
        if all(entry in member.entries for member in members):
            self.confirmed.add(entry)
            master.common_end = len(master.entries)

    def look_after_the_set(self) -> None:
        """The master takes in who is there and leaves out who is not; its call may be lost, or its answer."""
        master = self.master()
        if master is None or master.known is None or not master.known.is_master(master.replica_id, master.run):
            return
        there = [each for each in self.replicas if self.follows(each, master)]
        for replica in there:
            if replica.last_term < master.known.term or replica is not master:
                replica.entries, replica.last_term = set(master.entries), master.known.term
        wanted = frozenset(each.replica_id for each in there) | {master.replica_id}
        if wanted == master.known.in_sync:
            return
        master.wanted |= wanted
        if self.random.random() < 0.1:
            return
        try:
            record = self.table.change_in_sync(master.known, wanted)
        except MinimqError:
            return
        self.decide(record)
        if self.random.random() < 0.9:
            master.learn(record)

    # ---- What goes wrong -------------------------------------------------------------------------

    def disturb(self) -> None:
        replica = self.random.choice(self.replicas)
        kind = self.random.choice(["cut", "cut", "crash", "crash", "stop", "controller", "promote", "unclean"])
        if kind == "cut":
            replica.cut_until = self.now + self.random.uniform(1, 30)
        elif kind == "crash":
            self.restart(replica, loses_data=self.random.random() < 0.3)
        elif kind == "stop":
            replica.stopped = True
            said, now = replica.report(resigns=True), self.now
            self.travel(lambda: self.receive(said, now))
            self.at(self.now + self.random.uniform(0, 20), lambda: self.restart(replica, loses_data=False))
        elif kind == "controller":
            self.table = ControllerTable(self.disk.values(), LEASE_S, self.now)
        else:
            self.promote(replica, unclean=kind == "unclean")

    def restart(self, replica: Replica, *, loses_data: bool) -> None:
        replica.run, replica.known, replica.wanted = next(self.runs), None, frozenset()
        replica.lease_until, replica.stopped, replica.common_end = -1.0, False, None
        record = self.table.record(KEY)
        alone = record is not None and record.in_sync == {replica.replica_id}
        if loses_data and not alone:  # nothing helps when the only one loses its data
            replica.entries, replica.last_term = set(), 0

    def promote(self, replica: Replica, *, unclean: bool) -> None:
        before = self.table.record(KEY)
        try:
            record = self.table.promote(KEY, replica.replica_id, unclean=unclean, now=self.now)
        except MinimqError:
            return
        if record is not before and unclean:
            self.unclean.add(replica.replica_id)
        self.decide(record)


@given(seed=st.integers(min_value=0))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_there_is_one_master_and_it_has_what_was_confirmed(seed: int) -> None:
    world = World(seed)
    world.run(5_000)
    assume(world.elections > 5 and world.confirmed)  # else too little has happened to prove anything


def test_a_decision_holds_only_once_it_is_adopted() -> None:
    table = ControllerTable([], LEASE_S, 0)
    assert table.found(report(), 0) == table.found(report(), 0)
    assert table.record(KEY) is None
    founded = table.found(report(), 0)
    assert founded is not None
    table.adopt(founded, 0)
    moved = table.hear(report(address="127.0.0.1:1"), 0)
    assert table.record(KEY) is founded
    assert moved.version == founded.version + 1


def test_how_a_replica_set_is() -> None:
    table = ControllerTable([], LEASE_S, 0)
    founded = table.found(report(), 0)
    assert founded is not None
    table.adopt(founded, 0)
    table.hear(report(last_term=1), 4)
    [status] = table.statuses(7)
    assert (status.record, status.lease_age_s, status.elections) == (founded, 3, 1)
    table.adopt(table.hear(report(run=9, last_term=1), 15), 15)
    [status] = table.statuses(16)
    assert (status.record.term, status.lease_age_s, status.elections) == (2, 1, 2)
    anew = ControllerTable([status.record], LEASE_S, 20)
    assert [(each.lease_age_s, each.elections) for each in anew.statuses(22)] == [(2, 0)]
