"""One run of a cluster, a consumer group whose members are processes, and a producer."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from group_journals import JournalReader
from group_process import Place, Setting, place_of, produce
from offset_watch import OffsetWatch
from shifted_clocks import ShiftedClock

from minimq import Admin, LocalCluster, PullConsumer

TOPIC, GROUP = "rebalances", "readers"
QUEUES_PER_BROKER = 16
QUEUES = 2 * QUEUES_PER_BROKER
STEP_S = 0.0025
TIMEOUT_S = 60.0


@dataclass
class Plan:
    """The plan of a run."""

    rounds: int
    rate: int
    allocation: str
    chance: random.Random
    tell: Callable[[float], None]


class Group:
    """The members of a group as processes, and their journals."""

    def __init__(
        self, setting: Setting, folder: Path, work: Callable[..., None], clock: ShiftedClock | None = None
    ) -> None:
        self.journals: list[JournalReader] = []
        self.live: dict[str, BaseProcess] = {}
        #: Begin and end of each rebalance, which ends when the shares have settled, or when the next one begins.
        self.stretches: list[tuple[float, float]] = []
        self.measured_from = 0.0
        self._seen: dict[str, int] = {}  # number of rebalances by member
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
        """End a member cleanly."""
        self._begin()
        process = self.live.pop(client_id)
        self._list_members()
        process.terminate()

    def kill(self, client_id: str) -> None:
        self._begin()
        process = self.live.pop(client_id)
        process.kill()
        process.join()
        self.journal(client_id).broken_at.append(time.monotonic())

    def halt(self, client_id: str) -> None:
        self._begin()
        os.kill(self._pid(client_id), signal.SIGSTOP)
        self.journal(client_id).broken_at.append(time.monotonic())

    def resume(self, client_id: str) -> None:
        self._begin()
        os.kill(self._pid(client_id), signal.SIGCONT)

    def journal(self, client_id: str) -> JournalReader:
        return next(journal for journal in self.journals if journal.client_id == client_id)

    def settled(self, among: set[str] | None = None) -> bool:
        """Return whether each queue has exactly one owner among the members, and the shares are even."""
        self.read()
        shares = [self.journal(client_id).holds for client_id in among or self.live]
        places = [place for share in shares for place in share]
        even = max(map(len, shares)) - min(map(len, shares)) <= 2  # the queues of each of two brokers have a remainder
        return even and len(places) == len(set(places)) == QUEUES

    def wait_settled(self, among: set[str] | None = None) -> None:
        wait_until(lambda: self.settled(among), "the shares have not settled")
        self.end_stretch()

    def wait_delivered(self, client_id: str) -> None:
        def has_received() -> bool:
            self.read()
            return bool(self.journal(client_id).polls)

        wait_until(has_received, f"{client_id} receives nothing")

    def end_stretch(self) -> None:
        if self.stretches and self.stretches[-1][1] == float("inf"):
            self.stretches[-1] = self.stretches[-1][0], time.monotonic()

    def measure_from_now(self) -> None:
        """Ignore earlier delays: the backlog of the first members has nothing to do with rebalances."""
        self.measured_from = time.monotonic()
        self.stretches.clear()

    def read(self) -> None:
        for journal in self.journals:
            journal.read()

    def end(self) -> None:
        """End all members cleanly, and read their journals to the end."""
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
        """Return the average number of allocations that a member computed per rebalance."""
        left = [(journal.ended.rounds, self._seen[journal.client_id]) for journal in self.journals if journal.ended]
        return sum(rounds for rounds, _ in left) / sum(seen for _, seen in left) if left else None

    def _pid(self, client_id: str) -> int:
        pid = self.live[client_id].pid
        assert pid is not None
        return pid

    def _begin(self) -> None:
        self.end_stretch()
        self.stretches.append((time.monotonic(), float("inf")))
        for client_id in [*self.live, self.journals[-1].client_id]:
            self._seen[client_id] = self._seen.get(client_id, 0) + 1

    def _list_members(self) -> None:
        new = self._setting.list_of_members.with_suffix(".new")
        new.write_text(json.dumps(sorted(self.live)))
        new.replace(self._setting.list_of_members)


def started(work: Callable[..., None], *arguments: object, new: bool = False) -> BaseProcess:
    """Start a process: forked from a thread-free server that has all imports, or with `new` from scratch."""
    if new:
        process: BaseProcess = multiprocessing.get_context("spawn").Process(target=work, args=arguments, daemon=True)
    else:
        process = multiprocessing.get_context("forkserver").Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def wait_until(condition: Callable[[], bool], otherwise: str, max_wait_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + max_wait_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{otherwise} within {max_wait_s:g} s")
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
    """Run a cluster with a topic, an empty group and a producer; after the block, drain and stop them."""
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
                producer.join(TIMEOUT_S)
                run.outcome = json.loads(told.read_text())
                drain(run)
        finally:
            group.close()
            if producer.is_alive():
                producer.kill()


def drain(run: Run) -> None:
    """Let the group read to the end of the topic, and stop it."""
    run.group.end_stretch()
    ends = stored(run.cluster)
    # More may be stored: if a broker answers too late, the producer retries at another one.
    if sum(ends.values()) < run.outcome["acknowledged"] or run.outcome["errors"]:
        raise SystemExit(f"the producer was told {run.outcome}, stored are {sum(ends.values())}")
    run.outcome["ends"] = ends

    def at_end() -> bool:
        run.group.read()
        reached: dict[Place, int] = {}
        for journal in run.group.journals:
            for poll in journal.polls:
                reached[poll.place] = max(reached.get(poll.place, 0), poll.last + 1)
        return reached == {place: end for place, end in ends.items() if end}

    wait_until(at_end, "the group does not reach the end", 2 * TIMEOUT_S)
    run.group.end()


def stored(cluster: LocalCluster) -> dict[Place, int]:
    """Read all queues from the beginning, and return the end of each."""
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
