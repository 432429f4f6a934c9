"""A master that waits for its slaves: nothing is answered, and nothing can be read, that is not confirmed."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import Future
from typing import Any

import pytest

from minimq_broker.commit.jobs import AppendStatus
from minimq_broker.state.facts import Topic, TopicSet
from minimq_common.errors import InvalidArgument, NotEnoughReplicas, NotMaster
from support.kernel_stores import TIMEOUT_S, OpenStore, Stores, make_batch, numbered_batch


@pytest.fixture
def master(stores: Stores) -> OpenStore:
    """A master that waits for others, with the topic "t" of two queues, all confirmed."""
    return lead(stores.open(alone=False))


def lead(opened: OpenStore) -> OpenStore:
    opened.store.writer.lead(1, waits_for_replicas=True)
    created = opened.submit_fact(lambda state: TopicSet(Topic("t", state.position, 2, 2, 6)))
    settle(opened)
    opened.store.confirmation.confirm(opened.store.end)
    created.result(TIMEOUT_S)
    return opened


def settle(store: OpenStore) -> None:
    """Return when all that was handed in is written."""
    store.store.writer.call(lambda: None)


def body(number: int) -> bytes:
    return make_batch([b"%d" % number])


def is_waiting(*futures: Future[Any]) -> bool:
    return not any(future.done() for future in futures)


def test_who_waits_for_too_long_is_told_and_a_repeat_finds_what_was_stored(stores: Stores) -> None:
    store = lead(stores.open(alone=False, replication_timeout_s=60.0))
    data = numbered_batch(7, 1)
    before = time.monotonic()
    late = store.submit("t", 0, data)
    settle(store)
    store.store.confirmation.expire(before + 59.0)
    assert is_waiting(late)
    store.store.confirmation.expire(time.monotonic() + 61.0)
    with pytest.raises(NotEnoughReplicas, match="within 60 s"):
        late.result(0)
    assert store.bodies("t", 0) == []

    repeat = store.submit("t", 0, data)
    settle(store)
    assert is_waiting(repeat)
    store.store.confirmation.confirm(store.store.end)
    assert repeat.result(0).status is AppendStatus.ALREADY_STORED
    assert len(store.read("t", 0, 0)) == 1


def test_one_who_follows_rejects_all_who_wait_and_all_who_come(master: OpenStore) -> None:
    waiting: list[Future[Any]] = [master.submit("t", 0, body(1)), master.submit_fact(lambda _: None)]
    settle(master)
    end = master.store.end
    master.store.writer.follow()
    rejected: list[Future[Any]] = [*waiting, master.submit("t", 0, body(2)), master.submit_fact(lambda _: None)]
    for future in rejected:
        with pytest.raises(NotMaster, match="only the master writes"):
            future.result(TIMEOUT_S)
    assert not master.store.writer.leads
    assert master.store.end == end
    assert master.bodies("t", 0) == [], "what is not confirmed stays out of sight"
    master.store.confirmation.confirm(end)
    assert master.bodies("t", 0) == [b"1"]


def test_a_term_is_larger_than_all_before(master: OpenStore) -> None:
    with pytest.raises(InvalidArgument, match="term 1 cannot follow on term 1"):
        master.store.writer.lead(1)
    master.store.writer.follow()
    master.store.writer.lead(5, waits_for_replicas=True)
    assert (master.state.term, master.state.terms[-1].term) == (5, 5)
    assert master.store.writer.leads
    assert is_waiting(master.submit("t", 0, body(1)))


def test_a_new_role_does_not_believe_what_was_confirmed_of_another_log(master: OpenStore) -> None:
    """The former master had entries behind the end of this log, and confirmed them: those that come now are others."""
    master.store.confirmation.confirm(1 << 40)
    master.store.writer.follow()
    master.store.writer.lead(2, waits_for_replicas=True)
    waiting = master.submit("t", 0, body(1))
    settle(master)
    assert is_waiting(waiting)


def test_what_a_start_finds_is_seen_once_all_of_it_is_confirmed(stores: Stores, master: OpenStore) -> None:
    for number in range(5):
        master.submit("t", 0, body(number))
    settle(master)
    shutil.copytree(master.path, stores.folder / "copy")
    copy = stores.open("copy", alone=False)
    copy.store.confirmation.confirm(copy.store.end - 1)
    assert copy.bodies("t", 0) == []
    copy.store.confirmation.confirm(copy.store.end)
    assert len(copy.bodies("t", 0)) == 5
