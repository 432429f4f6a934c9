"""Work queues in a data directory at rest: `check` reports rows that cannot be right."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minimq_broker.features.work_queues.pop_blocks import BlockRow
from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import PopMoved, QueueMoved, Run, RunState, Status
from minimq_broker.features.work_queues.table import NAME, popped_queues
from minimq_broker.log.checkpoint import ChangedRows, Checkpoint
from minimq_broker.log.sealed_rows import seal
from support.checking import findings_of
from support.stores import Stores

FREE, OUT, DONE = RunState.FREE, RunState.OUT, RunState.DONE
DUE_MS = 1_800_000_000_000
SOUND = (Run(2, 5, OUT, 3, DUE_MS, 7, "a"), Run(5, 6, DONE), Run(6, 8, FREE, 1, 0, 7))


@pytest.fixture
def path(stores: Stores) -> Path:
    """A closed directory: of ten messages a group has settled the first two, and got six more."""
    store = stores.open()
    store.create_topic("t", 1)
    store.append("t", 0, *(b"%d" % number for number in range(10)))
    topic_id = store.key("t", 0).topic_id
    store.record(PopMoved("workers", (QueueMoved(topic_id, 0, (Run(0, 2, DONE), *SOUND)),)))
    store.close()
    return store.path


def row(*runs: Run, **changes: Any) -> BlockRow:
    """Return the row of the first block with these runs."""
    queue = PopQueue(0, [Run(0, runs[0].first, DONE), *runs])
    found = queue.block_row(0)
    assert found is not None
    return msgspec.structs.replace(found, **changes)


SOUND_ROW = row(*SOUND)
OVERLAP = [*SOUND_ROW.states, (Status(FREE, 1, 0, 8), SOUND_ROW.states[0][1])]


@pytest.mark.parametrize(
    ("following", "block", "finding"),
    [
        (8, SOUND_ROW, ""),
        (8, row(Run(1, 2, FREE), *SOUND), "it is settled to 1, but the offset of the group is 2"),
        (8, row(SOUND[1], SOUND[2]), "it is settled to 6, but the offset of the group is 2"),
        (8, row(*SOUND, states=OVERLAP), "messages 0 to 256 have two states, or none"),
        (8, row(*SOUND, group_hashes=b"abc"), "messages 0 to 256 have 3 bytes of group hashes"),
        (8, row(Run(2, 5, OUT), *SOUND[1:]), "3 messages are in flight, but were never delivered"),
        (7, SOUND_ROW, "message 7 was delivered, but the next new one is 7"),
        (11, SOUND_ROW, "it was delivered to 11, but ends at 10"),
    ],
)
def test_rows_that_no_decision_leads_to_are_named(
    stores: Stores, path: Path, following: int, block: BlockRow, finding: str
) -> None:
    save(stores, path, {"next": following, "block": block})
    findings = findings_of(path)
    assert bool(findings) == bool(finding)
    assert not finding or any(f" as group workers pops it: {finding}" in found for found in findings)


def save(stores: Stores, path: Path, values: dict[str, object]) -> None:
    """Replace rows of the only popped queue in a checkpoint; None deletes one."""
    with closing(Checkpoint(path / "state.mdb")) as checkpoint:
        state = checkpoint.load()
        [key] = popped_queues(state)
        rows = []
        for kind, value in values.items():
            name = msgspec.msgpack.encode((NAME, *key, *([0] if kind == "block" else [])))
            rows.append((name, None if value is None else seal(name, msgspec.msgpack.encode(value))))
        checkpoint.save(ChangedRows(state.position, rows))
    stores.damaged.add(path)


@pytest.mark.parametrize(
    ("block", "finding"),
    [
        (SOUND_ROW, ""),
        (row(Run(2, 5, OUT, 3, DUE_MS, 8, "a"), *SOUND[1:]), "is not as the log has it"),
        (row(SOUND[0], Run(5, 6, FREE, 1, 0, 7), SOUND[2]), "is not as the log has it"),
        (row(SOUND[0]), "is not as the log has it"),
    ],
)
def test_a_row_that_does_not_follow_from_the_log_is_named(
    stores: Stores, path: Path, block: BlockRow, finding: str
) -> None:
    save(stores, path, {"block": block})
    findings = findings_of(path)
    assert len(findings) == bool(finding)
    assert all("the row ['work_queues', 'workers', " in found and found.endswith(finding) for found in findings)


def test_missing_rows_are_named(stores: Stores, path: Path) -> None:
    save(stores, path, {"next": None, "block": None})
    found = findings_of(path)
    assert [text.endswith("is missing, but the log has it") for text in found] == [True, True]


def test_nothing_is_compared_with_a_log_without_its_beginning(stores: Stores) -> None:
    store = stores.open(segment_bytes=1 << 20)
    store.create_topic("t", 1)
    store.append("t", 0, *(b"%d" % number for number in range(10)))
    topic_id = store.key("t", 0).topic_id
    store.record(PopMoved("workers", (QueueMoved(topic_id, 0, (Run(0, 2, DONE), *SOUND)),)))
    store.store.writer.call(lambda: store.store.log.roll(store.store.end))
    store.record(PopMoved("workers", (QueueMoved(topic_id, 0, (Run(6, 7, OUT, 2, DUE_MS, 9, "b"),)),)))
    store.close()
    store = stores.open(segment_bytes=1 << 20)  # its state is saved, so that the first segment may go
    assert store.store.remove_first(1 << 60)
    store.close()
    assert findings_of(store.path) == []
    save(stores, store.path, {"block": row(SOUND[0])})
    assert findings_of(store.path) == []
