"""Work queues: each message is with one consumer at a time, until it is settled; message groups keep their order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from machine import store
from machine.kernel import bodies, new_topic, numbered, stored
from machine.machine import CHECKS, ENDS, Machine, rule
from machine.model import FORGET_GROUP, FORGET_TOPIC, Model, Queue, Topic
from machine.store import PopKey, PopOutcome, RunState

_GROUPS = ("w1", "w2")
_CLIENTS = ("a", "b", "c")
_MESSAGE_GROUPS = ("m1", "m2", "m3")
#: Deliveries that consumers may still settle, though others have their messages.
_REMEMBERED = 4
_OUTCOMES = (*(PopOutcome.DONE,) * 2, *(PopOutcome.EXTEND,) * 2, PopOutcome.FREE, PopOutcome.RETURN)
_FREE, _OUT, _DONE = RunState.FREE, RunState.OUT, RunState.DONE


class Message(NamedTuple):
    """The state of one message: see `Run`."""

    state: RunState = _DONE
    delivery_count: int = 0
    until_ms: int = 0
    epoch: int = 0
    client: str = ""


#: The messages of a queue from offset 0 to the first one that was never delivered.
Messages = tuple[Message, ...]


def pops(model: Model) -> dict[PopKey, Messages]:
    return model.table("pops")


@FORGET_TOPIC.append
def _forget_topic(model: Model, topic_id: int) -> None:
    model.tables["pops"] = {key: each for key, each in pops(model).items() if key.topic_id != topic_id}


@FORGET_GROUP.append
def _forget_group(model: Model, group: str) -> None:
    model.tables["pops"] = {key: each for key, each in pops(model).items() if key.group != group}


def deliveries(model: Model) -> dict[PopKey, tuple[tuple[int, tuple[int, ...]], ...]]:
    """Return the latest deliveries of each queue: their epoch and messages."""
    return model.table("deliveries")


def _done(messages: Messages) -> int:
    return next((offset for offset, each in enumerate(messages) if each.state is not _DONE), len(messages))


def _now(machine: Machine) -> int:
    """Return the time by a clock that never goes back."""
    clock = machine.model.table("pop clock")
    clock["now"] = max(clock.get("now", 0), machine.clock.now_ms)
    return int(clock["now"])


def _some_key(machine: Machine) -> tuple[PopKey, Topic] | None:
    place = machine.some_queue(machine.chance.choice(("plain", "fifo", "fifo")))
    return None if place is None else (PopKey(machine.chance.choice(_GROUPS), *place[1]), place[0])


def _group_hashes(model: Model, queue: Queue) -> list[int]:
    """Return the message group of each message of a queue, as a hash."""
    return [store.group_hash(batch.data) for batch in model.queues.get(queue, ()) for _ in range(batch.messages)]


# ---- topics and batches with message groups -------------------------------------------------------------


@rule(2)
def create_fifo_topic(machine: Machine) -> None:
    new_topic(machine, "fifo")


@rule(8)
def append_fifo(machine: Machine) -> None:
    if place := machine.some_queue("fifo"):
        topic, (_, queue_id) = place
        data = store.make_batch(bodies(machine), message_group=machine.chance.choice(_MESSAGE_GROUPS))
        job = store.append(topic.name, queue_id, data)
        machine.write(job)
        stored(machine, job)


# ---- takes ----------------------------------------------------------------------------------------------


@rule(12)
def take(machine: Machine) -> None:
    if not (found := _some_key(machine)):
        return
    key, topic = found
    chance, until_ms = machine.chance, _now(machine) + machine.chance.choice((10, 1_000, 1_000, 100_000))
    unwanted = (0, 0)
    if chance.random() < 0.1:
        first = len(_messages(machine.model, key))
        unwanted = (first, min(first + chance.randint(1, 3), machine.model.end(key[1:])))
    _take(machine, key, topic, chance.choice(_CLIENTS), chance.choice((1, 2, 5, 50)), until_ms, unwanted)


@rule(5)
def take_expired(machine: Machine) -> None:
    """Take messages of a queue of which some deliveries have just expired."""
    keys = [key for key, messages in pops(machine.model).items() if any(each.state is _OUT for each in messages)]
    if keys:
        key = machine.chance.choice(keys)
        [topic] = [topic for topic in machine.model.topics.values() if topic.id == key.topic_id]
        machine.clock.now_ms += 1_001
        _take(machine, key, topic, machine.chance.choice(_CLIENTS), 5, _now(machine) + 1_000)


def _messages(model: Model, key: PopKey) -> Messages:
    """Return the messages of a queue; those before the committed offset count as settled."""
    found = pops(model).get(key)
    return (Message(),) * model.offsets.get(key, 0) if found is None else found


def _take(
    machine: Machine,
    key: PopKey,
    topic: Topic,
    client: str,
    most: int,
    until_ms: int,
    unwanted: tuple[int, int] = (0, 0),
) -> list[store.Run]:
    """Take messages, and verify that each of them may be delivered now."""
    model, now = machine.model, _now(machine)
    before = _dropped(_messages(model, key), machine.store.bounds(*key[1:])[0])
    ahead = _ranges(_group_hashes(model, key[1:]), len(before)) if topic.kind == "fifo" else None
    wanted = store.Take(client, most, until_ms, unwanted, group_hashes=ahead, present=_CLIENTS)
    step = store.PopStep(1, key, wanted, machine.store.bounds(*key[1:]))
    job = store.PopJob(key.group, [step], now)
    machine.write(job)
    assert (job.error, step.error) == (None, None)
    machine.note(f"{key}, {client}: {[(run.first, run.end) for run in step.runs]}")
    if key not in machine.store.popped:
        assert not step.runs
        return []
    offsets = [offset for run in step.runs for offset in range(run.first, run.end)]
    assert len(offsets) <= most
    assert len(set(offsets)) == len(offsets)
    after = [*before, *_skipped(machine, key, before, unwanted)]
    for run in step.runs:
        for offset in range(run.first, run.end):
            former = after[offset] if offset < len(before) else Message(_FREE)
            assert former.state is not _DONE, f"message {offset} is settled"
            assert former.until_ms <= now, f"message {offset} is with {former.client}"
            assert run.delivery_count == former.delivery_count + 1
            after[offset] = Message(_OUT, run.delivery_count, until_ms, job.epoch, client)
    if offsets:
        deliveries(model)[key] = (*deliveries(model).get(key, ())[-_REMEMBERED:], (job.epoch, tuple(offsets)))
    if ahead is not None:
        _void(_group_hashes(model, key[1:]), before, after, offsets)
    _set(machine, key, after)
    return step.runs


def _dropped(messages: Messages, first: int) -> Messages:
    """Return the messages without those before the first stored one, which need not be settled any more."""
    gone = (Message(),) * first
    return (
        messages
        if all(each.state is _DONE for each in messages[:first]) and len(messages) >= first
        else (*gone, *messages[first:])
    )


def _ranges(group_hashes: list[int], first: int) -> list[store.GroupRange]:
    found, at = [], first
    for group_hash, each in groupby(group_hashes[first:]):
        count = len([*each])
        found.append(store.GroupRange(at, at + count, group_hash))
        at += count
    return found


def _skipped(machine: Machine, key: PopKey, before: Messages, unwanted: tuple[int, int]) -> list[Message]:
    """Return the new messages that the take passed: unwanted ones are settled, those of busy groups wait."""
    following = machine.store.popped[key].next
    first = len(before)
    return [
        Message() if unwanted[0] <= first and offset < unwanted[1] else Message(_FREE)
        for offset in range(first, following)
    ]


def _void(group_hashes: list[int], before: Messages, after: list[Message], offsets: list[int]) -> None:
    """Verify the order of message groups, and release their later messages from consumers."""
    ends = {group_hashes[offset]: offset + 1 for offset in sorted(offsets)}
    for offset, message in enumerate(after):
        group_hash = group_hashes[offset]
        if message.state is _DONE or offset in offsets:
            continue
        if offset < ends.get(group_hash, 0):
            raise AssertionError(f"message {offset} is not settled, and a later one of its group is delivered")
        if group_hash in ends and offset < len(before) and message.epoch:
            after[offset] = Message(_FREE, message.delivery_count, message.until_ms)
        if offset >= len(before) and group_hash not in ends:
            is_busy = any(each.state is not _DONE for at, each in enumerate(before) if group_hashes[at] == group_hash)
            assert is_busy, f"message {offset} was passed, though its group is free"


def _set(machine: Machine, key: PopKey, messages: Sequence[Message]) -> None:
    model = machine.model
    model.use_group(key.group)
    pops(model)[key] = tuple(messages)
    model.offsets[key] = _done(pops(model)[key])


# ---- settles --------------------------------------------------------------------------------------------


@rule(12)
def settle(machine: Machine) -> None:
    """Settle messages of a delivery, perhaps too late."""
    if not (
        keys := [key for key, messages in pops(machine.model).items() if messages and key in deliveries(machine.model)]
    ):
        return
    chance, key = machine.chance, machine.chance.choice(keys)
    wanted = _some_settle(machine, key)
    expected = _settled(machine, key, wanted)
    step = store.PopStep(1, key, wanted)
    machine.note(f"{key} {wanted.outcome.name} {wanted.spans} of {wanted.epoch}")
    job = store.PopJob(key.group, [step], _now(machine))
    if chance.random() < 0.3 and (topic := machine.some_topic()) is not None:
        _settle_atomically(machine, job, topic, expected)
        return
    machine.write(job)
    assert (job.error, step.error) == (None, None)
    expired = [offset for first, end in step.expired for offset in range(first, end)]
    assert expired == expected[1], f"expired {expired} instead of {expected[1]}"
    _set(machine, key, expected[0])


def _settle_atomically(
    machine: Machine, settles: store.PopJob, topic: Topic, expected: tuple[list[Message], list[int]]
) -> None:
    """Settle together with a batch: both or none."""
    [step] = settles.steps
    assert isinstance(step.what, store.Settle)
    before = pops(machine.model)[step.key]
    offsets = [offset for first, end in step.what.spans for offset in range(first, end)]
    is_held = all(before[each].state is not _DONE and before[each].epoch == step.what.epoch for each in offsets)
    batch = numbered(machine, topic)
    job = store.atomic([batch], settles=settles)
    machine.write_atomic(job)
    if not is_held or expected[1]:
        assert isinstance(job.error, store.Fenced)
        return
    assert job.error is None, job.error
    stored(machine, batch)
    _set(machine, step.key, expected[0])


def _some_settle(machine: Machine, key: PopKey) -> store.Settle:
    chance, messages = machine.chance, pops(machine.model)[key]
    epoch, delivered = chance.choice(deliveries(machine.model)[key])
    offsets = [offset for offset in sorted(delivered) if offset < len(messages) and chance.random() < 0.8]
    if chance.random() < 0.2:  # a repeated settle, or one of messages that others have got
        offsets = sorted({*offsets, chance.randrange(len(messages))})
    if not offsets:
        offsets = [chance.randrange(len(messages))]
    outcome = chance.choice(_OUTCOMES)
    if outcome is PopOutcome.EXTEND:  # so that the first messages of a group expire ahead of the others
        offsets = offsets[len(offsets) // 2 :]
    ends = [*(one for one, other in pairwise(offsets) if other != one + 1), offsets[-1]]
    starts = [offsets[0], *(other for one, other in pairwise(offsets) if other != one + 1)]
    spans = [(start, end + 1) for start, end in zip(starts, ends, strict=True)]
    until_ms = _now(machine) + chance.choice((0, 100, 10_000))
    return store.Settle(epoch, spans, outcome, until_ms)


def _settled(machine: Machine, key: PopKey, wanted: store.Settle) -> tuple[list[Message], list[int]]:
    """Return the messages after a settle, and those that it came too late for."""
    after, expired, released = [*pops(machine.model)[key]], [], dict[int, int]()
    is_for_holder = wanted.outcome in (PopOutcome.EXTEND, PopOutcome.RETURN)
    group_hashes = _group_hashes(machine.model, key[1:])
    for first, end in wanted.spans:
        for offset in range(first, end):
            message = after[offset]
            is_taken = message.epoch == wanted.epoch and message.state is not _DONE
            if is_taken and (message.state is _OUT or not is_for_holder):
                after[offset] = _after(message, wanted)
                if wanted.outcome in (PopOutcome.FREE, PopOutcome.RETURN):
                    released.setdefault(group_hashes[offset], offset)
            elif message.state is not _DONE or wanted.outcome is PopOutcome.EXTEND:
                expired.append(offset)
    settled = {offset for first, end in wanted.spans for offset in range(first, end)}
    for offset, message in enumerate(after):  # of these message groups, the consumer must not have later ones
        first = released.get(group_hashes[offset], len(after)) if group_hashes[offset] else len(after)
        if offset > first and message.state is _OUT and message.epoch == wanted.epoch and offset not in settled:
            after[offset] = Message(_FREE, message.delivery_count - 1)
    return after, expired


def _after(message: Message, wanted: store.Settle) -> Message:
    _, delivery_count, _, epoch, client = message
    match wanted.outcome:
        case PopOutcome.DONE:
            return Message()
        case PopOutcome.FREE:
            return Message(_FREE, delivery_count, wanted.until_ms, epoch)
        case PopOutcome.RETURN:
            return Message(_FREE, delivery_count - 1, wanted.until_ms, epoch)
        case PopOutcome.EXTEND:
            return Message(_OUT, delivery_count, wanted.until_ms, epoch, client)


@rule(2)
def leave(machine: Machine) -> None:
    """A consumer is gone: others get its messages."""
    if not pops(machine.model):
        return
    key, client = machine.chance.choice([*pops(machine.model)]), machine.chance.choice(_CLIENTS)
    step = store.PopStep(1, key, store.Leave(client, died=machine.chance.random() < 0.5))
    machine.write(store.PopJob(key.group, [step], _now(machine)))
    assert step.error is None
    after = [
        Message(_FREE, each.delivery_count, 0, each.epoch) if each.state is _OUT and each.client == client else each
        for each in pops(machine.model)[key]
    ]
    if after != [*pops(machine.model)[key]]:
        _set(machine, key, after)


@rule(1)
def reset_group(machine: Machine) -> None:
    """Move a group to another offset: what it had is forgotten."""
    if found := _some_key(machine):
        key, _ = found
        offset = machine.chance.randint(0, machine.model.end(key[1:]))
        machine.write(store.record(store.offsets(key.group, (*key[1:], offset), forced=True)))
        machine.model.use_group(key.group)
        machine.model.offsets[key] = offset
        pops(machine.model).pop(key, None)


@rule(1)
def delete_worker_group(machine: Machine) -> None:
    group = machine.chance.choice(_GROUPS)
    machine.write(store.delete_group(group))
    machine.model.delete_group(group)


# ---- checks ---------------------------------------------------------------------------------------------


@CHECKS.append
def _check(machine: Machine) -> None:
    there = machine.store.popped
    assert there.keys() == pops(machine.model).keys()
    for key, expected in pops(machine.model).items():
        queue = there[key]
        assert (queue.done, queue.next) == (_done(expected), len(expected)), f"{key}: {queue.done} to {queue.next}"
        offset = queue.done
        for run in queue.runs:
            while offset < run.end:
                message = Message(run.state, run.delivery_count, run.until_ms, run.epoch, run.client)
                assert message == expected[offset], f"{key}, {offset}: {message} instead of {expected[offset]}"
                offset += 1


@ENDS.append
def _end(machine: Machine) -> None:
    """Let good consumers take and settle all messages."""
    machine.clock.now_ms += 1_000_000
    topics = {topic.id: topic for topic in machine.model.topics.values()}
    for key in [*pops(machine.model)]:
        idle = 0
        while _done(pops(machine.model)[key]) < machine.model.end(key[1:]):
            now = _now(machine)
            runs = _take(machine, key, topics[key.topic_id], f"good {machine.number()}", 50, now + 1_000)
            idle = 0 if runs else idle + 1
            assert idle < 2, f"{key}: nothing is delivered, and messages are left"
            for run in runs:
                wanted = store.Settle(run.epoch, [(run.first, run.end)], PopOutcome.DONE)
                messages, _ = _settled(machine, key, wanted)
                machine.write(store.PopJob(key.group, [store.PopStep(1, key, wanted)], now))
                _set(machine, key, messages)
    machine.check()
