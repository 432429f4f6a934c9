"""Groups that nobody uses: when they are warned of and deleted, over starts and changes of role."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from minimq_broker.assembly import BrokerOptions
from minimq_broker.calls.engine import Engine
from minimq_broker.groups.claims import LEASES
from minimq_broker.groups.group_deletion import GroupDeletion
from minimq_broker.groups.groups import GroupConfig
from minimq_broker.groups.idle_groups import GroupExpiry
from minimq_broker.groups.session import SessionService
from minimq_broker.log.clock import now_ms
from minimq_broker.state.facts import CommittedOffset, GroupAgreed, OffsetsCommitted
from minimq_broker.state.state import QueueKey
from minimq_common.errors import NotMaster
from support.replica_engine import make_topic, with_engine

IDLE_MS = 10_000_000
AGREEMENT = GroupConfig((("t", ""),), "averagely")


class Groups:
    """The deletion of the groups of a master, at a time that is set by hand."""

    def __init__(self, engine: Engine, offline_s: float = 0.0) -> None:
        self.engine = engine
        self.later_ms = 0
        self.expiry = GroupExpiry(IDLE_MS)
        self.sessions = SessionService(engine, BrokerOptions(), "broker-a")
        self.deletion = GroupDeletion(engine, self.sessions, self.expiry, offline_s, lambda: now_ms() + self.later_ms)

    async def look(self, later_ms: int) -> set[str]:
        """Let it look after a while, and return the groups that are left."""
        self.later_ms = later_ms
        await self.deletion.look()
        await asyncio.sleep(0)  # what is recorded beside is handed in
        await self.engine.writes.record(lambda _: None)
        return self.engine.store.state.groups()


async def lead(engine: Engine, term: int = 1) -> None:
    await engine.lead(term, waits_for_replicas=False)
    engine.begin(term)


async def commit(engine: Engine, group: str, queue: QueueKey, offset: int) -> None:
    fact = OffsetsCommitted(group, (CommittedOffset(*queue, offset),))
    await engine.writes.record(lambda _: fact)


def as_master(path: Path, test: Callable[[Engine, QueueKey], Awaitable[None]]) -> None:
    async def run(engine: Engine) -> None:
        await lead(engine)
        await test(engine, await make_topic(engine, 5))

    with_engine(path, run)


def test_an_idle_group_is_deleted_and_one_in_use_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(engine: Engine, queue: QueueKey) -> None:
        groups = Groups(engine)
        for name in ("idle", "busy"):
            await commit(engine, name, queue, 1)
        engine.tables.claims.add("busy", "m", LEASES)
        assert await groups.look(IDLE_MS * 95 // 100) == {"idle", "busy"}
        assert not caplog.messages
        assert await groups.look(IDLE_MS + 1000) == {"busy"}
        assert caplog.messages == ["group: deleted, unused count=1 groups=idle seconds=10000"]
        assert engine.store.state.offset("idle", queue) is None

    with caplog.at_level(logging.WARNING):
        as_master(tmp_path, test)


def test_a_group_whose_members_did_not_come_back_after_a_start_is_idle_from_then_on(tmp_path: Path) -> None:
    async def test(engine: Engine, queue: QueueKey) -> None:
        await commit(engine, "g", queue, 1)
        await engine.writes.record(lambda _: GroupAgreed("g", AGREEMENT))  # the broker ended while there were members
        assert await Groups(engine, offline_s=3600).look(IDLE_MS * 100) == {"g"}
        assert "g" in engine.store.state.agreements
        before = engine.store.state.used["g"]
        groups = Groups(engine, offline_s=0)
        assert await groups.look(IDLE_MS * 100) == {"g"}  # their time begins now
        assert "g" not in engine.store.state.agreements
        assert engine.store.state.used["g"] >= before
        assert await groups.look(IDLE_MS + 1000) == set()

    as_master(tmp_path, test)


def test_a_group_is_kept_as_long_as_messages_wait_for_another_try(tmp_path: Path) -> None:
    async def test(engine: Engine, queue: QueueKey) -> None:
        groups = Groups(engine)
        retries = await make_topic(engine, 3, "%RETRY%g")
        await commit(engine, "g", queue, 1)
        assert await groups.look(IDLE_MS + 1000) == {"g"}
        await commit(engine, "g", retries, 3)
        assert await groups.look(IDLE_MS + 1000) == set()
        assert "%RETRY%g" not in engine.store.state.topics

    as_master(tmp_path, test)


def test_how_long_a_group_is_idle_outlives_starts_and_a_slave_deletes_none(tmp_path: Path) -> None:
    async def before(engine: Engine, queue: QueueKey) -> None:
        await commit(engine, "g", queue, 1)

    async def after(engine: Engine) -> None:
        used = engine.store.state.used["g"]
        engine.writes.rejection = lambda *, to_sender: NotMaster("a slave")
        groups = Groups(engine)
        with pytest.raises(NotMaster):
            await groups.look(IDLE_MS * 2)
        assert engine.store.state.groups() == {"g"}
        engine.writes.rejection = lambda *, to_sender: None
        await lead(engine, 2)
        assert engine.store.state.used["g"] == used
        assert await Groups(engine).look(IDLE_MS + 1000) == set()

    as_master(tmp_path, before)
    with_engine(tmp_path, after)


def test_who_comes_at_the_last_moment_keeps_the_group(tmp_path: Path) -> None:
    async def test(engine: Engine, queue: QueueKey) -> None:
        groups = Groups(engine)
        await commit(engine, "g", queue, 1)
        agreed = asyncio.create_task(engine.writes.record(lambda _: GroupAgreed("g", AGREEMENT)))
        await asyncio.sleep(0)  # it is handed in ahead of the deletion
        assert await groups.look(IDLE_MS + 1000) == {"g"}
        await agreed
        assert engine.store.state.offset("g", queue) == 1

    as_master(tmp_path, test)
