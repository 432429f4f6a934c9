"""Rules of the kernel: topics, batches, atomic appends, offsets, groups, segments, checkpoints, restarts."""

from __future__ import annotations

from machine import store
from machine.machine import Machine, rule
from machine.model import FORGET_TOPIC, Model, Topic

GROUPS = ("g1", "g2", "g3")
#: Ids of producers are larger than all ids of topics.
PRODUCERS = (1 << 50, (1 << 50) + 1)
#: Sequence numbers before the latest that may be sent again.
_UNSETTLED = 4
_MAX_TOPICS = 4
#: In place of queue and offset of a batch that is delayed.
HELD = "held"


@rule(3)
def create_topic(machine: Machine) -> None:
    new_topic(machine, "plain")


def new_topic(machine: Machine, kind: str, *, age_ms: int = 0) -> None:
    """Create a topic, unless there are enough of its kind."""
    if sum(topic.kind == kind for topic in machine.model.topics.values()) >= _MAX_TOPICS // 2:
        return
    name, queues = f"{kind}-{machine.chance.randrange(4)}", machine.chance.choice((1, 2))
    if name in machine.model.topics:
        return
    job = store.create_topic(name, queues, kind, age_ms)
    machine.write(job)
    assert job.error is None
    machine.model.topics[name] = Topic(name, machine.store.state.topic(name).topic_id, queues, kind, age_ms)


@rule(1)
def delete_topic(machine: Machine) -> None:
    if machine.model.topics:
        name = machine.chance.choice([*machine.model.topics])
        machine.note(name)
        machine.write(store.delete_topic(name))
        machine.model.delete_topic(name)


# ---- batches --------------------------------------------------------------------------------------------


def bodies(machine: Machine, most: int = 3) -> list[bytes]:
    chance = machine.chance
    return [b"%d " % machine.number() + bytes(chance.choice((0, 10, 2_000))) for _ in range(chance.randint(1, most))]


def numbered(machine: Machine, topic: Topic) -> store.AppendJob:
    """Return a job for a batch with the next sequence number of a producer."""
    producer_id, sequence = machine.chance.choice(PRODUCERS), machine.number()
    data = store.make_batch(bodies(machine), producer_id, sequence, _UNSETTLED)
    return store.append(topic.name, machine.chance.randrange(topic.queues), data)


def stored(machine: Machine, job: store.AppendJob, data: bytes | None = None) -> None:
    """Add a stored batch to the model, and compare its receipt."""
    assert job.error is None, job.error
    assert not store.was_repeated(job)
    topic = machine.model.topics[job.topic]
    batch = machine.model.append((topic.id, job.queue_id), job.header.count, machine.clock, data or job.data)
    assert (job.place.queue_id, job.place.base_offset, job.place.stored_ms) == (
        job.queue_id,
        batch.base,
        batch.stored_ms,
    )
    remember(machine.model, job, topic, (job.queue_id, batch.base))


def remember(model: Model, job: store.AppendJob, topic: Topic, place: object) -> None:
    """Note where a numbered batch is, for repeated sends: queue and offset, or `HELD`."""
    header = job.header
    if header.producer_id:
        sent = model.table("sent")
        sent[topic.id, header.producer_id, header.sequence] = job.data, job.queue_id, place
        for key in [
            key for key in sent if key[:2] == (topic.id, header.producer_id) and key[2] < header.settled_before
        ]:
            sent[key] = sent[key][0], sent[key][1], None


@FORGET_TOPIC.append
def _forget_sent(model: Model, topic_id: int) -> None:
    model.tables["sent"] = {key: value for key, value in model.table("sent").items() if key[0] != topic_id}


@rule(12)
def append(machine: Machine) -> None:
    if place := machine.some_queue():
        topic, (_, queue_id) = place
        job = store.append(topic.name, queue_id, store.make_batch(bodies(machine)))
        machine.write(job)
        stored(machine, job)


@rule(6)
def append_numbered(machine: Machine) -> None:
    if topic := machine.some_topic():
        job = numbered(machine, topic)
        machine.write(job)
        stored(machine, job)


@rule(4)
def repeat(machine: Machine) -> None:
    """Send a batch again: the store has it at its first place, or has forgotten that."""
    sent = {key: value for key, value in machine.model.table("sent").items() if value[2] != HELD}
    if not sent:
        return
    key = machine.chance.choice([*sent])
    data, queue_id, place = sent[key]
    [topic] = [topic for topic in machine.model.topics.values() if topic.id == key[0]]
    job = store.append(topic.name, queue_id, data)
    machine.write(job)
    if place is None:
        assert isinstance(job.error, store.StaleSequence)
    else:
        assert job.error is None
        assert store.was_repeated(job)
        assert (job.place.queue_id, job.place.base_offset) == place


@rule(4)
def append_group(machine: Machine) -> None:
    """Several batches in one commit, some of them twice."""
    if not (topic := machine.some_topic()):
        return
    jobs: list[store.AppendJob] = []
    for _ in range(machine.chance.randint(2, 5)):
        if jobs and machine.chance.random() < 0.3:
            first = machine.chance.choice(jobs)
            jobs.append(store.append(topic.name, machine.chance.randrange(topic.queues), first.data))
        else:
            jobs.append(numbered(machine, topic))
    machine.write(*jobs)
    known: dict[bytes, store.AppendJob] = {}
    for job in jobs:
        if (first_one := known.setdefault(job.data, job)) is job:
            stored(machine, job)
        elif job.error is None:
            assert store.was_repeated(job)
            assert (job.place.queue_id, job.place.base_offset) == (
                first_one.place.queue_id,
                first_one.place.base_offset,
            )
        else:
            assert isinstance(job.error, store.StaleSequence)


@rule(5)
def append_atomic(machine: Machine) -> None:
    """Batches and offsets, all or nothing."""
    if not (topic := machine.some_topic()):
        return
    chance, model = machine.chance, machine.model
    batches = [numbered(machine, topic) for _ in range(chance.randint(1, 3))]
    key = (chance.choice(GROUPS), topic.id, chance.randrange(topic.queues))
    committed = model.offsets.get(key, 0)
    begin, end = committed - chance.choice((0, 0, 0, 1)), committed + chance.randint(0, 3)
    fact = store.offsets(key[0], (*key[1:], end)) if chance.random() < 0.7 else None
    job = store.atomic(batches, fact, (max(begin, 0),) if fact else ())
    machine.write_atomic(job)
    if fact is not None and max(begin, 0) < committed:
        assert isinstance(job.error, store.Fenced)
        return
    assert job.error is None, job.error
    for each in batches:
        stored(machine, each)
    if fact is not None:
        moved(machine, key, end, forced=False)


# ---- groups ---------------------------------------------------------------------------------------------


def moved(machine: Machine, key: tuple[str, int, int], offset: int, *, forced: bool) -> None:
    model = machine.model
    model.use_group(key[0])
    if forced or offset > model.offsets.get(key, -1):
        model.offsets[key] = offset


@rule(6)
def commit_offset(machine: Machine) -> None:
    if place := machine.some_queue():
        group, (_, queue) = machine.chance.choice(GROUPS), place
        offset, forced = machine.chance.randint(0, machine.model.end(queue)), machine.chance.random() < 0.2
        machine.note(f"{group} {queue} {offset}")
        machine.write(store.record(store.offsets(group, (*queue, offset), forced=forced), alone=forced))
        moved(machine, (group, *queue), offset, forced=forced)


@rule(1)
def delete_group(machine: Machine) -> None:
    group = machine.chance.choice(GROUPS)
    machine.write(store.delete_group(group))
    machine.model.delete_group(group)


# ---- files ----------------------------------------------------------------------------------------------


@rule(4, crashes=0.2)
def roll(machine: Machine) -> None:
    machine.store.roll()


@rule(4, crashes=0.2)
def checkpoint(machine: Machine) -> None:
    machine.store.save()


@rule(3)
def restart(machine: Machine) -> None:
    """Stop and start: the state is saved."""
    machine.store.close()
    machine.store = machine.open(machine.store.path)
    machine.lead()


@rule(4)
def pass_time(machine: Machine) -> None:
    machine.clock.now_ms += machine.chance.choice((0, 1, 50, 1_000, 60_000, -20))
