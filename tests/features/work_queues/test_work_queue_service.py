"""Messages that are taken one by one, at a real broker: hand-outs, answers, deadlines, deaths, restarts."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq_common.errors import GroupConflict, InvalidArgument, MinimqError
from minimq_proto.v1 import broker_pb2, work_queues_pb2
from support.chance import SEED
from support.raw_popper import Popped, RawPopper, popped
from support.raw_sender import RawSender
from support.reading import check_brokers
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

DONE, FREE = broker_pb2.POP_OUTCOME_DONE, broker_pb2.POP_OUTCOME_FREE
EXTEND, RETURN = broker_pb2.POP_OUTCOME_EXTEND, broker_pb2.POP_OUTCOME_RETURN


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = {"metrics": "127.0.0.1:0", "log_format": "json"}
    with LocalCluster(brokers=1, data_dir=tmp_path_factory.mktemp("popping"), broker_options=options) as cluster:
        yield cluster


@pytest.fixture
def filled(single: LocalCluster, new_name: Callable[[], str]) -> str:
    """Return a topic with one queue and 100 messages, in batches of 40, 40 and 20."""
    name = new_name()
    with Admin(single.nameserver) as admin:
        admin.create_topic(name, queues=1)
    with Producer(single.nameserver) as producer:
        for first, end in ((0, 40), (40, 80), (80, 100)):
            producer.send_many([Message(name, b"%d" % number) for number in range(first, end)])
    return name


@pytest.fixture
def popper(single: LocalCluster, filled: str) -> Iterator[RawPopper]:
    with RawPopper(single.brokers[0].address, filled, "a", filled) as made:
        yield made


def offsets(messages: list[Popped]) -> list[int]:
    return [message.offset for message in messages]


def test_leased_and_popped_members_do_not_mix_and_a_group_switches(
    single: LocalCluster, filled: str, popper: RawPopper
) -> None:
    messages = popper.take(60)
    popper.settle(messages[:50])
    offset = broker_pb2.QueueOffset(topic=filled, queue_id=0, offset=70)
    with (
        RawSender(single.brokers[0].address) as calls,
        pytest.raises(grpc.RpcError, match="take messages one by one, such as a"),
    ):
        calls.stub.CommitOffsets(broker_pb2.CommitOffsetsRequest(group=filled, offsets=[offset]))
    with PullConsumer(single.nameserver, group=filled) as consumer:
        consumer.subscribe(filled)
        with pytest.raises(GroupConflict, match="take messages one by one, such as a"):
            consumer.poll(30)
    popper.close()
    with PullConsumer(single.nameserver, group=filled) as consumer:
        consumer.subscribe(filled)
        found = wait_until(lambda: consumer.poll(1.0, max_messages=10), 60)
        assert [message.queue_offset for message in found] == [*range(50, 60)]  # where all before is settled
        with (
            RawPopper(single.brokers[0].address, filled, "c", filled) as late,
            pytest.raises(GroupConflict, match="divide its queues"),
        ):
            late.take()
        consumer.commit()
    with RawPopper(single.brokers[0].address, filled, "c", filled) as late:

        def taken() -> list[Popped]:
            try:
                return late.take()
            except GroupConflict:
                return []

        assert offsets(wait_until(taken, 60)) == [*range(60, 100)]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"takes": [{"topic": "t", "max_messages": 0, "max_bytes": 1, "invisible_ms": 1000}]}, "max_messages"),
        ({"takes": [{"topic": "t", "max_messages": 1, "max_bytes": 1, "invisible_ms": 999}]}, "invisible_ms"),
        ({"takes": [{"topic": "t", "max_messages": 1, "max_bytes": 1, "invisible_ms": 43_200_001}]}, "invisible_ms"),
        ({"settles": [{"spans": [0, 1, 2]}]}, "needs pairs"),
        ({"settles": [{"spans": []}]}, "needs pairs"),
        ({"settles": [{"spans": [0, 0]}]}, "delivered end"),
        ({"settles": [{"spans": [5, 6]}]}, "delivered end at 9"),
        ({"settles": [{"spans": [0, 9_223_372_036_854_775_807]}]}, "delivered end at 9"),
        ({"settles": [{"spans": [-1, 2]}]}, "spans"),
        ({"settles": [{"spans": [0, 1], "outcome": 9}]}, "not an outcome"),
        ({"settles": [{"spans": [0, 1], "outcome": EXTEND, "duration_ms": 1}]}, "1000 ms at least"),
        ({"settles": [{"spans": [0, 1], "outcome": FREE, "duration_ms": 43_200_001}]}, "duration_ms"),
        ({}, "has to take messages"),
    ],
)
def test_a_request_out_of_its_bounds_changes_nothing(
    popper: RawPopper, what: dict[str, list[dict[str, object]]], told: str
) -> None:
    [first, *_] = mine = popper.take(10)
    for settle in what.get("settles", []):
        settle.update(topic=popper.topic, epoch=first.epoch)
    popper.begin(**what)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=told):
        popper.answer()
    assert popper.settle(mine) == []


def test_a_reset_under_consumers_is_rejected_unless_it_is_forced_and_they_begin_there(
    single: LocalCluster, filled: str, popper: RawPopper
) -> None:
    mine = popper.take(100)
    popper.settle(mine[:90])
    popper.begin(takes=[popper.taking(100, wait_s=60)])
    with Admin(single.nameserver) as admin:
        with pytest.raises(GroupConflict, match="are connected: a; stop them first, or reset with force"):
            admin.reset_offset(filled, filled, "earliest")
        assert admin.describe_group(filled).in_flight == 10
        admin.reset_offset(filled, filled, 20, force=True)
        again = popped(popper.answer())
        assert offsets(again) == [*range(20, 100)]
        assert {message.delivery_count for message in again} == {1}
        assert popper.settle(mine[90:]) == [*range(90, 100)]  # what it had before the reset is not its own any more
        found = admin.describe_group(filled)
        assert (found.lag, found.in_flight) == (80, 80)


@pytest.mark.replaced_by("machine")
@pytest.mark.fault
@pytest.mark.timeout(180)
def test_a_killed_broker_knows_who_has_what(tmp_path: Path) -> None:
    options = {"upkeep_interval_s": 0.05, "session_grace_s": 3600}
    chance = random.Random(SEED)
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        with Producer(cluster.nameserver) as producer:
            producer.send_many([Message("t", b"%d" % number) for number in range(3_000)])
        worker = Worker(chance)
        for _ in range(2):
            with RawPopper(broker.address, "g", "a") as popper:
                worker.work(popper)
                broker.kill()
            broker.start()
            commit = broker_pb2.CommitOffsetsRequest(group="g", offsets=[broker_pb2.QueueOffset(topic="t", offset=1)])
            with RawSender(broker.address) as calls, pytest.raises(grpc.RpcError, match="one by one, such as a"):
                calls.stub.CommitOffsets(commit)
            with RawPopper(broker.address, "g", "a") as popper:  # it is back: what it has stays its own
                for messages in worker.held:
                    assert popper.settle(messages, EXTEND, 3600) == []
                popper.die()
        with RawPopper(broker.address, "g", "a") as popper:
            worker.finish(popper)
        assert len(worker.handed) == 3_000
        assert set(worker.handed.values()) == {1}
        with Admin(cluster.nameserver) as admin:
            assert admin.describe_group("g").lag == 0
        broker.stop()
        check_brokers(cluster)


class Worker:
    """A consumer: it remembers the messages that it was handed out, has in flight, and has settled."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.held: list[list[Popped]] = []
        self.settled: set[tuple[int, int]] = set()
        self.handed: Counter[tuple[int, int]] = Counter()

    def work(self, popper: RawPopper) -> None:
        """Take some, and settle a part of what is in flight."""
        popper.cancel([1])  # first: it is the same process
        for _ in range(20):
            self._take(popper.take(50, invisible_s=3600))
        for messages in self._chance.sample(self.held, len(self.held) // 2):
            self.held.remove(messages)
            some = self._chance.sample(messages, self._chance.randint(1, len(messages)))
            assert popper.settle(some) == []
            self.settled.update((message.queue_id, message.offset) for message in some)
            if rest := [message for message in messages if message not in some]:
                self.held.append(rest)

    def finish(self, popper: RawPopper) -> None:
        """Take all there is, and settle all that is in flight."""
        popper.cancel([1])
        while messages := popper.take(500, wait_s=1):
            self._take(messages)
        for messages in self.held:
            assert popper.settle(messages) == []

    def _take(self, messages: list[Popped]) -> None:
        for message in messages:
            place = message.queue_id, message.offset
            self.handed[place] += 1
            assert place not in self.settled, "acknowledged, and handed out again"
            assert message.delivery_count == self.handed[place] == 1, "redelivered early"
        if messages:
            self.held.append(messages)


def test_takes_of_a_client_that_does_not_read_hold_little_memory(
    single: LocalCluster, new_name: Callable[[], str]
) -> None:
    [broker], name, count = single.brokers, new_name(), 96
    assert broker.pid
    with Admin(single.nameserver) as admin:
        admin.create_topic(name, queues=1)
    with Producer(single.nameserver) as producer:
        for _ in range(count):
            producer.send(Message(name, bytes(1 << 20)))
    with RawPopper(broker.address, name, "deaf", name) as deaf, RawPopper(broker.address, name, "b", name) as other:
        before = anonymous_bytes(broker.pid)
        take = work_queues_pb2.PopTake(topic=name, max_messages=1, max_bytes=1, invisible_ms=60_000, wait_ms=2_000)
        take.start.at = broker_pb2.START_AT_EARLIEST
        for _ in range(count):
            deaf.begin(takes=[take])
        missed = 0
        while other.take(1, invisible_s=60, wait_s=2):
            missed += 1
        assert anonymous_bytes(broker.pid) - before < count << 19
        assert sum(len(popped(deaf.answer())) for _ in range(count)) + missed == count


def anonymous_bytes(pid: int) -> int:
    """Return the memory of a process, without the files that it has mapped."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) << 10


def test_many_workers_share_few_queues(single: LocalCluster, new_name: Callable[[], str]) -> None:
    name, workers, count = new_name(), 20, 2_000
    with Admin(single.nameserver) as admin:
        admin.create_topic(name, queues=2)
    found: list[bytes] = []
    failures: list[MinimqError] = []

    def work(number: int) -> None:
        try:
            with RawPopper(single.brokers[0].address, name, f"worker-{number}", name) as popper:
                while messages := popper.take(7, wait_s=60 if len(found) < count else 0):
                    found.extend(message.body for message in messages)
                    assert popper.settle(messages) == []
                    if len(found) >= count:
                        return
        except MinimqError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(workers)]
    for thread in threads:
        thread.start()
    with Producer(single.nameserver) as producer:
        producer.send_many([Message(name, b"%d" % number) for number in range(count)])
        wait_until(lambda: len(found) >= count or failures, 60)
        producer.send_many([Message(name, b"end")] * workers * 7)  # for those who still wait
    for thread in threads:
        thread.join(60)
    assert not failures
    assert Counter(body for body in found if body != b"end") == Counter(b"%d" % number for number in range(count))


def test_a_message_is_handed_out_to_who_waits_in_the_commit_that_stores_it(
    single: LocalCluster, new_name: Callable[[], str]
) -> None:
    def commits() -> float:
        return Scrape(metrics_address(single.brokers[0].log_path)).value("minimq_broker_commit_seconds_count")

    name, count = new_name(), 20
    with Admin(single.nameserver) as admin:
        admin.create_topic(name, queues=1)
    with Producer(single.nameserver) as producer, RawPopper(single.brokers[0].address, name, "a", name) as popper:
        assert popper.take() == []
        before = commits()
        for number in range(count):
            popper.begin(takes=[popper.taking(wait_s=60)])
            assert popper.take() == []  # the first one waits by now
            producer.send(Message(name, b"%d" % number))
            [message] = popped(popper.answer())
            assert (message.offset, message.body, message.delivery_count) == (number, b"%d" % number, 1)
        # It would take two for each, and does now and then if the broker pauses between the two.
        assert count <= commits() - before < 2 * count
