"""Retention: only what has expired is deleted, and nothing that is needed later."""

from __future__ import annotations

from machine.kernel import new_topic
from machine.machine import ENDS, Machine, rule
from machine.store import AGE_MS, NOTHING_NEEDED

_MANY_ROUNDS = 6
#: What may be left in the end: the active segment, and one that was begun for it.
_MAX_LEFT = 2


@rule(4)
def create_topic_with_age(machine: Machine) -> None:
    new_topic(machine, "plain", age_ms=machine.chance.choice((AGE_MS // 4, AGE_MS * 10)))


@rule(9, crashes=0.5, points=24)
def retain(machine: Machine) -> None:
    if machine.chance.random() < 0.5:
        machine.clock.now_ms += machine.chance.choice((AGE_MS // 8, AGE_MS))
    look(machine)


def look(machine: Machine) -> None:
    """Look twice: what is needed is known once the state at the first look is saved."""
    needed_from = machine.needed_from if machine.chance.random() < 0.7 else NOTHING_NEEDED
    machine.retain(machine.store, needed_from)
    if machine.chance.random() < 0.7:
        machine.store.save()
        machine.retain(machine.store, needed_from)


@ENDS.append
def _end(machine: Machine) -> None:
    """Without anything that must stay, the log shrinks to its end."""
    machine.clock.now_ms += AGE_MS * 11
    for _ in range(_MANY_ROUNDS):
        machine.store.save()
        machine.retain(machine.store)
    machine.check()
    kinds = {topic.kind for topic in machine.model.topics.values()}
    if "compacted" not in kinds and not machine.model.table("staged"):
        assert len(machine.store.segments) <= _MAX_LEFT, f"segments {machine.store.segments} are left"
        assert not any(
            machine.store.read(topic.id, queue_id)
            for topic in machine.model.topics.values()
            for queue_id in range(topic.queues)
        )
