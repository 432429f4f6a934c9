"""That a consumer group never gives one queue to two: real processes that come, leave, die and hang under a load.

Every member writes down what it was handed. Afterwards the journals are compared with what is stored.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import click
from group_journals import JournalReader, Verdict, Waits, deliveries, judge, waits
from group_process import Place, Setting, member, member_without_leases, place_of, produce
from offset_watch import OffsetWatch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from shifted_clocks import ShiftedClock

import minimq
from minimq import Admin, LocalCluster, PullConsumer
from minimq.receiving.consumer_options import ConsumerOptions

TOPIC, GROUP = "rebalances", "readers"
QUEUES_PER_BROKER = 16
QUEUES = 2 * QUEUES_PER_BROKER
STEP_S = 0.0025
FEWEST, MOST = 1, 8
PATIENCE_S = 60.0
#: Time after each jump of a clock: longer than a session lives without a sign.
CLOCK_S = 4.0
#: By how much the clock of the brokers is wrong, then that of the members, and so on.
JUMPS_S = (3600, -3600, -3600, 3600, 0, 0)

#: Where members hang, they and the brokers notice it soon. Each member doubts its leases before they are given away.
SOON_DEAD: Mapping[str, float] = {"session_timeout_s": 3.0, "session_grace_s": 0.5}
SOON_IN_DOUBT: Mapping[str, float] = {
    name: value
    for name, value in {"heartbeat_interval_s": 0.4, "lease_trust_s": 1.5}.items()
    if name in ConsumerOptions.__dataclass_fields__
}


@dataclass
class Plan:
    """What a run is to do.

    Attributes:
        rounds: how many rebalances.
        rate: messages per second.
        allocation: strategy of the group.
        chance: all that is random comes from it.
        tell: takes the share that is done.
    """

    rounds: int
    rate: int
    allocation: str
    chance: random.Random
    tell: Callable[[float], None]


@dataclass
class Line:
    """What a run has shown.

    Attributes:
        name: scenario.
        rounds: how many rebalances there were.
        seconds: how long the producer sent.
        sent_per_s: by the producer.
        consumed_per_s: handed out, from its first message to the end of the drain.
        verdict: what the journals prove.
        waits: ages of messages in rebalances.
        computed: allocations by a member for each rebalance that it saw; None if no member has left in order.
        offsets_back: how often a committed offset was seen to go back.
        notes: what else is to be told, by name.
    """

    name: str
    rounds: int
    seconds: float
    sent_per_s: float
    consumed_per_s: float
    verdict: Verdict
    waits: Waits
    computed: float | None
    offsets_back: int
    notes: dict[str, float] = field(default_factory=dict)


class Group:
    """The members of a group as processes, and their journals."""

    def __init__(
        self, setting: Setting, folder: Path, work: Callable[..., None], clock: ShiftedClock | None = None
    ) -> None:
        self.journals: list[JournalReader] = []
        self.live: dict[str, BaseProcess] = {}
        #: Begin and end of each rebalance; it ends when the shares have settled, or with the next.
        self.stretches: list[tuple[float, float]] = []
        self.measured_from = 0.0
        self._seen: dict[str, int] = {}  # rebalances, by member
        self._setting = setting
        self._folder = folder
        self._work = work
        self._clock = clock

    def join(self) -> str:
        """Start a member."""
        client_id = f"member-{len(self.journals):04d}"
        path = self._folder / f"{client_id}.journal"
        self.journals.append(JournalReader(client_id, path))
        self._begin()
        self.live[client_id] = self._start(client_id, path)
        self._list_members()
        return client_id

    def _start(self, client_id: str, path: Path) -> BaseProcess:
        arguments = self._setting, client_id, path
        if self._clock is None:
            return started(self._work, *arguments)
        with self._clock.for_children():
            return started(self._work, *arguments, new=True)

    def leave(self, client_id: str) -> None:
        """Let a member end in order."""
        self._begin()
        process = self.live.pop(client_id)
        self._list_members()
        process.terminate()

    def kill(self, client_id: str) -> None:
        """End a member at once."""
        self._begin()
        process = self.live.pop(client_id)
        process.kill()
        process.join()
        self.journal(client_id).broken_at.append(time.monotonic())

    def halt(self, client_id: str) -> None:
        """Let a member hang."""
        self._begin()
        os.kill(self._pid(client_id), signal.SIGSTOP)
        self.journal(client_id).broken_at.append(time.monotonic())

    def resume(self, client_id: str) -> None:
        """Let a member go on that hangs."""
        self._begin()
        os.kill(self._pid(client_id), signal.SIGCONT)

    def journal(self, client_id: str) -> JournalReader:
        return next(journal for journal in self.journals if journal.client_id == client_id)

    def settled(self, among: set[str] | None = None) -> bool:
        """Tell whether each queue has exactly one owner among the members, and the shares are even."""
        self.read()
        shares = [self.journal(client_id).holds for client_id in among or self.live]
        places = [place for share in shares for place in share]
        even = max(map(len, shares)) - min(map(len, shares)) <= 2  # each of two brokers' queues may not come out even
        return even and len(places) == len(set(places)) == QUEUES

    def wait_settled(self, among: set[str] | None = None) -> None:
        """Return when the shares have settled."""
        wait_until(lambda: self.settled(among), "the shares have not settled")
        self.end_stretch()

    def end_stretch(self) -> None:
        if self.stretches and self.stretches[-1][1] == float("inf"):
            self.stretches[-1] = self.stretches[-1][0], time.monotonic()

    def measure_from_now(self) -> None:
        """Forget what waits there were until now: what the first members find waiting is no matter of a rebalance."""
        self.measured_from = time.monotonic()
        self.stretches.clear()

    def read(self) -> None:
        for journal in self.journals:
            journal.read()

    def end(self) -> None:
        """Let all members end in order, and read their journals to the end."""
        for process in self.live.values():
            process.terminate()
        wait_until(lambda: not any(process.is_alive() for process in self.live.values()), "members do not end")
        self.live.clear()
        self.read()

    def close(self) -> None:
        for process in self.live.values():
            process.kill()
            process.join()
        for journal in self.journals:
            journal.close()

    def computed(self) -> float | None:
        """Return how many allocations a member computed for each rebalance that it saw."""
        left = [(journal.ended.rounds, self._seen[journal.client_id]) for journal in self.journals if journal.ended]
        return sum(rounds for rounds, _ in left) / sum(seen for _, seen in left) if left else None

    def _pid(self, client_id: str) -> int:
        pid = self.live[client_id].pid
        assert pid is not None
        return pid

    def _begin(self) -> None:
        """Another rebalance begins."""
        self.end_stretch()
        self.stretches.append((time.monotonic(), float("inf")))
        for client_id in [*self.live, self.journals[-1].client_id]:
            self._seen[client_id] = self._seen.get(client_id, 0) + 1

    def _list_members(self) -> None:
        new = self._setting.list_of_members.with_suffix(".new")
        new.write_text(json.dumps(sorted(self.live)))
        new.replace(self._setting.list_of_members)


def started(work: Callable[..., None], *arguments: object, new: bool = False) -> BaseProcess:
    """Start a process. It is forked from one that has loaded everything and has no thread, unless it is to be new."""
    if new:
        process: BaseProcess = multiprocessing.get_context("spawn").Process(target=work, args=arguments, daemon=True)
    else:
        process = multiprocessing.get_context("forkserver").Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def wait_until(condition: Callable[[], bool], otherwise: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{otherwise} within {patience_s:g} s")
        time.sleep(0.01)


class Run:
    """A cluster, a group and a producer, from the first member to the verdict."""

    def __init__(self, cluster: LocalCluster, group: Group, watch: OffsetWatch, clocks: Sequence[ShiftedClock]) -> None:
        self.cluster = cluster
        self.group = group
        self.watch = watch
        self.clocks = clocks
        self.notes: dict[str, float] = {}
        self.outcome: dict[str, Any] = {}


@contextmanager
def running(
    plan: Plan,
    work: Callable[..., None],
    brokers: Mapping[str, float],
    options: Mapping[str, float],
    *,
    shifted: bool = False,
) -> Iterator[Run]:
    """Run a cluster with a topic, an empty group and a producer; with the block, both come to their end."""
    with (
        tempfile.TemporaryDirectory(prefix="rebalances-") as name,
        LocalCluster(brokers=2, broker_options=brokers) as cluster,
    ):
        folder = Path(name)
        clocks = [ShiftedClock(folder / "brokers.clock"), ShiftedClock(folder / "members.clock")] if shifted else []
        for broker in cluster.brokers if clocks else ():
            with clocks[0].for_children():
                broker.restart()
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=QUEUES_PER_BROKER)
        setting = Setting(cluster.nameserver, TOPIC, GROUP, plan.allocation, options, folder / "members.json")
        group = Group(setting, folder, work, clocks[1] if clocks else None)
        told = folder / "produced.json"
        producer = started(produce, setting, plan.rate, STEP_S, told)
        try:
            with OffsetWatch(cluster.nameserver, GROUP, TOPIC) as watch:
                run = Run(cluster, group, watch, clocks)
                yield run
                producer.terminate()
                producer.join(PATIENCE_S)
                run.outcome = json.loads(told.read_text())
                drain(run)
        finally:
            group.close()
            if producer.is_alive():
                producer.kill()


def drain(run: Run) -> None:
    """Let the group read to the end, and end it."""
    run.group.end_stretch()
    ends = stored(run.cluster)
    if sum(ends.values()) != run.outcome["acknowledged"] or run.outcome["errors"]:
        raise SystemExit(f"the producer was told {run.outcome}, stored are {sum(ends.values())}")
    run.outcome["ends"] = ends

    def at_end() -> bool:
        run.group.read()
        reached: dict[Place, int] = {}
        for journal in run.group.journals:
            for poll in journal.polls:
                reached[poll.place] = max(reached.get(poll.place, 0), poll.last + 1)
        return reached == {place: end for place, end in ends.items() if end}

    wait_until(at_end, "the group does not reach the end", 2 * PATIENCE_S)
    run.group.end()


def stored(cluster: LocalCluster) -> dict[Place, int]:
    """Read all queues from their beginning, and return where each ends."""
    with Admin(cluster.nameserver) as admin:
        queues = admin.route(TOPIC).read_queues()
    ends: dict[Place, int] = {place_of(queue): 0 for queue in queues}
    if len(ends) != QUEUES:
        raise SystemExit(f"the topic has {len(ends)} queues")
    with PullConsumer(cluster.nameserver, group="comparing", auto_commit=False) as consumer:
        consumer.assign(queues)
        while not consumer.at_end():
            for message in consumer.poll(0.05, max_messages=100_000):
                place = place_of(message.queue)
                if message.queue_offset != ends[place]:
                    raise SystemExit(f"{message} is not the next one of its queue")
                ends[place] += 1
    return ends


def line(name: str, run: Run, rounds: int) -> Line:
    """Return what a run has shown, after its end."""
    by_place = deliveries(run.group.journals)
    verdict = judge(by_place, run.outcome["ends"])
    moments = [item.poll.at for items in by_place.values() for item in items]
    refused = sum(len(journal.refused) for journal in run.group.journals)
    return Line(
        name=name,
        rounds=rounds,
        seconds=run.outcome["seconds"],
        sent_per_s=run.outcome["sent"] / run.outcome["seconds"],
        consumed_per_s=(verdict.stored - verdict.lost + verdict.twice) / (max(moments) - min(moments)),
        verdict=verdict,
        waits=waits(by_place, run.group.measured_from, run.group.stretches),
        computed=run.group.computed(),
        offsets_back=run.watch.went_back,
        notes={"refused": refused, **run.notes},
    )


# ---- Scenarios ---------------------------------------------------------------------------------------


def pause_between(plan: Plan, group: Group) -> None:
    """Wait until the shares have settled and a moment more, or for less, so that the next rebalance comes into this."""
    if plan.chance.random() < 0.5:
        group.wait_settled()
        time.sleep(plan.chance.uniform(0.0, 0.3))
    else:
        time.sleep(plan.chance.uniform(0.1, 0.6))


def come_and_go(plan: Plan, group: Group) -> None:
    """Let members join and leave at random."""
    group.join()
    group.wait_settled()
    group.measure_from_now()
    for number in range(plan.rounds):
        plan.tell(number / plan.rounds)
        if len(group.live) == FEWEST or (len(group.live) < MOST and plan.chance.random() < 0.5):
            group.join()
        else:
            group.leave(plan.chance.choice(sorted(group.live)))
        pause_between(plan, group)
    group.wait_settled()


def graceful(plan: Plan) -> Line:
    """Members join and leave in order."""
    with running(plan, member, {}, {}) as run:
        come_and_go(plan, run.group)
    return line("graceful", run, plan.rounds)


def leases_off(plan: Plan) -> Line:
    """The same with members that ask nobody: shows that the check can fail."""
    with running(plan, member_without_leases, {}, {}) as run:
        come_and_go(plan, run.group)
    return line("leases-off", run, plan.rounds)


def kill(plan: Plan) -> Line:
    """Members are killed, others join."""
    with running(plan, member, {"session_grace_s": 0.5}, {"commit_interval_s": 0.5}) as run:
        group = run.group
        for _ in range(4):
            group.join()
        group.wait_settled()
        group.measure_from_now()
        for number in range(plan.rounds):
            plan.tell(number / plan.rounds)
            group.kill(plan.chance.choice(sorted(group.live)))
            while len(group.live) < 2 or (len(group.live) < MOST and plan.chance.random() < 0.5):
                group.join()
            pause_between(plan, group)
        group.wait_settled()
    return line("kill", run, plan.rounds)


def stop(plan: Plan) -> Line:
    """A member hangs for longer than its leases live, and goes on."""
    with running(plan, member, SOON_DEAD, {**SOON_IN_DOUBT, "commit_interval_s": 0.5}) as run:
        group = run.group
        for _ in range(3):
            group.join()
        group.wait_settled()
        group.measure_from_now()
        for number in range(plan.rounds):
            plan.tell(number / plan.rounds)
            time.sleep(plan.chance.uniform(0.2, 0.7))
            one = plan.chance.choice(sorted(group.live))
            group.halt(one)
            group.wait_settled(set(group.live) - {one})
            group.resume(one)
            group.wait_settled()
    return line("stop", run, plan.rounds)


def clocks(plan: Plan) -> Line:
    """The clocks of the brokers and of the members jump by an hour, each on its own; no member comes or goes."""
    options = {**SOON_IN_DOUBT, "commit_interval_s": 0.5}
    with running(plan, member, SOON_DEAD, options, shifted=True) as run:
        group = run.group
        for _ in range(3):
            group.join()
        group.wait_settled()
        held = {journal.client_id: journal.changed_holds for journal in group.journals}
        for number in range(plan.rounds):
            plan.tell(number / plan.rounds)
            run.clocks[number % 2].shift(JUMPS_S[number % len(JUMPS_S)])
            time.sleep(CLOCK_S)
        group.read()
        changed = sum(journal.changed_holds - held[journal.client_id] for journal in group.journals)
        run.notes["assignments_changed"] = changed
    run.notes["from_the_future"] = sum(poll.age_ms < -1_000_000 for journal in group.journals for poll in journal.polls)
    run.group.stretches.clear()  # ages tell nothing else
    return line("clocks", run, plan.rounds)


SCENARIOS: Mapping[str, Callable[[Plan], Line]] = {
    "graceful": graceful,
    "leases-off": leases_off,
    "kill": kill,
    "stop": stop,
    "clocks": clocks,
}
ROUNDS = {"graceful": 200, "leases-off": 50, "kill": 50, "stop": 10, "clocks": 8}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(SCENARIOS)))
@click.option("--rounds", type=int, help="How many rebalances; each scenario has a number of its own.")
@click.option("--rate", default=20_000, show_default=True, help="Messages per second.")
@click.option("--allocation", default="averagely", show_default=True, help="Strategy of the group.")
@click.option("--seed", type=int, help="Repeats the choices of an earlier run, which printed it.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(names: tuple[str, ...], rounds: int | None, rate: int, allocation: str, seed: int | None, output: str) -> None:
    """Run the scenarios NAMES, or all of them."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"seed {seed}", file=sys.stderr)
    multiprocessing.set_forkserver_preload(["group_process"])
    lines: list[Line] = []
    # Drawn seldom: the thread that draws takes time from the processes that are measured.
    with Progress(console=Console(stderr=True), refresh_per_second=1, transient=True) as progress:
        for name in names or SCENARIOS:
            task = progress.add_task(name, total=1.0)
            lines.append(
                SCENARIOS[name](
                    Plan(
                        rounds=ROUNDS[name] if rounds is None else rounds,
                        rate=rate,
                        allocation=allocation,
                        chance=random.Random(f"{seed} {name}"),
                        tell=lambda share: progress.update(task, completed=share),  # noqa: B023
                    )
                )
            )
    if output == "json":
        print(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        show(lines)


def show(lines: Sequence[Line]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    proof = Table("scenario", "rebalances", "moves", "stored", "lost", "twice", "unexplained", "skipped", "disordered")
    for title in ("stale", "offsets back", "notes"):
        proof.add_column(title)
    cost = Table("scenario", "sent/s", "consumed/s", "computed", "moved p50", "p99", "max", "stayed p50", "p99", "max")
    cost.add_column("quiet p99")
    for line in lines:
        found = line.verdict
        numbers = (found.moves, found.stored, found.lost, found.twice, found.unexplained, found.skipped)
        more = (found.disordered, found.stale, line.offsets_back)
        notes = ", ".join(f"{name} {value:g}" for name, value in line.notes.items())
        proof.add_row(line.name, str(line.rounds), *(f"{number:,}" for number in numbers + more), notes)
        moved, stayed, quiet = line.waits.moved, line.waits.stayed, line.waits.quiet
        ages = (moved.p50, moved.p99, moved.most, stayed.p50, stayed.p99, stayed.most, quiet.p99)
        rates = (f"{line.sent_per_s:,.0f}", f"{line.consumed_per_s:,.0f}")
        computed = "" if line.computed is None else f"{line.computed:.2f}"
        cost.add_row(line.name, *rates, computed, *(f"{age:,.0f} ms" for age in ages))
    console.print(f"\nminimq in {Path(minimq.__file__).parent}; two brokers with {QUEUES_PER_BROKER} queues each")
    console.print(
        "unexplained: twice, though no member was killed or hung before it had committed them; stale: handed out under "
        "an old lease; offsets back: committed ones that were seen to be lower than before"
    )
    console.print(proof)
    console.print(
        "ages of messages when they are handed out, moved: the first of a new owner; stayed: the oldest of a queue "
        "that kept its owner in a rebalance; quiet: between rebalances; computed: allocations for each rebalance "
        "and member"
    )
    console.print(cost)
    for text in (text for line in lines for text in line.verdict.examples):
        console.print(text, markup=False, style="red")


if __name__ == "__main__":
    main()
