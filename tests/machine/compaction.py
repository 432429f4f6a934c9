"""Compaction: the newest message of each key stays, at its offset, and a tombstone outlives what it deletes."""

from __future__ import annotations

from machine import store
from machine.kernel import new_topic, stored
from machine.machine import ENDS, READERS, Machine, rule
from machine.model import Batch, Topic
from machine.store import NOTHING_NEEDED, TOMBSTONE_MS, Found, Record

_KEYS = ("a", "b", "c", "d", "a key that is longer than its hash")


@rule(2)
def create_compacted_topic(machine: Machine) -> None:
    new_topic(machine, "compacted")


@rule(8)
def append_keyed(machine: Machine) -> None:
    if place := machine.some_queue("compacted"):
        topic, (_, queue_id) = place
        data = store.make_keyed_batch([_message(machine) for _ in range(machine.chance.randint(1, 4))])
        job = store.append(topic.name, queue_id, data)
        machine.write(job)
        stored(machine, job)


def _message(machine: Machine) -> tuple[str, bytes]:
    chance = machine.chance
    body = b"" if chance.random() < 0.2 else b"%d " % machine.number() + bytes(chance.choice((0, 500)))
    return chance.choice(_KEYS), body


@rule(5, crashes=0.5, points=24)
def compact(machine: Machine) -> None:
    machine.clock.now_ms += machine.chance.choice((0, TOMBSTONE_MS // 2, TOMBSTONE_MS))
    if machine.chance.random() < 0.7:
        machine.store.roll()
        machine.store.save()
    machine.store.compact(machine.needed_from if machine.chance.random() < 0.7 else NOTHING_NEEDED)


def check(machine: Machine, topic: Topic, expected: tuple[Batch, ...], found: list[Found]) -> None:
    """Verify that what is left are messages as they were sent, among them the newest of each key."""
    sent = store.records([Found(each.base, each.stored_ms, each.data) for each in expected])
    left = store.records(found)
    by_offset = {each.offset: each for each in sent}
    assert [each.offset for each in left] == sorted({each.offset for each in left})
    assert left == [by_offset.get(each.offset) for each in left], f"{topic.name} has messages that were not sent"
    newest = _newest(sent)
    missing = newest.keys() - _newest(left).keys()
    wrong = [key for key, each in _newest(left).items() if newest[key] != each]
    assert not wrong, f"{topic.name}: older messages of {wrong} came back"
    stored_ms = {offset: each.stored_ms for each in expected for offset in range(each.base, each.end)}
    for key in missing:
        is_expired = stored_ms[newest[key].offset] + TOMBSTONE_MS <= machine.latest_ms
        assert not newest[key].body, f"{topic.name}: the message of {key!r} is lost"
        assert is_expired, f"{topic.name}: the tombstone of {key!r} is lost"


def _newest(records: list[Record]) -> dict[bytes, Record]:
    return {each.key: each for each in records}


READERS["compacted"] = check


@ENDS.append
def _end(machine: Machine) -> None:
    """Once all is compacted, there is one message of each key, and no tombstone."""
    for _ in range(4):
        machine.store.roll()
        machine.store.save()
        machine.store.compact()
        machine.clock.now_ms += TOMBSTONE_MS * 2
    machine.check()
    if machine.model.table("staged"):  # compaction must not go beyond half messages
        return
    for topic in machine.model.topics.values():
        for queue_id in range(topic.queues if topic.kind == "compacted" else 0):
            left = store.records(machine.store.read(topic.id, queue_id))
            keys = [each.key for each in left]
            assert len(keys) == len(set(keys)), f"{topic.name}: several messages of a key are left"
            assert all(each.body for each in left), f"{topic.name}: tombstones are left"
