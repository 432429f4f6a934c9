"""Delayed messages: published once, in the order of their due times, never early, and not when recalled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from machine import store
from machine.kernel import HELD as NOT_IN_A_QUEUE
from machine.kernel import bodies, numbered, remember, stored
from machine.machine import CHECKS, ENDS, HELD, Machine, rule
from machine.model import FORGET_TOPIC, Model, Queue

_DAY_MS = 86_400_000
_DELAYS = (-5, 1, 50, 50, 1_000, 1_000, 60_000, 10 * _DAY_MS)
#: A batch that is due before others which are published already may be this much late.
_MAX_LATE_MS = 1_001
#: Longer than all delays.
_ALL_MS = 20 * _DAY_MS


class Waiting(NamedTuple):
    topic: str
    queue: Queue
    messages: int
    data: bytes
    is_recallable: bool
    due_ms: int


def waiting(model: Model) -> dict[store.HeldKey, Waiting]:
    return model.table("delayed")


@FORGET_TOPIC.append
def _forget(model: Model, topic_id: int) -> None:
    for name in ("delayed", "recalled"):
        model.tables[name] = {key: each for key, each in model.table(name).items() if each.queue[0] != topic_id}


@HELD.append
def _held(model: Model) -> Iterable[int]:
    return [key.position for key in waiting(model)]


@rule(10)
def delay(machine: Machine) -> None:
    if not (topic := machine.some_topic()):
        return
    chance, now = machine.chance, machine.clock.now_ms
    due_ms, is_recallable = now + chance.choice(_DELAYS), chance.random() < 0.7
    queue_id = chance.randrange(topic.queues)
    data = numbered(machine, topic).data if chance.random() < 0.5 else store.make_batch(bodies(machine))
    job = store.delay(topic.name, queue_id, data, due_ms, recallable=is_recallable)
    machine.write(job)
    if due_ms <= now:
        stored(machine, job)
        return
    assert job.error is None, job.error
    assert job.held is not None
    assert due_ms <= job.held.until_ms <= due_ms + _MAX_LATE_MS
    machine.note(f"{job.held}")
    batch = Waiting(topic.name, (topic.id, queue_id), job.header.count, data, is_recallable, due_ms)
    waiting(machine.model)[job.held] = batch
    remember(machine.model, job, topic, NOT_IN_A_QUEUE)


@rule(2)
def repeat_delayed(machine: Machine) -> None:
    """Send a delayed batch again that still waits."""
    sent = {value[0] for value in machine.model.table("sent").values() if value[2] is not None}
    known = [(key, batch) for key, batch in waiting(machine.model).items() if batch.data in sent]
    if known:
        key, batch = machine.chance.choice(known)
        job = store.delay(batch.topic, batch.queue[1], batch.data, batch.due_ms, recallable=batch.is_recallable)
        machine.write(job)
        assert job.error is None, job.error
        assert store.was_repeated(job)
        assert job.held == key


@rule(5)
def publish_due(machine: Machine) -> None:
    machine.clock.now_ms += machine.chance.choice((0, 1, 50, 50, 1_000, 60_000))
    publish(machine)


def publish(machine: Machine) -> None:
    """Publish all that is due."""
    due = sorted(key for key in waiting(machine.model) if key.until_ms <= machine.clock.now_ms)
    has_more = True
    while has_more:
        job = store.DueJob()
        machine.write(job)
        assert job.error is None, job.error
        assert job.lost == 0
        keys, due = due[: job.published], due[job.published :]
        for key in keys:
            batch = waiting(machine.model).pop(key)
            machine.release(batch.queue, batch.messages, batch.data, key.position)
        machine.mark()
        has_more = job.has_more
    assert not due, f"due, but not published: {due}"


@rule(6)
def recall(machine: Machine) -> None:
    model, chance = machine.model, machine.chance
    known = [*waiting(model).items(), *model.table("recalled").items()]
    if not known:
        return
    first, batch = chance.choice(known)
    keys = [first, *(key for key, _ in chance.sample(known, min(2, len(known))))]
    job = store.recall(batch.topic, keys)
    expected = [_recalled(model, key, batch.queue[0]) for key in keys]
    machine.write(job)
    assert job.error is None, job.error
    for key, outcome, wanted in zip(keys, job.outcomes, expected, strict=True):
        # Once the entry of a recalled batch is deleted, nothing names its topic, and then that it was recalled.
        is_forgotten = key in model.table("recalled") and {outcome, wanted} == {
            store.RecallOutcome.ALREADY_RECALLED,
            store.RecallOutcome.TOO_LATE,
        }
        assert outcome is wanted or is_forgotten, f"{key}: {outcome!r} instead of {wanted!r}"


def _recalled(model: Model, key: store.HeldKey, topic_id: int) -> store.RecallOutcome:
    recalled = model.table("recalled")
    if key in recalled and recalled[key].queue[0] == topic_id:
        return store.RecallOutcome.ALREADY_RECALLED
    batch = waiting(model).get(key)
    if batch is None or batch.queue[0] != topic_id:
        return store.RecallOutcome.TOO_LATE
    if not batch.is_recallable:
        return store.RecallOutcome.NOT_RECALLABLE
    recalled[key] = waiting(model).pop(key)
    return store.RecallOutcome.RECALLED


@rule(2)
def set_clock_back(machine: Machine) -> None:
    machine.clock.now_ms -= machine.chance.choice((500, 2_000, _DAY_MS))


@CHECKS.append
def _check(machine: Machine) -> None:
    there, next_ms = waiting(machine.model), machine.store.next_due_ms
    assert not there or (next_ms is not None and next_ms <= min(there).until_ms), "the timer would miss a batch"
    for topic in machine.model.topics.values():
        expected = sorted(key for key, batch in there.items() if batch.queue[0] == topic.id)
        assert machine.store.delayed(topic.id) == (len(expected), expected)


@ENDS.append
def _end(machine: Machine) -> None:
    machine.clock.now_ms += _ALL_MS
    publish(machine)
    assert not waiting(machine.model)
    machine.check()
