"""Searches where something is damaged, deleted, killed or busy: they tell what they could not look at."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq.features.search.message_trace import TraceState
from minimq_broker.features.search.finding import MAX_FINDS
from minimq_broker.log.entry import HEADER_BYTES
from support.replicas import replicas, wait_caught_up
from support.small_segments import QUEUE, World, world_of
from support.waiting import wait_until

TOPIC = "t"
#: One message for each batch, so large that LMDB gives each pages of its own.
BODIES = [word * 600 for word in (b"first..", b"second.", b"third..", b"fourth.", b"fifth..")]
KEYS = [f"key-{number}-of-a-message" for number in range(5)]
PAGE, PAGE_HEADER = 4096, 16


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, data_dir=tmp_path) as made:
        with Admin(made.nameserver) as admin, Producer(made.nameserver) as producer:
            admin.create_topic(TOPIC, queues=1)
            for body, key in zip(BODIES, KEYS, strict=True):
                producer.send(Message(TOPIC, body, keys=(key, "all")))
        yield made


def flip(cluster: LocalCluster, text: bytes, offset: int = 0, *, in_entry: bool = False) -> None:
    """Flip a bit where a text stands in the log, or in the header of its entry, while the broker is stopped."""
    [broker] = cluster.brokers
    broker.stop()
    [segment] = Path(broker.data_dir, "commitlog").glob("*.mdb")
    data = bytearray(segment.read_bytes())
    at = data.find(text)
    assert at > 0
    at = at // PAGE * PAGE + PAGE_HEADER + HEADER_BYTES - 5 if in_entry else at + offset
    data[at] ^= 1
    segment.write_bytes(data)
    broker.start()


def test_a_batch_that_its_broker_cannot_read_is_told_and_passed_over(lone: LocalCluster) -> None:
    flip(lone, BODIES[2][:100], in_entry=True)
    with Admin(lone.nameserver) as admin:
        found = admin.find_messages(TOPIC, key="all")
        assert [message.body for message in found.messages] == [BODIES[0], BODIES[1], BODIES[3], BODIES[4]]
        [lost] = found.unread
        assert (str(lost.queue), lost.offset, lost.end_offset) == (f"{TOPIC}/broker-a/0", 2, 3)
        assert not found.is_complete


def test_a_batch_that_only_its_reader_sees_damaged_is_told(lone: LocalCluster) -> None:
    flip(lone, BODIES[2][:100], 50)
    with Admin(lone.nameserver) as admin:
        [lost] = admin.find_messages(TOPIC, key="all").unread
        assert (lost.offset, lost.end_offset) == (2, 3)
        assert admin.find_messages(TOPIC, key=KEYS[1]).is_complete
        assert not admin.find_messages(TOPIC, key=KEYS[1], verify=True).is_complete


def test_a_key_that_damage_hides_is_told_when_checksums_are_compared(lone: LocalCluster) -> None:
    flip(lone, KEYS[3].encode(), 4)
    with Admin(lone.nameserver) as admin:
        assert admin.find_messages(TOPIC, key=KEYS[3]).messages == ()
        found = admin.find_messages(TOPIC, key=KEYS[3], verify=True)
        assert [(lost.offset, lost.end_offset) for lost in found.unread] == [(3, 4)]


def test_what_retention_deletes_during_a_search_is_not_missed_in_what_stays(tmp_path: Path) -> None:
    with world_of(tmp_path, retention_bytes=300_000) as world:
        over = threading.Event()
        sender = threading.Thread(target=_send_keyed, args=(world, over))
        sender.start()
        try:
            wait_until(lambda: world.bounds()[0] > 0)
            with Admin(world.cluster.nameserver) as admin:
                before = 0
                while before < 200:
                    first = world.bounds()[0]
                    found = admin.find_messages(QUEUE.topic, key="k", limit=100_000)
                    assert found.unread == ()
                    offsets = [message.queue_offset for message in found.messages]
                    assert offsets == list(range(offsets[0], offsets[-1] + 1))
                    assert offsets[0] >= first
                    before = offsets[0]
        finally:
            over.set()
            sender.join()


def _send_keyed(world: World, over: threading.Event) -> None:
    with Producer(world.cluster.nameserver) as producer:
        while not over.is_set():
            producer.send(Message(QUEUE.topic, b"x" * 5_000, keys=("k",)), queue=QUEUE)


@pytest.mark.fault
def test_a_search_goes_on_when_its_broker_is_killed_and_comes_back(lone: LocalCluster) -> None:
    [broker] = lone.brokers
    killed = threading.Event()

    def kill(_done: int, _known: int) -> None:
        if not killed.is_set():
            killed.set()
            broker.kill()
            broker.start()

    with Admin(lone.nameserver, timeout_s=30) as admin, Producer(lone.nameserver, compression="zstd") as producer:
        list(producer.send_many([Message(TOPIC, b"x" * 900, keys=(f"k{n}", "many")) for n in range(20_000)]))
        found = admin.find_messages(TOPIC, key="many", limit=100_000, progress=kill)
    assert killed.is_set()
    assert (len(found.messages), found.is_complete) == (20_000, True)


@pytest.mark.fault
def test_a_broker_that_stays_offline_is_told(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster, Admin(cluster.nameserver, timeout_s=4) as hasty:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
        with Producer(cluster.nameserver) as producer:
            receipts = [producer.send(Message(TOPIC, b"x", keys=("k",))) for _ in range(10)]
        gone, there = cluster.brokers
        gone.kill()
        found = hasty.find_messages(TOPIC, key="k")
        assert {message.queue.broker_name for message in found.messages} == {there.name}
        assert len(found.messages) == sum(receipt.queue.broker_name == there.name for receipt in receipts)
        told = {each.queue.broker_name for each in found.unread} | {each.broker_name for each in found.offline}
        assert told == {gone.name}


@pytest.mark.fault
def test_a_slave_is_searched_and_named_when_its_master_is_gone(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster:
        with Producer(cluster.nameserver) as producer:
            receipts = [producer.send(Message(TOPIC, b"x", keys=(f"k{number}",))) for number in range(20)]
        wait_caught_up(cluster)
        cluster.brokers[0].kill()
        with Admin(cluster.nameserver, timeout_s=20) as admin:
            found = admin.find_messages(TOPIC, key="k7")
            assert [message.message_id for message in found.messages] == [receipts[7].message_id]
            assert found.unread == ()
            trace = admin.trace_message(receipts[7].message_id, topic=TOPIC)
            assert trace.is_known
            assert all(each.state is TraceState.WAITING for each in trace.groups)


def test_more_searches_than_a_broker_takes_at_once_all_get_their_turn(lone: LocalCluster) -> None:
    results: list[int] = []

    def search() -> None:
        with Admin(lone.nameserver, timeout_s=30) as admin:
            for _ in range(3):
                results.append(len(admin.find_messages(TOPIC, key="all").messages))

    threads = [threading.Thread(target=search) for _ in range(MAX_FINDS + 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [len(BODIES)] * 3 * len(threads)
