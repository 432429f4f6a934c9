"""Replication: a slave has a part of the master's log, becomes the master, is truncated, or copies everything."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress

from machine.machine import ENDS, Machine, Slave, rule
from machine.store import CopyNeeded, Replay

#: A copy writes and syncs about this often.
_POINTS_OF_COPY = 60
_POINTS = 8
#: What a slave lacks at most, in bytes, when it becomes the master.
_LAGS = (0, 0, 500, 5_000, 1 << 30)


def check(machine: Machine, slave: Slave) -> None:
    """Compare log, state and readers of the slave with what the master had at that position."""
    end, replay = slave.store.end, slave.replay
    mine = dict(slave.store.entries(replay.position))
    for position, entry in _log(machine, replay.position, end):
        assert mine.get(position) == entry, f"the entry at {position} is not that of the master"
        replay.apply(position, entry)
    assert replay.position == end
    assert not any(start < end < stop for start, stop in machine.atomic), f"an atomic append is cut at {end}"
    text = replay.difference(slave.store.state)
    assert text is None, f"the state of the slave is not that of the log: {text}"
    model = next((model for position, model in machine.history if position == end), None)
    if model is None:  # within a commit
        return
    slave.store.confirm()
    for topic in model.topics.values():
        for queue_id in range(topic.queues):
            queue = (topic.id, queue_id)
            machine.check_queue(topic, model.queues.get(queue, ()), slave.store.read(*queue))


def _log(machine: Machine, start: int, end: int) -> list[tuple[int, bytes]]:
    first = bisect_right(machine.log, start, key=lambda each: each[0] + 1)
    return [each for each in machine.log[first:] if each[0] < end]


def begin_again(machine: Machine, slave: Slave) -> None:
    """Compare a slave whose log was cut or replaced from the start."""
    slave.replay = Replay()
    for position, entry in _log(machine, 0, slave.store.end):
        slave.replay.apply(position, entry)
    check(machine, slave)


def _slave(machine: Machine) -> Slave:
    if machine.slave is None:
        machine.slave = Slave(machine.open(machine.new_path()))
    return machine.slave


def _take(machine: Machine, slave: Slave, max_bytes: int) -> None:
    try:
        if slave.store.end < machine.store.end:
            slave.store.take(machine.store.next_entries(slave.store.end, max_bytes))
    except CopyNeeded:
        copy(machine, slave)


# ---- following ------------------------------------------------------------------------------------------


@rule(8, crashes=0.0)
def follow(machine: Machine) -> None:
    slave = _slave(machine)
    for _ in range(machine.chance.randint(1, 3)):
        _take(machine, slave, machine.chance.choice((1, 1, 1_000, 10_000, 1 << 20)))
    check(machine, slave)


@rule(3, crashes=0.0)
def keep_slave(machine: Machine) -> None:
    """Let the slave save its state, and delete and compact on its own."""
    if (slave := machine.slave) is None:
        return
    slave.store.confirm()
    if machine.chance.random() < 0.3:
        slave.store.roll()
    slave.store.save()
    if machine.chance.random() < 0.3:
        machine.retain(slave.store)
        slave.store.compact()
    check(machine, slave)


@rule(3, crashes=0.0)
def crash_slave(machine: Machine) -> None:
    if (slave := machine.slave) is None:
        return
    chance, before, path = machine.chance, slave.store.end, machine.new_path()

    def run() -> None:
        if chance.random() < 0.5:
            with suppress(CopyNeeded):
                slave.store.take(machine.store.next_entries(slave.store.end, 1 << 20))
        else:
            slave.store.confirm()
            slave.store.save()

    machine.crash_in(slave.store.path, path, run, chance.randrange(_POINTS))
    slave.store.close()
    slave.store = machine.open(path)
    assert slave.store.end >= before, "the slave has lost what it has synced"
    begin_again(machine, slave)


# ---- cuts and copies ------------------------------------------------------------------------------------


@rule(4, crashes=0.0)
def truncate_slave(machine: Machine) -> None:
    """Cut the log of the slave where an entry begins; it deletes an atomic append as a whole."""
    if (slave := machine.slave) is None or not slave.store.end:
        return
    position, _ = machine.chance.choice(_log(machine, 0, slave.store.end)[-20:])
    try:
        slave.store.truncate(position)
    except CopyNeeded:
        return
    begin_again(machine, slave)


def copy(machine: Machine, slave: Slave) -> None:
    """Replace the slave by a copy, which may be interrupted anywhere."""
    chance, path, left = machine.chance, slave.store.path, machine.new_path()
    slave.store.close()
    frame_bytes = chance.choice((500, 10_000, 1 << 20))

    def run() -> None:
        machine.store.copy_to(path, frame_bytes)

    if chance.random() < 0.5:
        run()
    else:
        machine.crash_in(path, left, run, chance.randrange(_POINTS_OF_COPY))
        path = left
    slave.store = machine.open(path)  # the former log, nothing, or the whole copy
    if not slave.store.end or slave.store.agrees_to(machine.store) != slave.store.end:
        slave.store.close()
        machine.store.copy_to(path, frame_bytes)
        slave.store = machine.open(path)
    begin_again(machine, slave)


@rule(2, crashes=0.0)
def copy_slave(machine: Machine) -> None:
    copy(machine, _slave(machine))


# ---- roles ----------------------------------------------------------------------------------------------


@rule(3, crashes=0.0)
def fail_over(machine: Machine) -> None:
    """The slave becomes the master; the former one is cut where both agree, and follows."""
    if (slave := machine.slave) is None:
        return
    while machine.store.end - slave.store.end > machine.chance.choice(_LAGS):
        _take(machine, slave, 500)
    positions = [position for position, _ in machine.history]
    while slave.store.end not in positions:
        _take(machine, slave, 1)
    check(machine, slave)
    former, machine.store = machine.store, slave.store
    machine.holds = machine.chance.random() < 0.3
    machine.go_back(positions.index(slave.store.end))
    machine.note(f"at {slave.store.end} of {former.end}")
    machine.lead()
    slave.store = former
    former.follow()
    point = former.agrees_to(machine.store)
    try:
        if point is None:
            raise CopyNeeded("no term is in both logs")
        former.truncate(point)
    except CopyNeeded:
        copy(machine, slave)
    else:
        begin_again(machine, slave)


@ENDS.append
def _end(machine: Machine) -> None:
    """Let the slave catch up: it has the same log and state as the master."""
    if (slave := machine.slave) is not None:
        while slave.store.end < machine.store.end:
            _take(machine, slave, 1 << 20)
        check(machine, slave)
        assert slave.replay.position == machine.replay.position
