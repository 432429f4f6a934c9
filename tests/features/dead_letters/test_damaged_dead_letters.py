"""Damaged batches among dead letters: real stores with flipped bits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, WorkQueueConsumer
from minimq_broker.log.entry import HEADER_BYTES
from minimq_common.errors import CorruptBatch, CorruptEntry, DamagedMessages
from minimq_common.names import dead_letter_topic
from support.command import Minimq
from support.reading import read_all

GROUP = "g"
DEAD = MessageQueue(dead_letter_topic(GROUP), "broker-a", 0)
#: One for each batch, so large that LMDB gives each pages of its own, of which no older copies lie about.
BODIES = [word * 600 for word in (b"first..", b"second.", b"third..", b"fourth.", b"fifth..")]
#: Bytes of a page of LMDB, of its header, and of the header of an entry.
PAGE, PAGE_HEADER = 4096, 16


def flip(cluster: LocalCluster, *places: Callable[[bytes], list[int]]) -> None:
    """Flip bits in the log, while the broker is stopped."""
    [broker] = cluster.brokers
    broker.stop()
    [segment] = Path(broker.data_dir, "commitlog").glob("*.mdb")
    data = bytearray(segment.read_bytes())
    for found in places:
        ats = found(bytes(data))
        assert ats
        for at in ats:
            data[at] ^= 1
    segment.write_bytes(data)
    broker.start()


def in_body(body: bytes) -> Callable[[bytes], list[int]]:
    """Return what finds a byte of a dead letter by which its reader sees damage."""
    return lambda data: [_dead(data, body) + 10]


def in_entry(body: bytes) -> Callable[[bytes], list[int]]:
    """Return what finds a byte of the entry of a dead letter by which its broker sees damage."""
    return lambda data: [_dead(data, body) // PAGE * PAGE + PAGE_HEADER + HEADER_BYTES - 5]


def _dead(data: bytes, body: bytes) -> int:
    """Return where the body of a dead letter begins: behind the properties that dead letters have."""
    ats = [found.start() for found in re.finditer(body, data)]
    [at] = [at for at in ats if b"DEAD_LETTER_REASON" in data[at // PAGE * PAGE : at]]
    return at


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster with five dead letters of a group, a batch each."""
    with LocalCluster(brokers=1, data_dir=tmp_path) as made:
        with (
            Admin(made.nameserver) as admin,
            Producer(made.nameserver) as producer,
            WorkQueueConsumer(made.nameserver, group=GROUP) as consumer,
        ):
            admin.create_topic("t", queues=1)
            consumer.subscribe("t")
            for body in BODIES:
                producer.send(Message("t", body))
                [message] = consumer.receive(1, timeout=30)
                consumer.reject(message, "odd")
        yield made


def test_damage_is_named_and_the_other_letters_are_resent_once(cluster: LocalCluster) -> None:
    flip(cluster, in_body(BODIES[1]), in_entry(BODIES[3]))
    minimq = Minimq(cluster.nameserver)
    with Admin(cluster.nameserver) as admin:
        told: list[DamagedMessages] = []
        letters = list(admin.dead_letters(GROUP, on_damage=told.append))
        assert [letter.body for letter in letters] == BODIES[::2]
        assert [type(error) for error in told] == [CorruptBatch, CorruptEntry]
        assert [(error.queue, error.offset, error.next_offset) for error in told] == [(DEAD, 1, 2), (DEAD, 3, 4)]
        assert [item.count for item in admin.count_dead_letters(on_damage=told.append)] == [3]
        with pytest.raises(CorruptBatch, match="at offset 1 ") as raised:
            list(admin.dead_letters(GROUP))
        assert raised.value.offset == 1
        with pytest.raises(CorruptBatch, match="0 dead letters of group g were resent, others may be left"):
            admin.resend_dead_letters(GROUP, reason="even")

    listed = minimq("dlq", "list", GROUP, status=1)
    assert "damaged, not counted: queue %DLQ%g/broker-a/0 at offset 1 " in listed
    assert "damaged, not counted: queue %DLQ%g/broker-a/0 cannot be read from offset 3 on: " in listed
    assert listed.endswith("2 batches are damaged: run minimq-broker check on their brokers\n")
    assert "damaged, not shown: " in minimq("dlq", "describe", GROUP, status=1)
    planned = minimq.json("dlq", "resend", GROUP, "--all", "--dry-run", status=1)
    assert any(row["note"].startswith("damaged, not resent: ") for row in planned)
    assert "2 batches are damaged" in minimq("dlq", "resend", GROUP, "--all", status=1)
    assert "2 batches are damaged" in minimq("dlq", "resend", GROUP, "--all", status=1)
    again = Counter(message.body for message in read_all(cluster.nameserver, "t"))
    assert again == Counter({body: 2 - number % 2 for number, body in enumerate(BODIES)})
    assert "2 batches are damaged" in minimq("dlq", "delete", GROUP, "--all", status=1)
    assert len(read_all(cluster.nameserver, "t")) == len(BODIES) + 3
