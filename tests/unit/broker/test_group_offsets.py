"""The offsets of groups, as a replica tells and keeps them in each of its roles."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from minimq_broker.core.facts import CommittedOffset, OffsetsCommitted, TopicDeleted
from minimq_broker.core.state import QueueKey
from minimq_broker.services.engine import Engine
from minimq_broker.store.standby_offsets import Kept
from support.replica_engine import make_topic, with_engine


def fact(queue: QueueKey, offset: int, *, forced: bool = False) -> OffsetsCommitted:
    return OffsetsCommitted("g", (CommittedOffset(*queue, offset),), forced)


async def left_alone(engine: Engine, committed: int) -> QueueKey:
    """Let a replica lead, and then serve groups as a slave without a master. Returns a queue of 500 messages."""
    await engine.lead(1, waits_for_replicas=False)
    engine.begin(1)
    queue = await make_topic(engine, 500)
    await engine.offsets.commit(fact(queue, committed))
    await engine.follow()
    engine.begin(1, stand_in=1)
    return queue


async def lead_again(engine: Engine) -> None:
    await engine.lead(2, waits_for_replicas=False)
    engine.begin(2)
    rows = engine.offsets.kept()
    await engine.offsets.take_over(rows)
    if rows:
        await engine.offsets.handed_over(rows[-1].number)


def test_a_group_does_not_go_back_at_a_slave_and_goes_on(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        queue = await left_alone(engine, committed=300)
        await engine.offsets.commit(fact(queue, 100))
        assert engine.offsets.committed("g", queue) == 300
        assert engine.offsets.kept() == []
        await engine.offsets.commit(fact(queue, 400))
        await engine.offsets.commit(fact(queue, 350))
        assert engine.offsets.committed("g", queue) == 400
        assert await engine.offsets.of_group("g") == {queue: 400}

        await lead_again(engine)
        assert engine.state.offset("g", queue) == 400
        assert engine.offsets.kept() == []

    with_engine(tmp_path, test)


def test_a_group_that_is_set_back_at_a_slave_is_set_back(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        queue = await left_alone(engine, committed=300)
        await engine.offsets.commit(fact(queue, 40, forced=True))
        assert engine.offsets.committed("g", queue) == 40
        await engine.offsets.commit(fact(queue, 50))
        assert await engine.offsets.of_group("g") == {queue: 50}

        await lead_again(engine)
        assert engine.state.offset("g", queue) == 50

    with_engine(tmp_path, test)


def test_what_was_kept_before_the_log_went_further_does_not_count(tmp_path: Path) -> None:
    """It is there until a master has said that it has it; meanwhile the group may have gone on at the master."""

    async def test(engine: Engine) -> None:
        queue = await left_alone(engine, committed=300)
        await engine.offsets.commit(fact(queue, 310))
        await engine.lead(2, waits_for_replicas=False)
        engine.begin(2)
        await engine.offsets.commit(fact(queue, 400))
        await engine.follow()
        engine.begin(2, stand_in=1)
        assert [row.offset for row in engine.offsets.kept()] == [310]
        assert engine.offsets.committed("g", queue) == 400
        assert await engine.offsets.of_group("g") == {queue: 400}
        await lead_again_as(engine, 3)
        assert engine.state.offset("g", queue) == 400

    async def lead_again_as(engine: Engine, term: int) -> None:
        await engine.lead(term, waits_for_replicas=False)
        engine.begin(term)
        await engine.offsets.take_over(engine.offsets.kept())

    with_engine(tmp_path, test)


def test_a_master_does_not_go_by_what_is_kept(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        queue = await left_alone(engine, committed=300)
        await engine.offsets.commit(fact(queue, 310))
        engine.begin(1)
        assert engine.offsets.committed("g", queue) == 300
        assert await engine.offsets.of_group("g") == {queue: 300}

    with_engine(tmp_path, test)


def test_offsets_of_a_topic_that_is_no_more_do_not_come_back(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        queue = await left_alone(engine, committed=300)
        await engine.offsets.commit(fact(queue, 310))
        await engine.lead(2, waits_for_replicas=False)
        engine.begin(2)
        await engine.writes.record(lambda _: TopicDeleted("t"))
        again = await make_topic(engine, 500)
        await engine.follow()
        engine.begin(2, stand_in=1)
        assert engine.offsets.committed("g", queue) is None
        assert await engine.offsets.of_group("g") == {}

        await engine.offsets.commit(fact(again, 20))
        await lead_again_as_third(engine)
        assert engine.state.committed == {("g", *again): 20}

    async def lead_again_as_third(engine: Engine) -> None:
        await engine.lead(3, waits_for_replicas=False)
        engine.begin(3)
        await engine.offsets.take_over(engine.offsets.kept())

    with_engine(tmp_path, test)


def test_a_topic_that_takes_the_place_of_one_that_was_taken_back_has_no_offsets(tmp_path: Path) -> None:
    """The id of a topic is a log position, and the master of a later term may have another topic there."""

    async def test(engine: Engine) -> None:
        queue = await left_alone(engine, committed=300)
        await engine.offsets.commit(fact(queue, 310))
        await asyncio.to_thread(engine.store.truncate, queue.topic_id)
        await engine.offsets.retain_topics()
        assert engine.offsets.kept() == []

    with_engine(tmp_path, test)


def test_a_replica_takes_its_role_once_its_store_can_be_opened_again(tmp_path: Path) -> None:
    path, away = tmp_path / "data", tmp_path / "away"

    async def test(engine: Engine) -> None:
        async def break_it(path: Path, segment_bytes: int) -> None:
            await asyncio.to_thread(path.rename, away)
            await asyncio.to_thread(path.write_text, "not a directory")

        try:
            await engine.handle.replace(break_it, "it is copied")
        except Exception:  # noqa: BLE001 - it is looked at below
            assert engine.handle.is_closed
        await asyncio.to_thread(path.unlink)
        await asyncio.to_thread(away.rename, path)
        await engine.follow()
        assert not engine.handle.is_closed
        await engine.lead(1, waits_for_replicas=False)
        assert engine.store.leads

    with_engine(path, test)


def test_what_was_kept_before_a_group_was_set_back_does_not_count(tmp_path: Path) -> None:
    """The group may have gone on since, so that what it has committed does not tell."""

    async def test(engine: Engine) -> None:
        queue = await left_alone(engine, committed=300)
        await engine.offsets.commit(fact(queue, 400))
        rows = engine.offsets.kept()
        await engine.lead(2, waits_for_replicas=False)
        engine.begin(2)
        await engine.offsets.commit(fact(queue, 0, forced=True))
        await engine.offsets.commit(fact(queue, 310))
        await engine.offsets.take_over(rows)
        assert engine.state.offset("g", queue) == 310

        # What is kept later counts, also when it is handed over late.
        await engine.follow()
        engine.begin(2, stand_in=await engine.offsets.begin())
        assert engine.offsets.committed("g", queue) == 310
        await engine.offsets.commit(fact(queue, 320))
        await engine.lead(3, waits_for_replicas=False)
        engine.begin(3)
        await engine.offsets.take_over(engine.offsets.kept())
        assert engine.state.offset("g", queue) == 320

    with_engine(tmp_path, test)


@pytest.mark.parametrize("then", [[], [50]], ids=["set", "and gone on"])
def test_a_group_that_was_set_back_does_not_go_back_once_it_has_gone_on_elsewhere(
    tmp_path: Path, then: list[int]
) -> None:
    """The slave comes back late: another replica has become the master meanwhile."""

    async def test(engine: Engine) -> None:
        queue = await left_alone(engine, committed=100)
        await engine.offsets.commit(fact(queue, 40, forced=True))
        for offset in then:
            await engine.offsets.commit(fact(queue, offset))
        rows = engine.offsets.kept()
        await engine.lead(2, waits_for_replicas=False)
        engine.begin(2)
        await engine.offsets.commit(fact(queue, 90))  # it changes nothing
        assert engine.state.offset("g", queue) == 100
        await engine.offsets.commit(fact(queue, 200))
        await engine.offsets.commit(fact(queue, 400))
        await engine.offsets.take_over(rows)
        assert engine.state.offset("g", queue) == 400

        # Nor does it at that slave, if there is no master again before it could hand that over.
        await engine.follow()
        engine.begin(2, stand_in=await engine.offsets.begin())
        assert engine.offsets.kept() == []
        assert engine.offsets.committed("g", queue) == 400

    with_engine(tmp_path, test)


def test_an_offset_that_was_forced_is_taken_over_once(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        queue = await left_alone(engine, committed=300)
        await engine.offsets.commit(fact(queue, 40, forced=True))
        await engine.lead(2, waits_for_replicas=False)
        engine.begin(2)
        await engine.offsets.take_over(engine.offsets.kept())
        await engine.offsets.commit(fact(queue, 70))
        await engine.offsets.take_over(engine.offsets.kept())  # the answer to the first time was lost
        assert engine.state.offset("g", queue) == 70

    with_engine(tmp_path, test)


@pytest.mark.parametrize("wrong", [{"offset": -(1 << 63)}, {"queue_id": -1}, {"queue_id": 4}, {"group": "g\n g" * 100}])
def test_what_no_slave_can_have_kept_is_not_taken_over(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async def test(engine: Engine) -> None:
        queue = await left_alone(engine, committed=300)
        await engine.lead(2, waits_for_replicas=False)
        engine.begin(2)
        before = dict(engine.state.committed)
        values = {"group": "g", "offset": 40, "queue_id": queue.queue_id, **wrong}
        key = QueueKey(queue.topic_id, values["queue_id"])
        place = engine.state.end_place
        await engine.offsets.take_over([Kept(values["group"], key, values["offset"], 1, forced=True, place=place)])
        assert engine.state.committed == before

    with_engine(tmp_path, test)


@pytest.mark.parametrize(
    "queue", [QueueKey(-1, 0), QueueKey(1 << 63, 0), QueueKey(12345, 0)], ids=["negative", "large", "unknown"]
)
def test_offsets_of_queues_that_there_are_not_hold_up_no_others(tmp_path: Path, queue: QueueKey) -> None:
    async def test(engine: Engine) -> None:
        known = await left_alone(engine, committed=300)
        await engine.lead(2, waits_for_replicas=False)
        engine.begin(2)
        wrong = [Kept("g", queue, 5, 1), Kept("g", QueueKey(known.topic_id, -1), 5, 1), Kept("g", known, -1, 1)]
        await engine.offsets.take_over([*wrong, Kept("g", known, 400, 1)])
        assert await engine.offsets.of_group("g") == {known: 400}

    with_engine(tmp_path, test)
