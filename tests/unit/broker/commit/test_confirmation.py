"""A master that waits for its slaves: nothing is answered, and nothing can be read, that is not confirmed."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import Future
from typing import Any

import pytest

from minimq_broker.commit import writer
from minimq_broker.commit.jobs import AppendStatus
from minimq_broker.log import recovery
from minimq_broker.log.checkpoint import Checkpoint
from minimq_broker.state.facts import Topic, TopicSet
from minimq_common.errors import Closed, InvalidArgument, NotEnoughReplicas, NotMaster
from support.states import rows
from support.stores import TIMEOUT_S, OpenStore, Stores, make_batch, numbered_batch
from support.waiting import wait_until


@pytest.fixture
def master(stores: Stores) -> OpenStore:
    """A master that waits for others, with the topic "t" of two queues, all confirmed."""
    return lead(stores.open(alone=False))


def lead(opened: OpenStore) -> OpenStore:
    opened.store.lead(1, waits_for_replicas=True)
    created = opened.submit_fact(lambda state: TopicSet(Topic("t", state.position, 2, 2, 6)))
    settle(opened)
    opened.store.confirm(opened.store.end)
    created.result(TIMEOUT_S)
    return opened


def settle(store: OpenStore) -> None:
    """Return when all that was handed in is written."""
    store.store.call(lambda: None)


def body(number: int) -> bytes:
    return make_batch([b"%d" % number])


def is_waiting(*futures: Future[Any]) -> bool:
    return not any(future.done() for future in futures)


def test_what_is_not_confirmed_is_neither_answered_nor_read(master: OpenStore) -> None:
    first = master.submit("t", 0, body(1))
    settle(master)
    between = master.store.end
    second = master.submit("t", 0, body(2))
    other = master.submit("t", 1, body(3))
    settle(master)
    queue, end = master.key("t", 0), master.store.end

    assert is_waiting(first, second, other)
    assert master.state.end(queue).offset == 2
    assert master.store.queue_end(queue).offset == 0
    assert master.store.bounds(queue) == (0, 0)
    assert master.bodies("t", 0) == []
    assert master.store.offset_at(queue, 0) == 0
    assert master.store.stored_ms(queue, 0) == 0
    assert master.grown == []
    assert master.store.confirmed < between

    master.store.confirm(between - 1)
    assert is_waiting(first)
    master.store.confirm(between)
    assert first.done()
    assert is_waiting(second, other)
    assert (master.grown, master.bodies("t", 0)) == ([queue], [b"1"])
    assert master.store.offset_at(queue, master.clock.now_ms + 1) == 1
    assert (master.store.confirmed, master.store.queue_end(queue).offset) == (between, 1)

    master.store.confirm(between - 1)  # it never goes back
    assert master.store.confirmed == between
    master.store.confirm(end)
    assert (second.result(0).base_offset, other.result(0).base_offset) == (1, 0)
    assert master.bodies("t", 0) == [b"1", b"2"]
    assert set(master.grown) == {queue, master.key("t", 1)}


def test_a_repeat_waits_until_what_it_repeats_is_confirmed(master: OpenStore) -> None:
    data = numbered_batch(7, 1)
    first = master.submit("t", 0, data)
    settle(master)
    end = master.store.end
    repeat = master.submit("t", 1, data)
    settle(master)
    assert master.store.end == end
    assert is_waiting(first, repeat)
    master.store.confirm(end)
    assert (first.result(0).status, repeat.result(0).status) == (AppendStatus.OK, AppendStatus.ALREADY_STORED)
    again = master.submit("t", 1, data).result(TIMEOUT_S)
    assert (again.status, again.stored_queue_id, again.base_offset) == (AppendStatus.ALREADY_STORED, 0, 0)


def test_who_waits_for_too_long_is_told_and_a_repeat_finds_what_was_stored(stores: Stores) -> None:
    store = lead(stores.open(alone=False, replication_timeout_s=60.0))
    data = numbered_batch(7, 1)
    before = time.monotonic()
    late = store.submit("t", 0, data)
    settle(store)
    store.store.expire(before + 59.0)
    assert is_waiting(late)
    store.store.expire(time.monotonic() + 61.0)
    with pytest.raises(NotEnoughReplicas, match="within 60 s"):
        late.result(0)
    assert store.bodies("t", 0) == []

    repeat = store.submit("t", 0, data)
    settle(store)
    assert is_waiting(repeat)
    store.store.confirm(store.store.end)
    assert repeat.result(0).status is AppendStatus.ALREADY_STORED
    assert len(store.read("t", 0, 0)) == 1


def test_one_who_follows_rejects_all_who_wait_and_all_who_come(master: OpenStore) -> None:
    waiting: list[Future[Any]] = [master.submit("t", 0, body(1)), master.submit_fact(lambda _: None)]
    settle(master)
    end = master.store.end
    master.store.follow()
    rejected: list[Future[Any]] = [*waiting, master.submit("t", 0, body(2)), master.submit_fact(lambda _: None)]
    for future in rejected:
        with pytest.raises(NotMaster, match="only the master writes"):
            future.result(TIMEOUT_S)
    assert not master.store.leads
    assert master.store.end == end
    assert master.bodies("t", 0) == [], "what is not confirmed stays out of sight"
    master.store.confirm(end)
    assert master.bodies("t", 0) == [b"1"]


def test_a_term_is_larger_than_all_before(master: OpenStore) -> None:
    with pytest.raises(InvalidArgument, match="term 1 cannot follow on term 1"):
        master.store.lead(1)
    master.store.follow()
    master.store.lead(5, waits_for_replicas=True)
    assert (master.store.term, master.state.term, master.state.terms[-1].term) == (5, 5, 5)
    assert master.store.leads
    assert is_waiting(master.submit("t", 0, body(1)))


def test_a_new_role_does_not_believe_what_was_confirmed_of_another_log(master: OpenStore) -> None:
    """The former master had entries behind the end of this log, and confirmed them: those that come now are others."""
    master.store.confirm(1 << 40)
    master.store.follow()
    master.store.lead(2, waits_for_replicas=True)
    waiting = master.submit("t", 0, body(1))
    settle(master)
    assert is_waiting(waiting)


def test_a_closed_store_takes_no_role(master: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_LOOK_S", 0.001)
    master.close()
    for change in (master.store.follow, lambda: master.store.lead(9), lambda: master.store.truncate(0)):
        with pytest.raises(Closed, match="the store is closed"):
            change()


def test_only_what_is_confirmed_is_in_a_checkpoint(stores: Stores) -> None:
    """After a start the rest is out of sight again, since another master may not have it."""
    store = stores.open(alone=False)
    store.store.lead(1)
    store.create_topic("t")
    store.append("t", 0, b"1")
    store.close()
    saved = Checkpoint(store.path / "state.mdb", readonly=True)
    assert saved.load().position == store.store.end
    saved.close()

    store = stores.open(alone=False)
    store.store.lead(2, waits_for_replicas=True)
    store.submit("t", 0, body(2))
    settle(store)
    end = store.store.end
    store.close()
    store = stores.open(alone=False)
    assert store.state.end(store.key("t", 0)).offset == 2
    assert store.bodies("t", 0) == [b"1"]
    assert store.store.confirmed < end
    store.store.confirm(end)
    assert store.bodies("t", 0) == [b"1", b"2"]


def test_the_state_is_saved_though_there_is_always_something_that_is_not_confirmed(stores: Stores) -> None:
    """As under steady load, with slaves that are a moment behind; a start takes the rest from the log."""
    store = stores.open(alone=False, checkpoint_interval_s=0.01)
    store.store.lead(1, waits_for_replicas=True)
    store.submit_fact(lambda state: TopicSet(Topic("t", state.position, 1, 1, 6)))
    settle(store)
    for _ in range(3):
        saved = store.store.saved_position

        def is_saved(saved: int = saved) -> bool:
            before = store.store.end
            store.submit("t", 0, body(7))
            settle(store)
            store.store.confirm(before)
            return store.store.saved_position > saved

        wait_until(is_saved)
        assert store.store.saved_position < store.store.end
    expected = rows(store.state)
    shutil.copytree(store.path, stores.folder / "copy")
    assert rows(stores.open("copy", alone=False).state) == expected


def test_what_was_about_to_be_saved_is_forgotten_with_the_entries_that_are_cut_off(stores: Stores) -> None:
    store = stores.open(alone=False, checkpoint_interval_s=0.01)
    store.store.lead(1)
    store.create_topic("t")
    store.append("t", 0, b"1")
    wait_until(lambda: store.store.saved_position == store.store.end)
    position, expected = store.store.end, rows(store.state)
    store.store.lead(2, waits_for_replicas=True)
    store.submit("t", 0, body(2))
    wait_until(lambda: not store.state.changed)  # what is to be saved was taken
    store.store.follow()
    store.store.truncate(position)
    store.store.confirm(1 << 40)
    wait_until(lambda: not store.state.changed)
    settle(store)
    store.close()
    assert rows(stores.open(alone=False).state) == expected


def test_however_much_a_start_finds_nothing_is_seen_too_early(
    stores: Stores, master: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one batch may be confirmed together then, never less than one."""
    ends = []
    for number in range(20):
        master.submit("t", 0, body(number))
        master.store.call(lambda: ends.append(master.store.end))
    shutil.copytree(master.path, stores.folder / "copy")
    monkeypatch.setattr(recovery, "_MAX_RECOVERED_GROUPS", 3)
    copy = stores.open("copy", alone=False)
    seen = []
    for end in ends:
        copy.store.confirm(end - 1)
        seen.append(len(copy.bodies("t", 0)))
        assert seen[-1] <= len(seen) - 1
    assert len(set(seen)) in (3, 4), "a group at a time"
    copy.store.confirm(ends[-1])
    assert len(copy.bodies("t", 0)) == 20


def test_a_crash_of_a_master_that_waits(stores: Stores, master: OpenStore) -> None:
    for number in range(5):
        master.submit("t", number % 2, body(number))
        settle(master)
    before = rows(master.state)
    shutil.copytree(master.path, stores.folder / "copy")
    copy = stores.open("copy", alone=False)
    assert rows(copy.state) == before
    assert copy.bodies("t", 0) == copy.bodies("t", 1) == []
    copy.store.confirm(copy.store.end)
    assert (copy.bodies("t", 0), copy.bodies("t", 1)) == ([b"0", b"2", b"4"], [b"1", b"3"])
