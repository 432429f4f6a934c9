"""Staged batches of transactions, and half messages: nothing is visible before the decision, then all of it, once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from machine import store
from machine.kernel import PRODUCERS, numbered
from machine.machine import CHECKS, ENDS, HELD, Machine, rule
from machine.model import FORGET_TOPIC, Model, Queue
from machine.store import HalfOutcome, TransactionId

_NAMES = ("x", "y")
#: Names of half messages; their numbers are random.
_HALF_NAMES = ("@p", "@q")
#: Numbers of transactions are larger than all ids of topics.
_FIRST = 1 << 40


class Staged(NamedTuple):
    queue: Queue
    messages: int
    data: bytes
    position: int


#: Transaction, producer id, sequence number.
Key = tuple[TransactionId, int, int]


def staged(model: Model) -> dict[Key, Staged]:
    """Return the batches of undecided transactions."""
    return model.table("staged")


def unpublished(model: Model) -> dict[str, tuple[Staged, ...]]:
    return model.table("unpublished")


def decided(model: Model) -> dict[str, int]:
    return model.table("decided")


def outcomes(model: Model) -> dict[TransactionId, HalfOutcome]:
    return model.table("outcomes")


@FORGET_TOPIC.append
def _forget(model: Model, topic_id: int) -> None:
    model.tables["staged"] = {key: each for key, each in staged(model).items() if each.queue[0] != topic_id}
    for name, batches in [*unpublished(model).items()]:
        _leave(model, name, [each for each in batches if each.queue[0] != topic_id])


def _leave(model: Model, name: str, batches: Iterable[Staged]) -> None:
    unpublished(model).pop(name, None)
    if left := tuple(batches):
        unpublished(model)[name] = left


@HELD.append
def _held(model: Model) -> Iterable[int]:
    return [each.position for batches in (staged(model).values(), *unpublished(model).values()) for each in batches]


@rule(8)
def stage(machine: Machine) -> None:
    name = machine.chance.choice(_NAMES)
    latest = decided(machine.model).get(name, _FIRST)
    _stage(machine, TransactionId(name, latest + machine.chance.choice((0, 1, 1, 1, 2))))


@rule(5)
def stage_half(machine: Machine) -> None:
    name, producer_id = machine.chance.choice(tuple(zip(_HALF_NAMES, PRODUCERS, strict=True)))
    _stage(machine, TransactionId(name, _FIRST + machine.chance.randrange(8)), producer_id)


def _stage(machine: Machine, transaction: TransactionId, producer_id: int = 0) -> None:
    model, topic = machine.model, machine.some_topic()
    if topic is None:
        return
    again = [key for key in staged(model) if key[0] == transaction and machine.chance.random() < 0.2]
    batch = numbered(machine, topic)
    while producer_id not in (0, batch.header.producer_id):
        batch = numbered(machine, topic)
    data = staged(model)[again[0]].data if again else batch.data
    queue_id = machine.chance.randrange(topic.queues)
    job = store.append(topic.name, queue_id, data, transaction)
    machine.note(f"{transaction}")
    machine.write(job)
    if transaction in outcomes(model) or transaction.number <= decided(model).get(transaction.name, -1):
        assert isinstance(job.error, store.TransactionEnded)
    elif again:
        if staged(model)[again[0]].queue[0] == topic.id:
            assert job.error is None, job.error
            assert store.was_repeated(job)
        else:
            assert job.error is not None
    else:
        assert job.error is None, job.error
        number = job.header.producer_id, job.header.sequence
        position = machine.store.staged_position(transaction, *number)
        staged(model)[transaction, *number] = Staged((topic.id, queue_id), job.header.count, data, position)


@rule(4)
def decide(machine: Machine) -> None:
    """Decide on most batches of a transaction; all others up to its number are dropped."""
    model, chance, name = machine.model, machine.chance, machine.chance.choice(_NAMES)
    transactions = sorted({key[0] for key in staged(model) if key[0].name == name})
    transaction = chance.choice(transactions) if transactions else TransactionId(name, _next(model, name))
    chosen = [key for key in staged(model) if key[0] == transaction and chance.random() < 0.8]
    parts: dict[int, list[int]] = {}
    for _, producer_id, sequence in chosen:
        parts.setdefault(producer_id, []).append(sequence)
    machine.note(f"{transaction} {parts}")
    fact = store.decided(transaction, parts)
    job = chance.choice((store.decide, store.record))(fact)  # a fact alone: as on a full disk
    machine.write(job)
    assert job.error is None, job.error
    batches = [staged(model)[transaction, pid, each] for pid, sequences in parts.items() for each in sequences]
    decided(model)[name] = transaction.number
    _leave(model, name, (*unpublished(model).get(name, ()), *batches))
    _drop(model, lambda other: other.name == name and other.number <= transaction.number)
    if isinstance(job, store.DecideJob):
        _released(machine, job)


def _next(model: Model, name: str) -> int:
    return decided(model).get(name, _FIRST) + 1


def _drop(model: Model, is_gone: object) -> None:
    assert callable(is_gone)
    model.tables["staged"] = {key: each for key, each in staged(model).items() if not is_gone(key[0])}


@rule(4)
def publish(machine: Machine) -> None:
    if names := sorted(unpublished(machine.model)):
        _publish(machine, machine.chance.choice(names))


def _publish(machine: Machine, name: str) -> None:
    job = store.PublishJob(name)
    machine.write(job)
    assert job.error is None, job.error
    _released(machine, job)
    assert name not in unpublished(machine.model)


def _released(machine: Machine, job: store.PublishJob) -> None:
    batches = unpublished(machine.model).get(job.name, ())
    assert job.has_more == (job.published < len(batches))
    for batch in batches[: job.published]:
        machine.release(batch.queue, batch.messages, batch.data, batch.position)
    _leave(machine.model, job.name, batches[job.published :])


@rule(1)
def expire(machine: Machine) -> None:
    if transactions := sorted({key[0] for key in staged(machine.model) if key[0].name in _NAMES}):
        gone = machine.chance.choice(transactions)
        machine.write(store.expire(gone))
        _drop(machine.model, lambda transaction: transaction == gone)


@rule(4)
def end_half(machine: Machine) -> None:
    """End a transaction with half messages: by its producer, which knows how many there are, or by another."""
    model, chance = machine.model, machine.chance
    transactions = sorted({key[0] for key in staged(model) if key[0].name in _HALF_NAMES} | {*outcomes(model)})
    if not transactions:
        return
    transaction = chance.choice(transactions)
    batches = [staged(model)[key] for key in sorted(staged(model)) if key[0] == transaction]
    wanted = chance.choice((HalfOutcome.COMMITTED, HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK))
    known = chance.choice((0, len(batches), len(batches), len(batches) + 1))
    job = store.EndJob(*transaction, wanted, known)
    machine.note(f"{transaction} {wanted}, {known} of {len(batches)}")
    machine.write(job)
    assert job.error is None, job.error
    if transaction not in outcomes(model) and (batches or known):
        is_expired = wanted is HalfOutcome.COMMITTED and known not in (0, len(batches))
        outcomes(model)[transaction] = outcome = HalfOutcome.EXPIRED if is_expired else wanted
        _drop(model, lambda other: other == transaction)
        if outcome is HalfOutcome.COMMITTED:
            _leave(model, transaction.name, (*unpublished(model).get(transaction.name, ()), *batches))
    assert job.stands is outcomes(model).get(transaction)
    _released(machine, job)  # and what earlier commits have left
    assert not job.has_more


@rule(2)
def stage_and_end_half(machine: Machine) -> None:
    """Stage a batch and commit it in one commit: it is published later, since the log lacks it."""
    model, topic = machine.model, machine.some_topic()
    if topic is None:
        return
    batch, transaction = numbered(machine, topic), TransactionId("@r", _FIRST + machine.number())
    first = store.append(topic.name, batch.queue_id, batch.data, transaction)
    end = store.EndJob(*transaction, HalfOutcome.COMMITTED, 1)
    machine.write(first, end)
    assert (first.error, end.error, end.stands, end.has_more) == (None, None, HalfOutcome.COMMITTED, True)
    outcomes(model)[transaction] = HalfOutcome.COMMITTED
    position = machine.store.unpublished_from(transaction.name, batch.header.sequence)
    waiting = Staged((topic.id, batch.queue_id), batch.header.count, batch.data, position)
    left = (*unpublished(model).get(transaction.name, ()), waiting)
    _leave(model, transaction.name, left)
    assert end.published == len(left) - 1
    _released(machine, end)


@CHECKS.append
def _check(machine: Machine) -> None:
    there = [*staged(machine.model).values(), *(each for left in unpublished(machine.model).values() for each in left)]
    table = machine.store.staged
    assert table.count == len(there), f"{table.count} batches are staged instead of {len(there)}"
    assert {*table.unpublished} == unpublished(machine.model).keys()


@ENDS.append
def _end(machine: Machine) -> None:
    for name in sorted(unpublished(machine.model)):
        _publish(machine, name)
    machine.check()
