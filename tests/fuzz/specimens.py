"""Data directories to be damaged, each with what was written to it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from minimq_broker.commit.store import Store
from minimq_broker.log.data_dir import Owner
from minimq_broker.log.file_checksum import make_checksum
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted, Topic, TopicSet
from minimq_broker.state.state import QueueKey
from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.records import RecordBatch
from minimq_common.model import Message
from minimq_common.replicas.replica_set import ReplicaSet
from minimq_nameserver.controller.decisions import DecisionFile
from support.kernel_stores import TIMEOUT_S, batches_of, numbered_batch
from support.stores import OpenStore, Stores

OWNER = Owner("default", "broker-a", 0)
DEAD = "%DLQ%g"
#: A FIFO topic.
ORDERED = "ordered"
GROUPS = tuple(f"group-{number}" for number in range(20))
_ROUNDS = 4


class Batch(NamedTuple):
    """A batch of a queue."""

    base_offset: int
    stored_ms: int
    bodies: list[bytes]


class Truth(msgspec.Struct):
    """The content that was written to the data directory of a broker.

    Attributes:
        queues: all batches, by topic and queue.
        offsets: committed offsets, by group and queue of the topic "t".
    """

    queues: list[tuple[str, int, list[Batch]]] = []
    offsets: list[tuple[str, int, int]] = []


def make(folder: Path) -> dict[str, Truth]:
    """Make the directories "master", "slave" and "controller", and return what is in the first two."""
    stores, before = Stores(folder), folder.with_name("state-before")
    master = _open(stores, "master", alone=True)
    for name in ("t", DEAD):
        master.create_topic(name, queues=2)
    master.record(lambda state: TopicSet(Topic(ORDERED, state.position, 2, 2, fifo=True)))
    for number in range(_ROUNDS):
        _fill(master, number)
        _roll(master)
    master.close()  # which saves the state
    shutil.copyfile(folder / "master" / "state.mdb", before)
    master = _open(stores, "master", alone=True)
    _fill(master, _ROUNDS)
    slave = _open(stores, "slave", alone=False)
    slave.take_from(master, 30_000)
    slave.store.writer.call(lambda: slave.store.log.roll(slave.store.end))
    slave.take_from(master, 30_000)
    slave.store.confirmation.confirm(slave.store.end)
    slave.close()
    slave = _open(stores, "slave", alone=False)
    slave.take_from(master)
    slave.store.confirmation.confirm(slave.store.end)
    assert master.store.remove_first(1 << 60)
    truths = {"master": _truth(master.store), "slave": _truth(slave.store)}
    master.close()
    slave.close()
    for name in truths:
        for file in sorted((folder / name / "commitlog").glob("*.mdb"))[:-1]:
            for _ in make_checksum(file):
                pass
    # As after a crash: what came since has to be found in the log.
    shutil.copyfile(before, folder / "master" / "state.mdb")
    with closing(DecisionFile(folder / "controller")) as decisions:
        for record in records():
            decisions.save(record)
    return truths


def records() -> list[ReplicaSet]:
    """Return what the controller has decided."""
    return [
        ReplicaSet(
            cluster="default",
            broker_name=f"broker-{number}",
            term=number + 1,
            master_id=0,
            master_run=7 + number,
            in_sync=frozenset({0, number}),
            version=5,
            sync=True,
            min_in_sync=2,
            lease_s=3.0,
            addresses={each: f"127.0.0.1:{10_911 + each}" for each in range(number + 1)},
            log_id=f"{number:032x}",
        )
        for number in range(40)
    ]


def _open(stores: Stores, name: str, *, alone: bool) -> OpenStore:
    return stores.open(name, alone=alone, segment_bytes=1 << 20, owner=OWNER)


def _roll(store: OpenStore) -> None:
    store.store.writer.call(lambda: store.store.log.roll(store.store.end))


def _fill(store: OpenStore, number: int) -> None:
    for each in range(8):
        queue_id = each % 2
        bodies = [b"%d/%d/%d " % (number, each, index) + bytes([65 + each]) * 40 for index in range(5)]
        store.append("t", queue_id, *bodies)
        store.append("t", queue_id, b"large %d/%d " % (number, each) + b"%d" % each * (1500 * each))
    for queue_id in range(2):
        store.append(DEAD, queue_id, b"dead %d/%d" % (number, queue_id))
        store.submit(ORDERED, queue_id, _of_account(number)).result(TIMEOUT_S)
    for index, group in enumerate(GROUPS):
        store.record(OffsetsCommitted(group, (CommittedOffset(*store.key("t", index % 2), 3 * number + index + 1),)))
    for sequence in range(2):
        store.stage("job", number + 1, "t", sequence, numbered_batch(9, 10 * number + sequence, b"staged %d" % number))
    store.decide("job", number + 1, {9: [10 * number, 10 * number + 1]})
    store.publish("job")
    store.clock.now_ms += 1000


def _of_account(number: int) -> bytes:
    """Return a batch of one message group."""
    builder = BatchBuilder(1 << 20, message_group=f"account-{number}")
    builder.add([Message(ORDERED, b"entry %d/%d" % (number, index)) for index in range(3)])
    return builder.build(1_600_000_000_000, 0, 0)


def _truth(store: Store) -> Truth:
    truth = Truth()
    for name in ("t", ORDERED, DEAD):
        for queue_id in range(2):
            key = store.state.queue(name, queue_id)
            found = batches_of(store, key, store.bounds(key)[0], 1 << 40, 1 << 40)
            batches = [
                Batch(each.base_offset, each.stored_ms, list(map(bytes, RecordBatch(each.data).bodies())))
                for each in found
            ]
            assert sum(len(each.bodies) for each in batches) >= _ROUNDS
            truth.queues.append((name, queue_id, batches))
    for group in GROUPS:
        for queue_id in range(2):
            truth.offsets.append((group, queue_id, store.state.offset(group, store.state.queue("t", queue_id)) or -1))
    return truth


def key_of(store: Store, topic: str, queue_id: int) -> QueueKey:
    """Return the key of a queue."""
    return store.state.queue(topic, queue_id)
