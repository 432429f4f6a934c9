"""The work of a group's members and their producer, each in its own process.

A member writes each event as a line of JSON to its journal, a file of its own. The line is in the file before the
member continues, so the journal of a killed member has everything that it can have committed. Times are those of the
monotonic clock, which all processes of a machine share. SIGTERM ends a process cleanly.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from minimq import Admin, Message, MessageQueue, MinimqError, Producer, PullConsumer, ReceivedMessage
from minimq.connection.connection import BrokerCalls
from minimq.consuming import group_member
from minimq.consuming.fetcher import Fetcher
from minimq.consuming.read_ahead import ReadyBatches
from minimq.rebalance import AllocationStrategy, allocation_strategy
from minimq.rebalance.strategy import uses_owners
from minimq_proto.v1 import broker_pb2

Place = tuple[str, int]  # broker and queue; there is one topic

_POLL_S = 0.1
#: On average, one of this many polls is followed by some work.
_WORK_EVERY = 10


# ---- Lines of a journal -----------------------------------------------------------------------------


class Polled(msgspec.Struct, tag="polled", array_like=True, frozen=True):
    """A poll returned messages of one queue."""

    at: float
    place: Place
    first: int
    last: int
    count: int
    epoch: int
    age_ms: float


class Committed(msgspec.Struct, tag="committed", array_like=True, frozen=True):
    """A broker has acknowledged an offset."""

    at: float
    place: Place
    offset: int
    epoch: int


class Rejected(msgspec.Struct, tag="rejected", array_like=True, frozen=True):
    """A broker rejected a commit, or the consumer raised an error."""

    at: float
    error: str
    text: str


class Holds(msgspec.Struct, tag="holds", array_like=True, frozen=True):
    """The assignment has changed."""

    at: float
    places: list[Place]


class Ended(msgspec.Struct, tag="ended", array_like=True, frozen=True):
    """The member left cleanly, after computing this number of allocations."""

    at: float
    rounds: int


Line = Polled | Committed | Rejected | Holds | Ended


def place_of(queue: MessageQueue) -> Place:
    return queue.broker_name, queue.queue_id


class Journal:
    """Appends lines to a file, each by one system call."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, line: msgspec.Struct) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


# ---- A member ----------------------------------------------------------------------------------------


class Counted:
    """A strategy that counts its member's computations of an allocation."""

    def __init__(self, inner: AllocationStrategy) -> None:
        self.rounds = 0
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def uses_owners(self) -> bool:
        return uses_owners(self._inner)

    def allocate(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        self.rounds += 1
        return self._inner.allocate(group, member, queues, members)

    def allocate_all(
        self, group: str, queues: Sequence[MessageQueue], members: Sequence[str], owners: Mapping[MessageQueue, str]
    ) -> Mapping[str, list[MessageQueue]]:
        self.rounds += 1
        return self._inner.allocate_all(group, queues, members, owners)  # type: ignore[attr-defined,no-any-return]


def note_commits(journal: Journal, broker_at: Callable[[str], str]) -> None:
    """Write the outcome of every commit of this process to the journal.

    Patches the calls of the connection, since consumers do not report automatic commits.
    """
    plain = BrokerCalls.call

    async def call(calls: BrokerCalls, address: str, method: Any, request: Any, *limits: float) -> Any:
        if not isinstance(request, broker_pb2.CommitOffsetsRequest):
            return await plain(calls, address, method, request, *limits)
        try:
            given = await plain(calls, address, method, request, *limits)
        except MinimqError as error:
            journal.add(Rejected(time.monotonic(), type(error).__name__, str(error)))
            raise
        for item in request.offsets:
            place = broker_at(address), item.queue_id
            journal.add(Committed(time.monotonic(), place, item.offset, item.epoch))
        return given

    BrokerCalls.call = call  # type: ignore[method-assign,assignment]


class LatestPoll:
    """Time and epoch of the lease check in the latest poll of this process with messages. Patches the fetcher.

    A process can be stopped at any moment, even between the check of a lease and the line in its journal. Therefore the
    journal has the time of the check, and the epoch at that time.
    """

    def __init__(self) -> None:
        self.at = 0.0
        self.epoch = 0
        plain = Fetcher.next_ready

        def next_ready(fetcher: Fetcher, but: Collection[MessageQueue] = ()) -> ReadyBatches | None:
            now = time.monotonic()
            handed = plain(fetcher, but)
            if handed is not None and (reader := fetcher.reader(handed.queue)) is not None:
                self.at, self.epoch = now, reader.lease.epoch
            return handed

        Fetcher.next_ready = next_ready  # type: ignore[method-assign,assignment]


def end_of_process() -> threading.Event:
    """Return an event that SIGTERM sets."""
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    return end


@dataclass(frozen=True)
class Setting:
    """The cluster, topic and options of a group."""

    nameserver: str
    topic: str
    group: str
    allocation: str
    #: Options of the consumer; names in capitals are constants of `group_member`.
    options: Mapping[str, Any]
    list_of_members: Path


def member(setting: Setting, client_id: str, journal: Path) -> None:
    """Run a correct member of the group."""
    end, lines, strategy = end_of_process(), Journal(journal), Counted(allocation_strategy(setting.allocation))
    note_commits(lines, names_of_brokers(setting))
    for name in filter(str.isupper, setting.options):
        setattr(group_member, name, setting.options[name])
    options = {name: value for name, value in setting.options.items() if not name.isupper()}
    consumer = PullConsumer(
        setting.nameserver, group=setting.group, client_id=client_id, allocation=strategy, **options
    )
    consumer.subscribe(setting.topic)
    reader = Reader(consumer, lines, client_id)
    while not end.is_set():
        reader.step()
    consumer.close()
    lines.add(Ended(time.monotonic(), strategy.rounds))


def member_without_leases(setting: Setting, client_id: str, journal: Path) -> None:
    """Run a member that takes its share without leases.

    It reads the list of members once, at its start, so it keeps its share when others join.
    """
    end, lines, strategy = end_of_process(), Journal(journal), Counted(allocation_strategy(setting.allocation))
    note_commits(lines, names_of_brokers(setting))
    with Admin(setting.nameserver) as admin:
        queues = admin.route(setting.topic).read_queues()
    consumer = PullConsumer(setting.nameserver, group=setting.group, client_id=client_id, **setting.options)
    reader = Reader(consumer, lines, client_id)
    members: list[str] = []
    while client_id not in members:  # the list is written after the process has started
        time.sleep(0.01)
        members = json.loads(setting.list_of_members.read_text()) if setting.list_of_members.exists() else []
    consumer.assign(strategy.allocate(setting.group, client_id, queues, members))
    while not end.is_set():
        reader.step()
    consumer.close()
    lines.add(Ended(time.monotonic(), strategy.rounds))


def names_of_brokers(setting: Setting) -> Callable[[str], str]:
    """Return a function from a broker's address to its name."""
    with Admin(setting.nameserver) as admin:
        route = admin.route(setting.topic)
    names = {queue.broker_name for queue in route.read_queues()}
    return {address: name for name in names if (address := route.master_of(name)) is not None}.__getitem__


class Reader:
    """Polls, works for a moment, and writes the journal."""

    def __init__(self, consumer: PullConsumer, journal: Journal, client_id: str) -> None:
        self._consumer = consumer
        self._journal = journal
        self._chance = random.Random(client_id)
        self._held: list[Place] = []
        self._parent = os.getppid()
        self._latest = LatestPoll()

    def step(self) -> None:
        if os.getppid() != self._parent:
            raise SystemExit("nobody is left who would look at the journal")
        try:
            messages = self._consumer.poll(_POLL_S, max_messages=500)
        except MinimqError as error:
            self._journal.add(Rejected(time.monotonic(), type(error).__name__, str(error)))
            return
        if messages:
            self._journal.add(self._line(messages))
        held = [place_of(queue) for queue in self._consumer.assignment]
        if held != self._held:
            self._held = held
            self._journal.add(Holds(time.monotonic(), held))
        if messages and self._chance.randrange(_WORK_EVERY) == 0:
            time.sleep(self._chance.uniform(0.0, 0.01))

    def _line(self, messages: Sequence[ReceivedMessage]) -> Polled:
        oldest, latest = messages[0], messages[-1]
        return Polled(
            at=self._latest.at,
            place=place_of(oldest.queue),
            first=oldest.queue_offset,
            last=latest.queue_offset,
            count=len(messages),
            epoch=self._latest.epoch,
            age_ms=time.time() * 1000 - oldest.batch.stored_ms,
        )


# ---- The producer --------------------------------------------------------------------------------------


def produce(setting: Setting, rate: int, step_s: float, told: Path) -> None:
    """Send at a steady rate until SIGTERM, then write the outcome to a file as JSON."""
    end, acknowledged, errors = end_of_process(), [0], list[str]()

    def note(receipt: object, error: MinimqError | None) -> None:
        if error is None:
            acknowledged[0] += 1
        else:
            errors.append(str(error))

    sent, began = 0, time.monotonic()
    with Producer(setting.nameserver, send_timeout_s=10.0) as producer:
        for step in steps(began, step_s, end):
            until = round((step + 1) * step_s * rate)
            for number in range(sent, until):
                producer.send_async(Message(setting.topic, b"%d" % number), callback=note)
            sent = until
        seconds = time.monotonic() - began
        producer.flush()
    outcome = {"sent": sent, "acknowledged": acknowledged[0], "errors": errors[:3], "seconds": seconds}
    told.write_text(json.dumps(outcome))


def steps(began: float, step_s: float, end: threading.Event) -> Iterator[int]:
    """Yield the number of each step when it is due, until `end` is set or the parent has exited."""
    parent = os.getppid()
    step = 0
    while not end.is_set() and os.getppid() == parent:
        left = began + step * step_s - time.monotonic()
        if left > 0:
            time.sleep(left)
        yield step
        step += 1
