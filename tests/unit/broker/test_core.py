"""The decisions of the broker: leases, groups and waiters, as tables and as properties."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from minimq_broker.core.groups import GroupTable, Members
from minimq_broker.core.leases import Granted, LeaseEvent, LeaseKey, LeaseTable, Wanted
from minimq_broker.core.long_poll import LongPoll
from minimq_broker.core.state import QueueKey
from minimq_common.errors import Fenced, GroupConflict

KEY = LeaseKey("g", QueueKey(1, 0))
OTHER = LeaseKey("g", QueueKey(1, 1))
FIRST = 7 << 32


# ---- leases -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "events"),
    [
        ("+a", [Granted("a", KEY, FIRST + 1)]),
        ("+a +a", [Granted("a", KEY, FIRST + 1)]),
        ("+a +b", [Wanted("a", KEY)]),
        ("+a +b +b", [Wanted("a", KEY)]),
        ("+a -a", []),
        ("+a -a +b", [Granted("b", KEY, FIRST + 2)]),
        ("+a +b -a", [Granted("b", KEY, FIRST + 2)]),
        ("+a +b +c -a", [Granted("b", KEY, FIRST + 2), Wanted("b", KEY)]),
        ("+a +b +b +c -a -b", [Granted("c", KEY, FIRST + 3)]),
        ("+a +b -b -a", []),
        ("+a -b", []),
        ("-a", []),
        ("+a +b !a", [Granted("b", KEY, FIRST + 2)]),
        ("+a +b !b -a", []),
        ("!a", []),
    ],
)
def test_what_is_told_after_the_last_step(steps: str, events: list[LeaseEvent]) -> None:
    """`+a`: a asks, `-a`: a gives back, `!a`: a is dropped from the group."""
    table = LeaseTable(term=7)
    told: list[LeaseEvent] = []
    for step in steps.split():
        if step[0] == "+":
            told = table.acquire(KEY, step[1])
        elif step[0] == "-":
            told = table.release(KEY, step[1])
        else:
            told = table.drop("g", step[1])
    assert told == events


def test_only_the_owner_under_its_epoch_passes() -> None:
    table = LeaseTable(term=1)
    [granted] = table.acquire(KEY, "a")
    assert isinstance(granted, Granted)
    table.check(KEY, "a", granted.epoch)
    for client, epoch in (("b", granted.epoch), ("a", granted.epoch - 1), ("a", granted.epoch + 1)):
        with pytest.raises(Fenced, match=f"a holds it under epoch {granted.epoch}"):
            table.check(KEY, client, epoch)
    with pytest.raises(Fenced, match="nobody holds it"):
        table.check(OTHER, "a", granted.epoch)
    table.release(KEY, "a")
    with pytest.raises(Fenced, match="nobody holds it"):
        table.check(KEY, "a", granted.epoch)


def test_groups_do_not_disturb_each_other() -> None:
    table = LeaseTable(term=1)
    elsewhere = LeaseKey("h", KEY.queue)
    table.acquire(KEY, "a")
    assert isinstance(table.acquire(elsewhere, "b")[0], Granted)
    assert table.drop("h", "a") == []
    assert table.owner(KEY) is not None


def test_epochs_of_a_later_term_are_larger() -> None:
    former, later = LeaseTable(term=3), LeaseTable(term=4)
    for _ in range(1000):
        former.acquire(KEY, "a")
        former.release(KEY, "a")
    [old], [new] = former.acquire(KEY, "a"), later.acquire(KEY, "a")
    assert isinstance(old, Granted)
    assert isinstance(new, Granted)
    assert new.epoch > old.epoch


class LeaseMachine(RuleBasedStateMachine):
    """Members ask, give back and die in any order."""

    keys = st.sampled_from([KEY, OTHER, LeaseKey("h", KEY.queue)])
    clients = st.sampled_from("abc")

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(term=1)
        self.owners: dict[LeaseKey, tuple[str, int]] = {}  # as the members were told
        self.wishes: dict[LeaseKey, list[str]] = {}
        self.last_epoch = 0

    def hear(self, events: list[LeaseEvent]) -> None:
        for event in events:
            if isinstance(event, Wanted):
                assert self.owners[event.key][0] == event.client_id
            elif self.owners.get(event.key) != (event.client_id, event.epoch):
                assert event.key not in self.owners, "granted while another member has it"
                assert event.epoch > self.last_epoch
                self.last_epoch = event.epoch
                self.owners[event.key] = event.client_id, event.epoch

    @rule(key=keys, client=clients)
    def ask(self, key: LeaseKey, client: str) -> None:
        wishes = self.wishes.setdefault(key, [])
        if self.owners.get(key, ("", 0))[0] != client and client not in wishes:
            wishes.append(client)
        self.hear(self.table.acquire(key, client))
        self.settle(key)

    @rule(key=keys, client=clients)
    def give_back(self, key: LeaseKey, client: str) -> None:
        self.forget(key, client)
        self.hear(self.table.release(key, client))
        self.settle(key)

    @rule(group=st.sampled_from("gh"), client=clients)
    def die(self, group: str, client: str) -> None:
        for key in list(self.wishes):
            if key.group == group:
                self.forget(key, client)
        self.hear(self.table.drop(group, client))
        for key in self.wishes:
            self.settle(key)

    def forget(self, key: LeaseKey, client: str) -> None:
        if self.owners.get(key, ("", 0))[0] == client:
            del self.owners[key]
        elif client in self.wishes.get(key, []):
            self.wishes[key].remove(client)

    def settle(self, key: LeaseKey) -> None:
        if key in self.owners and self.owners[key][0] in self.wishes[key]:
            assert self.wishes[key].pop(0) == self.owners[key][0], "not in the order of asking"

    @invariant()
    def the_table_agrees_with_what_was_told(self) -> None:
        for key, wishes in self.wishes.items():
            assert self.table.owner(key) == self.owners.get(key)
            assert key in self.owners or not wishes, "nobody has it though somebody waits"


TestLeaseMachine = LeaseMachine.TestCase


# ---- groups -------------------------------------------------------------------------------------

T = frozenset({"t"})


def test_members_come_and_go_in_growing_versions() -> None:
    table = GroupTable(first_version=100)

    assert table.join("g", "b", T, "averagely") == Members("g", 101, ("b",))
    assert table.join("g", "a", T, "averagely") == Members("g", 102, ("a", "b"))
    assert table.join("g", "a", T, "averagely") is None
    assert table.join("h", "a", T, "averagely") == Members("h", 103, ("a",))
    assert table.members("g") == Members("g", 102, ("a", "b"))
    assert sorted(table.groups_of("a")) == ["g", "h"]
    assert table.leave("g", "a") == Members("g", 104, ("b",))
    assert table.leave("g", "a") is None
    assert table.leave("g", "b") == Members("g", 105, ())
    assert table.leave("absent", "b") is None
    assert table.members("g") == Members("g", 0, ())
    assert table.join("g", "a", T, "averagely") == Members("g", 106, ("a",))


def test_a_member_that_contradicts_the_others_is_refused_and_changes_nothing() -> None:
    table = GroupTable(0)
    table.join("g", "a", T, "averagely")
    with pytest.raises(GroupConflict, match="allocates queues by 'averagely', this member by 'circle'"):
        table.join("g", "b", T, "circle")
    with pytest.raises(GroupConflict, match="same subscriptions"):
        table.join("g", "b", T | {"u"}, "averagely")
    assert table.members("g").client_ids == ("a",)


def test_a_refused_member_alone_leaves_no_group() -> None:
    table = GroupTable(0)
    table.join("g", "a", T, "averagely")
    table.leave("g", "a")
    assert table.join("g", "b", T | {"u"}, "circle") == Members("g", 3, ("b",))


def test_a_lone_member_may_change_its_mind() -> None:
    table = GroupTable(0)
    table.join("g", "a", T, "averagely")
    assert table.join("g", "a", T | {"u"}, "circle") == Members("g", 2, ("a",))
    with pytest.raises(GroupConflict):
        table.join("g", "b", T, "averagely")


# ---- waiters ------------------------------------------------------------------------------------


def test_an_arrival_wakes_the_waiters_of_its_queue_once() -> None:
    waiting: LongPoll[str] = LongPoll()
    red, green = QueueKey(1, 0), QueueKey(1, 1)
    for queue, waiter in ((red, "a"), (red, "b"), (green, "c"), (red, "a")):
        waiting.add(queue, waiter)

    assert len(waiting) == 3
    assert waiting.arrived(red) == {"a", "b"}
    assert waiting.arrived(red) == set()
    assert waiting.arrived(QueueKey(9, 9)) == set()
    assert len(waiting) == 1
    waiting.remove(green, "c")
    waiting.remove(green, "c")
    waiting.remove(red, "a")
    assert len(waiting) == 0


def test_all_are_woken_at_once() -> None:
    waiting: LongPoll[str] = LongPoll()
    assert waiting.all() == set()
    waiting.add(QueueKey(1, 0), "a")
    waiting.add(QueueKey(1, 1), "a")
    waiting.add(QueueKey(2, 0), "b")
    assert waiting.all() == {"a", "b"}
    assert len(waiting) == 0
