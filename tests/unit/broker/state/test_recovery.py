"""A start after whatever end: the state and the messages are those of before, against a plain model in memory."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from minimq_broker.commit.jobs import AppendStatus
from minimq_broker.state.facts import CommittedOffset, GroupStarted, OffsetsCommitted, Topic, TopicSet
from minimq_broker.state.state import QueueKey
from support.states import rows
from support.stores import TIMEOUT_S, OpenStore, Stores, numbered_batch

QUEUES = 3
TOPICS = ("red", "green", "blue")
GROUPS = ("g", "h")


@dataclass
class Model:
    """The content that a store must have: bodies and committed offsets, in plain lists and dicts."""

    bodies: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    write_queues: dict[str, int] = field(default_factory=dict)
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    #: Topic, queue and offset of each numbered batch.
    numbered: dict[tuple[int, int], tuple[str, int, int]] = field(default_factory=dict)

    def compare(self, store: OpenStore) -> None:
        state = store.state
        assert {name: topic.write_queues for name, topic in state.topics.items()} == self.write_queues
        for (topic, queue_id), every in self.bodies.items():
            queue = store.key(topic, queue_id)
            assert store.store.bounds(queue) == (0, len(every))
            assert store.bodies(topic, queue_id) == every
        offsets = {
            (group, name, queue_id): offset
            for name, topic in state.topics.items()
            for queue_id in range(QUEUES)
            for group in GROUPS
            if (offset := state.offset(group, QueueKey(topic.topic_id, queue_id))) is not None
        }
        assert offsets == self.committed


class Simulation:
    """Random operations on a store and on the model."""

    def __init__(self, stores: Stores, seed: int) -> None:
        self.stores = stores
        self.chance = random.Random(seed)
        self.model = Model()
        self.number = 0
        self.copies = 0
        self.name = "data"
        self.store = self.open()

    def open(self) -> OpenStore:
        opened = self.stores.open(self.name, segment_bytes=96 << 10)
        opened.record(lambda _: None)  # comes back behind the fact that a term has begun
        return opened

    def step(self) -> None:
        actions = (
            [self.append] * 12
            + [self.append_numbered] * 6
            + [self.repeat] * 6
            + [self.commit] * 4
            + [self.create, self.delete, self.resize, self.started]
        )
        self.chance.choice(actions)()
        self.stores.clock.now_ms += self.chance.choice([0, 1, 1000])

    def append(self) -> None:
        if not self.model.write_queues:
            return
        topic = self.chance.choice(sorted(self.model.write_queues))
        queue_id = self.chance.randrange(self.model.write_queues[topic])
        count = self.chance.randint(1, 5)
        bodies = [b"%d " % (self.number + index) + bytes(self.chance.randint(0, 2500)) for index in range(count)]
        self.number += count
        every = self.model.bodies.setdefault((topic, queue_id), [])
        assert self.store.append(topic, queue_id, *bodies) == len(every)
        every += bodies

    def append_numbered(self) -> None:
        if self.model.write_queues:
            self.number += 1
            self.send(self.chance.randint(1, 5), self.number)

    def repeat(self) -> None:
        if self.model.numbered:
            self.send(*self.chance.choice(sorted(self.model.numbered)))

    def send(self, producer_id: int, sequence: int) -> None:
        """Send a numbered batch, which is stored unless it is already, to any queue of its topic."""
        former = self.model.numbered.get((producer_id, sequence))
        topic = former[0] if former else self.chance.choice(sorted(self.model.write_queues))
        queue_id = self.chance.randrange(self.model.write_queues[topic])
        body = b"%d/%d" % (producer_id, sequence)
        job = self.store.submit(topic, queue_id, numbered_batch(producer_id, sequence, body)).result(TIMEOUT_S)
        place = topic, job.stored_queue_id, job.base_offset
        if former:
            assert (place, job.status) == (former, AppendStatus.ALREADY_STORED)
            return
        every = self.model.bodies.setdefault((topic, queue_id), [])
        assert (place, job.status) == ((topic, queue_id, len(every)), AppendStatus.OK)
        every.append(body)
        self.model.numbered[producer_id, sequence] = place

    def commit(self) -> None:
        if not self.model.bodies:
            return
        topic, queue_id = self.chance.choice(sorted(self.model.bodies))
        group, forced = self.chance.choice(GROUPS), self.chance.random() < 0.2
        offset = self.chance.randint(0, len(self.model.bodies[topic, queue_id]))
        queue = self.store.key(topic, queue_id)
        self.store.record(OffsetsCommitted(group, (CommittedOffset(*queue, offset),), forced), alone=False)
        key = group, topic, queue_id
        self.model.committed[key] = offset if forced else max(offset, self.model.committed.get(key, 0))

    def create(self) -> None:
        topic = self.chance.choice(TOPICS)
        if topic not in self.model.write_queues:
            self.store.create_topic(topic, QUEUES)
            self.model.write_queues[topic] = QUEUES

    def delete(self) -> None:
        topic = self.chance.choice(TOPICS)
        if topic in self.model.write_queues and self.chance.random() < 0.3:
            self.store.delete_topic(topic)
            del self.model.write_queues[topic]
            self.model.bodies = {key: every for key, every in self.model.bodies.items() if key[0] != topic}
            self.model.committed = {key: at for key, at in self.model.committed.items() if key[1] != topic}
            self.model.numbered = {key: at for key, at in self.model.numbered.items() if at[0] != topic}

    def resize(self) -> None:
        if self.model.write_queues:
            topic = self.chance.choice(sorted(self.model.write_queues))
            queues = self.model.write_queues[topic] = self.chance.randint(1, QUEUES)
            self.store.record(TopicSet(Topic(topic, self.store.state.topic(topic).topic_id, QUEUES, queues)))

    def started(self) -> None:
        if self.model.write_queues:
            topic = self.chance.choice(sorted(self.model.write_queues))
            topic_id = self.store.state.topic(topic).topic_id
            offsets = tuple(CommittedOffset(topic_id, queue_id, 0) for queue_id in range(QUEUES))
            self.store.record(GroupStarted("starters", topic_id, offsets))

    def stop_and_start(self) -> None:
        """End in order, which saves the state."""
        before = rows(self.store.state)
        self.store.close()
        self.store = self.open()
        self.compare_with(before)

    def crash_and_start(self) -> None:
        """Go on with a copy of the files as they are just now: the last checkpoint is that of the start."""
        before = rows(self.store.state)
        self.copies += 1
        former, self.name = self.store, f"data-{self.copies}"
        shutil.copytree(former.path, self.stores.folder / self.name)
        self.store = self.open()
        self.compare_with(before)
        former.close()

    def compare_with(self, before: dict[str, Any]) -> None:
        after = rows(self.store.state)
        assert after["term"] == before["term"] + 1
        assert after["position"] > before["position"]
        assert after["terms"][:-1] == before["terms"]
        other = {"term": 0, "terms": [], "position": 0}
        assert {**after, **other} == {**before, **other}
        self.model.compare(self.store)


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_survive_every_start(stores: Stores, seed: int) -> None:
    simulation = Simulation(stores, seed)
    for _ in range(8):
        for _ in range(simulation.chance.randint(5, 60)):
            simulation.step()
        simulation.model.compare(simulation.store)
        simulation.chance.choice([simulation.stop_and_start, simulation.crash_and_start])()

    assert len(simulation.store.store.log.segments) > 1


def test_a_crash_between_a_new_segment_and_its_first_entry(stores: Stores) -> None:
    store = stores.open()
    store.create_topic("t")
    store.append("t", 0, b"a")
    store.close()
    # As the writer leaves it when it dies while it makes the file.
    end = store.store.state.position
    (store.path / "commitlog" / f"{end:020d}.mdb.new").touch()
    again = stores.open()

    assert again.bodies("t", 0) == [b"a"]
    again.store.call(lambda: again.store.log.roll(again.store.end))
    assert again.append("t", 0, b"b") == 1
    assert len(again.store.log.segments) == 2


def test_offsets_of_a_queue_go_on_when_its_messages_are_gone_with_old_segments(stores: Stores, tmp_path: Path) -> None:
    store = stores.open(segment_bytes=96 << 10)
    store.create_topic("t", 2)
    for number in range(30):
        assert store.append("t", 0, bytes(20_000)) == number
    store.append("t", 1, b"other")
    store.close()
    segments = sorted((store.path / "commitlog").glob("*.mdb"))
    for file in segments[:-1]:
        file.unlink()
    stores.damaged.add(store.path)  # retention records what it deletes
    again = stores.open(segment_bytes=96 << 10)
    first, end = again.store.bounds(again.key("t", 0))

    assert 0 < first <= end == 30
    assert again.append("t", 0, b"next") == 30
    assert again.store.offset_at(again.key("t", 0), 0) == first
