"""New groups and offsets at a broker that has as many as it may."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from minimq_broker.calls.engine import Engine
from minimq_broker.groups import offsets
from minimq_broker.groups.groups import GroupConfig
from minimq_broker.groups.offsets import check_new_group, check_new_offsets
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted
from minimq_common.errors import SystemBusy
from support.replica_engine import make_topic, with_engine

WANTED = GroupConfig((("t", ""),), "averagely")


async def commit(engine: Engine, group: str) -> None:
    queue = await make_topic(engine) if "t" not in engine.store.state.topics else engine.store.state.queue("t", 0)
    await engine.writes.record(lambda _: OffsetsCommitted(group, (CommittedOffset(*queue, 0),)))


def test_groups_count_once_however_much_is_known_of_them(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        engine.limits = dataclasses.replace(engine.limits, max_groups=4)
        for group in "ab":
            await commit(engine, group)
        for group in "bc":
            engine.tables.groups.join(group, "client", WANTED)
        check_new_group(engine, "d")
        engine.tables.groups.join("d", "client", WANTED)
        with pytest.raises(SystemBusy, match="4 consumer groups, which is its limit"):
            check_new_group(engine, "e")
        for group in "abcd":
            check_new_group(engine, group)

    with_engine(tmp_path, test)


def test_offsets_that_are_there_may_change_when_no_more_may_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        await commit(engine, "a")
        queue = engine.store.state.queue("t", 0)
        check_new_offsets(engine.store.state, "b", [queue])
        monkeypatch.setattr(offsets, "MAX_OFFSETS", 1)
        check_new_offsets(engine.store.state, "a", [queue])
        with pytest.raises(SystemBusy, match="keeps 1 committed offsets, the limit is 1"):
            check_new_offsets(engine.store.state, "b", [queue])

    with_engine(tmp_path, test)
