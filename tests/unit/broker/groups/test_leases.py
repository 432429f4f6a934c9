"""The owner of a queue: tables of steps, and members that ask, give back, save and die in any order, at any time."""

from __future__ import annotations

import pytest

from minimq_broker.groups.leases import Fencing, Granted, LeaseEvent, LeaseKey, LeaseStatus, LeaseTable, Wanted
from minimq_broker.state.state import QueueKey
from minimq_common.errors import Fenced
from support.cases import for_each

KEY = LeaseKey("g", QueueKey(1, 0))
OTHER = LeaseKey("g", QueueKey(1, 1))
FIRST = 7 << 32


def run(table: LeaseTable, steps: str) -> list[LeaseEvent]:
    """Do the steps, and return what is told of the last one.

    `@5`: it is 5 o'clock; `+a`: a asks, `+a3`: it held the queue in the run before, third; `+a3!`: and holds it still;
    `-a`: a gives back, `-a/9`: in a group that holds for 9 s; `sa`: a's state is saved; `xa`, `xa/9`: a is dropped;
    `renew`.
    """
    now, told = 0.0, list[LeaseEvent]()
    for step in steps.split():
        if step == "renew":
            told = table.renew(KEY)
            continue
        kind, who, rest = step[0], step[1], step[2:]
        match kind:
            case "@":
                now = float(step[1:])
                told = table.expire(now)
            case "+":
                number = rest.rstrip("!")
                epoch = (6 << 32) + int(number) if number else 0
                told = table.acquire(KEY, who, now, epoch, held=bool(number) and rest.endswith("!"))
            case "-":
                told = table.release(KEY, who, now, float(rest[1:] or 0))
            case "s":
                told = table.saved(KEY, who, int(rest) + FIRST if rest else 0, now)
            case "x":
                told = table.drop("g", who, now, float(rest[1:] or 0))
    return told


def granted(who: str, number: int) -> Granted:
    return Granted(who, KEY, FIRST + number)


@for_each(
    ("steps", "events"),
    [
        ("+a", [granted("a", 1)]),
        ("+a +a", [granted("a", 1)]),
        ("+a +b", [Wanted("a", KEY)]),
        ("+a +b +b", [Wanted("a", KEY)]),
        ("+a -a", []),
        ("+a -a +b", [granted("b", 2)]),
        ("+a +b -a", [granted("b", 2)]),
        ("+a +b +c -a", [granted("b", 2), Wanted("b", KEY)]),
        ("+a +b +b +c -a -b", [granted("c", 3)]),
        ("+a +b -b -a", []),
        ("+a -b", []),
        ("-a", []),
        ("+a +b xa", [Fencing("a", KEY), granted("b", 2)]),
        ("+a +b xb -a", []),
        ("xa", []),
        ("+a renew", [Fencing("a", KEY), granted("a", 2)]),
        ("+a +b renew", [Fencing("a", KEY), granted("a", 2), Wanted("a", KEY)]),
        ("+a -a renew", []),
        ("renew", []),
    ],
)
def test_what_is_told_after_the_last_step(steps: str, events: list[LeaseEvent]) -> None:
    assert run(LeaseTable(term=7), steps) == events


@for_each(
    ("steps", "events"),
    [
        ("+a +b -a/9", []),
        ("+a -a/9 +b", []),
        ("+a +b -a/9 @8.9", []),
        ("+a +b -a/9 @8.9 +b", []),
        ("+a +b -a/9 @8.9 -b", []),
        ("+a +b -a/9 @9", [granted("b", 2)]),
        ("+a +b +c -a/9 @9", [granted("b", 2), Wanted("b", KEY)]),
        ("+a -a/9 @9 +b", [granted("b", 2)]),
        ("+a -a/9 @10 +b", [granted("b", 2)]),
        ("+a +b -a/9 sa", [granted("b", 2)]),
        ("+a +b -a/9 sa1", [granted("b", 2)]),
        ("+a +b -a/9 sa0", []),  # of an earlier lease
        ("+a +b -a/9 sb", []),
        ("+a +b -a/9 @1 +a", [granted("a", 2), Wanted("a", KEY)]),  # the former owner may have it back
        ("+a -a/9 @1 +a", [granted("a", 2)]),
        ("+a +b -a/9 -b @9", []),
        ("+a +b -a/9 -a", []),  # once more: nothing is shortened
        ("+a +b -a/9 xa", []),  # nor by the end of the member
        ("+a +b xa/9", [Fencing("a", KEY)]),
        ("+a +b xa/9 @9", [granted("b", 2)]),
        ("+a +b sa xa/9", [Fencing("a", KEY), granted("b", 2)]),  # saved ahead
        ("+a +b sa1 -a/9", [granted("b", 2)]),
        ("+a +b sa +a -a/9", []),  # it went on after all
        ("sa", []),
    ],
)
def test_holds(steps: str, events: list[LeaseEvent]) -> None:
    assert run(LeaseTable(term=7), steps) == events


@for_each(
    ("steps", "events"),
    [
        ("+a", []),
        ("+a @2.9", []),
        ("+a @2.9 +b", []),
        ("+a @3", [granted("a", 1)]),
        ("+a +b @3", [granted("a", 1), Wanted("a", KEY)]),
        ("+a5", []),  # somebody may have had it later
        ("+a5 @3", [granted("a", 1)]),
        ("+a +b5 @3", [granted("b", 1), Wanted("b", KEY)]),
        ("+a5 +b7 +c6 @3", [granted("b", 1), Wanted("b", KEY)]),
        ("+a5 +b7 -b @3", [granted("a", 1)]),
        ("+a +b5 +c7 @3 -c", [granted("a", 2), Wanted("a", KEY)]),  # the others in the order of asking
        ("+a5!", [granted("a", 1)]),  # nobody else can have had it later
        ("+b +a5!", [granted("a", 1), Wanted("a", KEY)]),
        ("+a5! +b7", [Wanted("a", KEY)]),
        ("+b +a5! -a", [granted("b", 2)]),  # from then on it is as ever
        ("+a5! -a +b", [granted("b", 2)]),
        ("@3 +a", [granted("a", 1)]),
        ("+a xa @3", []),
        ("+a5! +b -a/9 @3", []),
        ("+a5! +b -a/9 @9", [granted("b", 2)]),
    ],
)
def test_former_owners_come_first_after_a_start(steps: str, events: list[LeaseEvent]) -> None:
    assert run(LeaseTable(7, 3.0, {("g", 1)}), steps) == events


def test_what_nobody_has_read_before_the_start_has_no_former_owners() -> None:
    table = LeaseTable(7, 3.0, {("g", 1)})
    for key in (LeaseKey("h", KEY.queue), LeaseKey("g", QueueKey(2, 0))):
        assert isinstance(table.acquire(key, "a", 0.0)[0], Granted)


def test_only_the_owner_under_its_epoch_passes() -> None:
    table = LeaseTable(term=1)
    [lease] = table.acquire(KEY, "a", 0.0)
    assert isinstance(lease, Granted)
    table.check(KEY, "a", lease.epoch)
    for client, epoch in (("b", lease.epoch), ("a", lease.epoch - 1), ("a", lease.epoch + 1)):
        with pytest.raises(Fenced, match=f"a holds it under epoch {lease.epoch}"):
            table.check(KEY, client, epoch)
    with pytest.raises(Fenced, match="nobody holds it"):
        table.check(OTHER, "a", lease.epoch)
    table.release(KEY, "a", 0.0, 9.0)
    with pytest.raises(Fenced, match="nobody holds it"):
        table.check(KEY, "a", lease.epoch)


def test_a_former_owner_that_comes_after_its_time_is_no_longer_first() -> None:
    table = LeaseTable(term=7)
    run(table, "+a +b -a/9")
    assert table.acquire(KEY, "a", 9.0) == [granted("b", 2), Wanted("b", KEY)]  # though nobody has called `expire` yet


def test_the_leases_and_wishes_of_a_deleted_topic_are_gone() -> None:
    table = LeaseTable(term=1)
    gone = LeaseKey("g", QueueKey(2, 0))
    held = LeaseKey("g", QueueKey(2, 1))
    for key in (KEY, gone, held):
        table.acquire(key, "a", 0.0)
        table.acquire(key, "b", 0.0)
    table.release(held, "a", 0.0, 9.0)
    table.retain_topics({1})

    assert (table.owner(gone), table.status(held, 0.0)) == (None, LeaseStatus())
    assert table.next_expiry is None
    assert table.expire(10.0) == []
    assert table.drop("g", "b", 10.0) == []
    assert table.owner(KEY) is not None


def test_epochs_of_a_later_term_are_larger() -> None:
    former, later = LeaseTable(term=3), LeaseTable(term=4)
    for _ in range(1000):
        former.acquire(KEY, "a", 0.0)
        former.release(KEY, "a", 0.0)
    [old], [new] = former.acquire(KEY, "a", 0.0), later.acquire(KEY, "a", 0.0)
    assert isinstance(old, Granted)
    assert isinstance(new, Granted)
    assert new.epoch > old.epoch


@for_each(
    ("steps", "status"),
    [
        ("", LeaseStatus()),
        ("+a", LeaseStatus("a", FIRST + 1)),
        ("+a +c +b", LeaseStatus("a", FIRST + 1, waiting=("c", "b"))),
        ("+a +b -a/9", LeaseStatus(holder="a", held_s=7.0, waiting=("b",))),
        ("+a -a/1", LeaseStatus()),
    ],
)
def test_the_status_of_a_queue(steps: str, status: LeaseStatus) -> None:
    table = LeaseTable(term=7)
    run(table, steps)
    assert table.status(KEY, 2.0) == status
