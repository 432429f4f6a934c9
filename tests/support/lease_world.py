"""A controller and three replicas in virtual time: links are cut and healed, processes hang, stop and crash.

The decisions are those of the real modules: `ControllerTable` at the controller, `TermLease`, `Confirmations` and
`InSync` at the replicas. What lies between them is played here as the services do it. The network may delay, lose and
repeat what it carries between any two. Clocks differ in their speed by less than a tenth.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from minimq_broker.replication.in_sync import InSync, InSyncLimits
from minimq_broker.replication.term_lease import Confirmations, TermLease
from minimq_common.errors import MinimqError, TermEnding
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet, check_not_ending
from minimq_nameserver.controller.table import ControllerTable
from support.reports import report

LEASE_S = 3.0
KEY = ("default", "broker-a")
#: The controller among the ends of links; replicas are their numbers.
CONTROLLER = -1
_REPORT_S, _REPORT_TIMEOUT_S = LEASE_S / 6, LEASE_S / 6 + 1.0
_FRAME_S, _SILENCE_S = LEASE_S / 6, 3.0
_CHANGE_TIMEOUT_S = 2.0
_LOOK_S = 0.2
_FAULTS = (
    *("cut", "cut", "cut", "one way", "one way", "isolate", "heal", "heal"),
    *("controller", "hang", "crash", "stop", "promote"),
)
_TIMEOUT = InSyncLimits(broken_s=1.0, lag_s=5.0)


class Violation(AssertionError):
    """Something happened that must not."""


@dataclass
class Lead:
    """A replica as the master of one term."""

    record: ReplicaSet
    lease: TermLease
    in_sync: InSync
    #: The number of the open change of the set, and when it was asked for.
    change: tuple[int, float] | None = None
    #: When each slave was heard last; it follows while it is here.
    heard: dict[int, float] = field(default_factory=dict)


class Replica:
    """One replica: a process that may be started anew, and a log that stays."""

    def __init__(self, replica_id: int, rate: float) -> None:
        self.replica_id = replica_id
        self.rate = rate
        self.log: list[int] = []
        self.last_term = 0
        self.run = 0
        self.alive = False
        self.hangs_until = 0.0
        self.known: ReplicaSet | None = None
        self.lead: Lead | None = None
        self.confirmations = Confirmations(0.0)
        self.lease_until = 0.0
        self.reporting: tuple[int, float] | None = None
        self.sent_at = 0.0
        self.frames_at = 0.0
        #: The term that it follows, and when it heard from its master.
        self.follows: tuple[int, float] | None = None


class LeaseWorld:
    """All processes, the links between them, and the events to come.

    Args:
        seed: decides what is open.
        broken: a rule that is broken on purpose: "wait", "every", "doubt" or "sent".

    Attributes:
        now: virtual time, in seconds.
        by_replicas: how often a master has served without a lease of its controller, with slaves in its set.
        terms: how many terms have begun.
    """

    def __init__(self, seed: str, broken: str = "") -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.broken = broken
        self.disk: dict[tuple[str, str], ReplicaSet] = {}
        self.table: ControllerTable | None = ControllerTable([], LEASE_S, 0.0)
        self.replicas = [Replica(each, self.random.choice([0.96, 1.0, 1.04])) for each in range(3)]
        self.cut: set[tuple[int, int]] = set()
        self.numbers = itertools.count(1)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.acknowledged: set[int] = set()
        self.by_replicas = self.terms = 0
        self.trace: list[str] = []

    def run(self, seconds: float) -> None:
        for replica in self.replicas:
            self.start(replica)
        self.every(0.2, 0.3, self.hold_elections)
        self.every(0.3, 3.0, self.disturb)
        while self.events[0][0] < seconds:
            self.now, _, event = heapq.heappop(self.events)
            event()

    def check(self) -> None:
        """Check that one serves at most; called whenever a right to serve may have begun."""
        serving = [each for each in self.replicas if self.serves(each)]
        if len(serving) > 1:
            names = [(each.replica_id, each.lead.record.term) for each in serving if each.lead]
            raise Violation(f"at {self.now:.3f} these serve (replica, term): {names}\n" + "\n".join(self.trace))

    def serves(self, replica: Replica) -> bool:
        if not replica.alive or self.now < replica.hangs_until or replica.lead is None:
            return False
        return self.clock(replica) < replica.lead.lease.until(self.electable(replica, replica.lead))

    def electable(self, replica: Replica, lead: Lead) -> set[int]:
        members = lead.in_sync.members if self.broken == "doubt" else lead.in_sync.electable
        others = set(members - {replica.replica_id})
        if self.broken == "every" and others:
            others.discard(min(others))
        return others

    # ---- time and network -----------------------------------------------------------------------

    def clock(self, replica: Replica) -> float:
        return self.now * replica.rate

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), event))

    def every(self, shortest: float, longest: float, event: Callable[[], None]) -> None:
        def again() -> None:
            event()
            self.at(self.now + self.random.uniform(shortest, longest), again)

        self.at(self.now + self.random.uniform(0, longest), again)

    def carry(self, start: int, end: int, event: Callable[[], None]) -> None:
        """Carry a message, unless the link is cut when it leaves or when it arrives."""
        if (start, end) in self.cut:
            return
        chance = self.random.random()
        late = 6.0 if chance < 0.03 else 0.5 if chance < 0.2 else 0.05
        for _ in range(2 if chance > 0.97 else 1):
            self.at(self.now + self.random.uniform(0.001, late), lambda: self._arrive(start, end, event))

    def _arrive(self, start: int, end: int, event: Callable[[], None]) -> None:
        if (start, end) in self.cut:
            return
        if end == CONTROLLER:
            if self.table is not None:
                event()
        else:
            self.do(self.replicas[end], event)

    def do(self, replica: Replica, event: Callable[[], None]) -> None:
        """Have a process do something, now or when it goes on."""
        if not replica.alive:
            return
        if self.now < replica.hangs_until:
            run = replica.run
            self.at(replica.hangs_until, lambda: self.do(replica, event) if replica.run == run else None)
        else:
            event()

    def say(self, text: str) -> None:
        self.trace.append(f"{self.now:8.3f} {text}")

    # ---- the controller -------------------------------------------------------------------------

    def hold_elections(self) -> None:
        if self.table is not None:
            for record in self.table.elections(self.now):
                self.decide(record)

    def decide(self, record: ReplicaSet) -> None:
        assert self.table is not None
        known = self.table.record(KEY)
        if record is known:
            return
        if known is None or record.term != known.term:
            self.say(f"elected {record.master_id} term {record.term} wait {record.wait_s}")
            winner = self.replicas[record.master_id]
            if winner.run == record.master_run and not self.acknowledged <= set(winner.log):
                raise Violation(f"{record.master_id} lacks what was acknowledged\n" + "\n".join(self.trace))
        elif record.in_sync != known.in_sync:
            self.say(f"in sync {sorted(record.in_sync)}")
        self.disk[KEY] = record
        self.table.adopt(record, self.now)

    def hear(self, said: ReplicaReport, number: int) -> None:
        table = self.table
        assert table is not None
        if table.record(KEY) is None:
            founded = table.found(said, self.now)
            if founded is None:
                return
            self.decide(founded)
        self.decide(table.hear(said, self.now))
        record = table.record(KEY)
        assert record is not None
        replica = self.replicas[said.replica_id]
        try:
            check_not_ending(record, said)
        except TermEnding:
            self.carry(CONTROLLER, said.replica_id, lambda: self.told_of_the_end(replica, number))
            return
        self.carry(CONTROLLER, said.replica_id, lambda: self.told(replica, number, record))

    def hear_change(self, replica: Replica, number: int, known: ReplicaSet, wanted: frozenset[int]) -> None:
        assert self.table is not None
        try:
            record = self.table.change_in_sync(known, wanted)
        except MinimqError:
            return
        self.decide(record)
        self.carry(CONTROLLER, replica.replica_id, lambda: self.changed(replica, number, record))

    # ---- replicas: reports ----------------------------------------------------------------------

    def start(self, replica: Replica) -> None:
        replica.run, replica.alive, replica.hangs_until = next(self.numbers), True, 0.0
        replica.known, replica.lead, replica.follows, replica.reporting = None, None, None, None
        replica.lease_until = 0.0
        replica.confirmations = Confirmations(self.clock(replica))
        self.live(replica, replica.run)

    def live(self, replica: Replica, run: int) -> None:
        """Do what a process does all the time, unless it has ended."""
        if replica.run != run or not replica.alive:
            return
        if self.now >= replica.hangs_until:
            self.report(replica)
            self.change_role(replica)
            if replica.lead is not None and self.now >= replica.frames_at:
                replica.frames_at = self.now + _FRAME_S
                self.send_frames(replica, replica.lead)
        delay_s = max(_LOOK_S * self.random.uniform(0.8, 1.2), replica.hangs_until - self.now)
        self.at(self.now + delay_s, lambda: self.live(replica, run))

    def as_reported(self, replica: Replica, *, resigns: bool = False) -> ReplicaReport:
        common_end = None
        if replica.lead is not None:
            common_end = replica.lead.in_sync.common_end(len(replica.log), self.now)
        return report(
            replica.replica_id,
            run=replica.run,
            sync=True,
            founds=replica.replica_id == 0,
            last_term=replica.last_term,
            log_end=len(replica.log),
            common_end=common_end,
            known=replica.known,
            resigns=resigns,
        )

    def report(self, replica: Replica) -> None:
        if replica.reporting is not None and self.now < replica.reporting[1]:
            return
        number = next(self.numbers)
        replica.reporting = number, self.now + self.random.uniform(_REPORT_S, _REPORT_TIMEOUT_S)
        said, sent_at = self.as_reported(replica), self.clock(replica)
        replica.sent_at = sent_at
        self.carry(replica.replica_id, CONTROLLER, lambda: self.hear(said, number))

    def told_of_the_end(self, replica: Replica, number: int) -> None:
        is_open = replica.reporting is not None and replica.reporting[0] == number
        if is_open and replica.lead is not None:
            replica.lead.lease.ending()

    def told(self, replica: Replica, number: int, record: ReplicaSet) -> None:
        if replica.reporting is None or replica.reporting[0] != number:
            return
        replica.reporting = number, self.now + self.random.uniform(0, _REPORT_S)
        if replica.known is not None and record.number < replica.known.number:
            return
        replica.known = record
        leads = record.is_master(replica.replica_id, replica.run)
        if leads:
            replica.lease_until = replica.sent_at + record.lease_s
        if replica.lead is not None:
            if leads and replica.lead.record.term == record.term:
                replica.lead.lease.renew(replica.lease_until)
                self.take(replica.lead, record)
            else:
                replica.lead = None
        replica.confirmations.accept(record.term)
        if replica.follows is not None and replica.follows[0] != record.term:
            replica.follows = None
        self.check()

    def take(self, lead: Lead, record: ReplicaSet) -> None:
        if record.term == lead.record.term and record.version > lead.record.version:
            lead.record = record
            lead.in_sync.recorded(record.in_sync, self.now)

    # ---- replicas: roles ------------------------------------------------------------------------

    def change_role(self, replica: Replica) -> None:
        record = replica.known
        if record is None:
            return
        if record.is_master(replica.replica_id, replica.run):
            if replica.lead is not None:
                self.lead(replica, replica.lead)
            elif self.broken == "wait" or self.clock(replica) >= replica.confirmations.leads_from(record.wait_s):
                self.begin(replica, record)
        elif record.master_id != replica.replica_id and (
            replica.follows is None or self.now - replica.follows[1] > _SILENCE_S
        ):
            term, run, master = record.term, replica.run, self.replicas[record.master_id]
            replica.follows = term, self.now
            self.carry(replica.replica_id, master.replica_id, lambda: self.attach(master, replica, run, term))

    def begin(self, replica: Replica, record: ReplicaSet) -> None:
        replica.follows = None
        replica.last_term = record.term
        replica.log.append(-record.term)
        in_sync = InSync(replica.replica_id, record.in_sync, _TIMEOUT, self.now, sync=True)
        replica.lead = Lead(record, TermLease(record.lease_s, replica.lease_until), in_sync)
        self.terms += 1
        self.check()
        self.say(f"replica {replica.replica_id} leads term {record.term}")

    def lead(self, replica: Replica, lead: Lead) -> None:
        """Do what a master does all the time."""
        for slave, at in list(lead.heard.items()):
            if self.now - at > _SILENCE_S:
                del lead.heard[slave]
                lead.in_sync.detach(slave, self.now)
        confirmed = lead.in_sync.confirm(len(replica.log), self.now)
        if self.serves(replica):
            without = self.clock(replica) >= lead.lease.controller_until
            self.by_replicas += without and len(lead.in_sync.electable) > 1
            self.acknowledged.update(entry for entry in replica.log[:confirmed] if entry > 0)
            if len(replica.log) < 30:
                replica.log.append(next(self.numbers))
        if lead.change is not None and self.now - lead.change[1] < _CHANGE_TIMEOUT_S:
            return
        lead.change = None
        wanted = lead.in_sync.wanted(self.now)
        if wanted == lead.in_sync.members and not lead.in_sync.is_in_doubt:
            return
        number, known = next(self.numbers), lead.record
        lead.in_sync.ask(wanted)
        lead.change = number, self.now
        self.carry(replica.replica_id, CONTROLLER, lambda: self.hear_change(replica, number, known, wanted))

    def changed(self, replica: Replica, number: int, record: ReplicaSet) -> None:
        lead = replica.lead
        if lead is not None and lead.change is not None and lead.change[0] == number:
            lead.change = None
            self.take(lead, record)
            self.check()

    # ---- replicas: the stream between them ------------------------------------------------------

    def attach(self, master: Replica, slave: Replica, run: int, term: int) -> None:
        lead = master.lead
        if lead is None or lead.record.term != term or slave.run != run:
            return
        slave_id = slave.replica_id
        common = 0
        for mine, theirs in zip(master.log, slave.log, strict=False):
            if mine != theirs:
                break
            common += 1
        lead.heard[slave_id] = self.now
        lead.in_sync.attach(slave_id, common, self.now)
        self.send_frame(master, lead, slave_id)

    def send_frames(self, master: Replica, lead: Lead) -> None:
        for slave_id in list(lead.heard):
            self.send_frame(master, lead, slave_id)

    def send_frame(self, master: Replica, lead: Lead, slave_id: int) -> None:
        term, asked_at = lead.record.term, lead.lease.ask(self.clock(master))
        log, slave = list(master.log), self.replicas[slave_id]
        lead.in_sync.told(slave_id, len(log), self.now)
        run = slave.run
        self.carry(master.replica_id, slave_id, lambda: self.receive(slave, run, master, term, asked_at, log))

    def receive(
        self, slave: Replica, run: int, master: Replica, term: int, asked_at: float | None, log: list[int]
    ) -> None:
        if slave.run != run or slave.follows is None or slave.follows[0] != term:
            return
        slave.follows = term, self.now
        if len(log) >= len(slave.log) or log != slave.log[: len(log)]:  # a frame may be overtaken
            slave.log, slave.last_term = log, term
        received_at = self.clock(slave)
        confirms = asked_at if asked_at is not None and slave.confirmations.confirm(term, received_at) else None
        end = len(slave.log)
        self.carry(
            slave.replica_id, master.replica_id, lambda: self.confirmed(master, slave.replica_id, term, confirms, end)
        )

    def confirmed(self, master: Replica, slave_id: int, term: int, confirms: float | None, end: int) -> None:
        lead = master.lead
        if lead is None or lead.record.term != term or slave_id not in lead.heard:
            return
        lead.heard[slave_id] = self.now
        lead.in_sync.acknowledged(slave_id, end, self.now)
        if confirms is not None:
            lead.lease.confirmed(slave_id, self.clock(master) if self.broken == "sent" else confirms)
            self.check()

    # ---- what goes wrong ------------------------------------------------------------------------

    def disturb(self) -> None:
        chance = self.random
        kind = chance.choice(_FAULTS)
        replica = chance.choice(self.replicas)
        ends = chance.sample([CONTROLLER, 0, 1, 2], 2)
        if kind in ("cut", "one way"):
            self.cut_link(ends[0], ends[1], one_way=kind == "one way")
        elif kind == "isolate":
            for other in {CONTROLLER, 0, 1, 2} - {ends[0]}:
                if chance.random() < 0.7:
                    self.cut_link(ends[0], other, one_way=False)
        elif kind == "heal":
            self.cut.clear()
            self.say("healed")
        elif kind == "controller":
            self.restart_controller()
        elif kind == "hang":
            replica.hangs_until = self.now + chance.uniform(0.5, 8)
            self.at(replica.hangs_until, self.check)
            self.say(f"{replica.replica_id} hangs until {replica.hangs_until:.3f}")
        elif kind in ("crash", "stop"):
            self.restart(replica, resigns=kind == "stop")
        else:
            self.promote(replica)

    def promote(self, replica: Replica) -> None:
        if self.table is not None:
            with contextlib.suppress(MinimqError):
                self.decide(self.table.promote(KEY, replica.replica_id, unclean=False, now=self.now))
                self.say(f"promote {replica.replica_id}")

    def cut_link(self, one: int, other: int, *, one_way: bool) -> None:
        ways = [(one, other)] if one_way else [(one, other), (other, one)]
        self.cut.update(ways)
        self.say(f"cut {ways}")
        for way in ways:
            self.at(self.now + self.random.uniform(0.5, 15), lambda way=way: self.cut.discard(way))  # type: ignore[misc]

    def restart_controller(self) -> None:
        self.table = None
        self.say("the controller is down")

        def start() -> None:
            self.table = ControllerTable(self.disk.values(), LEASE_S, self.now)
            self.say("the controller is up")

        self.at(self.now + self.random.choice([0.1, 1.0, 8.0]), lambda: start() if self.table is None else None)

    def restart(self, replica: Replica, *, resigns: bool) -> None:
        if not replica.alive or self.now < replica.hangs_until:
            return
        self.say(f"{replica.replica_id} {'stops' if resigns else 'crashes'}")
        if resigns:
            replica.lead, said, number = None, self.as_reported(replica, resigns=True), next(self.numbers)
            self.carry(replica.replica_id, CONTROLLER, lambda: self.hear(said, number))
        replica.alive, replica.lead = False, None
        self.at(self.now + self.random.choice([0.3, 1.0, 6.0]), lambda: self.start(replica))
