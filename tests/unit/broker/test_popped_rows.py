"""Popped queues in a data directory at rest: `inspect` shows them, and `check` names those that cannot be so."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from minimq_broker.core.popping.pop_queue import PopRow
from minimq_broker.core.popping.pop_runs import PopMoved, QueueMoved, Run, RunState
from minimq_broker.store.checkpoint import ChangedRows, Checkpoint
from minimq_broker.store.upkeep.check import check_directory
from minimq_broker.store.upkeep.inspect import inspect_as_json, inspect_directory
from minimq_common.files.sealed_rows import seal
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


def test_popped_queues_are_listed_one_a_line(path: Path) -> None:
    [popped] = inspect_as_json(path, entries=False)["popped"]
    assert popped == {
        "group": "workers",
        "topic": "t",
        "queue": 0,
        "settled_to": 2,
        "handed_out_to": 8,
        "pieces": 3,
        "unsettled": 5,
        "in_flight": 3,
        "most_tries": 3,
        "next_deadline": "2027-01-15T08:00:00.000+00:00",
    }
    [line] = [line for line in inspect_directory(path, entries=False) if line.startswith("popped: ")]
    assert "group=workers topic=t queue=0 settled_to=2 handed_out_to=8 pieces=3 unsettled=5 in_flight=3" in line


@pytest.mark.parametrize(
    ("done", "runs", "finding"),
    [
        (2, SOUND, ""),
        (1, (Run(1, 2, FREE), *SOUND), "it is settled to 1, but the offset of the group is 2"),
        (2, SOUND[1:], "messages 5 to 6 were popped, but the queue has 2 to 2"),
        (2, (SOUND[0], Run(4, 6, DONE)), "messages 4 to 6 stand where those from 5 on should"),
        (2, (Run(2, 6, DONE), SOUND[2]), "messages 2 to 6 are done"),
        (2, (Run(2, 5, OUT),), "messages 2 to 5 are in flight, but were never handed out"),
        (2, (*SOUND, Run(8, 11, FREE, 1, 0, 8)), "it was handed out to 11, but ends at 10"),
    ],
)
def test_a_row_that_no_decision_leads_to_is_named(
    stores: Stores, path: Path, done: int, runs: tuple[Run, ...], finding: str
) -> None:
    save(stores, path, PopRow(done, list(runs)))
    findings = check_directory(path).findings
    assert len(findings) == bool(finding)
    assert all("queue 0 of topic " in found and f" as group workers pops it: {finding}" in found for found in findings)


def save(stores: Stores, path: Path, popped: PopRow | None) -> None:
    """Save the one popped queue of a checkpoint as it is not, or not at all."""
    with closing(Checkpoint(path / "state.mdb")) as checkpoint:
        state = checkpoint.load()
        [(key, _)] = checkpoint.popped()
        row = msgspec.msgpack.encode(("popped", *key))
        value = None if popped is None else seal(row, msgspec.msgpack.encode(popped))
        checkpoint.save(ChangedRows(state.position, [(row, value)]))
    stores.damaged.add(path)


@pytest.mark.parametrize(
    ("popped", "finding"),
    [
        (PopRow(2, [*SOUND]), ""),
        (PopRow(2, [Run(2, 5, OUT, 3, DUE_MS, 8, "a"), *SOUND[1:]]), "is not as the log has it"),
        (PopRow(2, [SOUND[0], Run(5, 6, FREE, 1, 0, 7), SOUND[2]]), "is not as the log has it"),
        (PopRow(2, [*SOUND[:2]]), "is not as the log has it"),
        (PopRow(2, [*SOUND, Run(8, 9, FREE)]), "is not as the log has it"),
        (None, "is missing, but the log has it"),
    ],
)
def test_a_row_that_does_not_follow_from_the_log_is_named(
    stores: Stores, path: Path, popped: PopRow | None, finding: str
) -> None:
    save(stores, path, popped)
    findings = check_directory(path).findings
    assert len(findings) == bool(finding)
    assert all("the row ['popped', 'workers', " in found and found.endswith(finding) for found in findings)


def test_nothing_is_compared_with_a_log_without_its_beginning(stores: Stores) -> None:
    store = stores.open(segment_bytes=1 << 20)
    store.create_topic("t", 1)
    store.append("t", 0, *(b"%d" % number for number in range(10)))
    topic_id = store.key("t", 0).topic_id
    store.record(PopMoved("workers", (QueueMoved(topic_id, 0, (Run(0, 2, DONE), *SOUND)),)))
    store.store.call(lambda: store.store.log.roll(store.store.end))
    store.record(PopMoved("workers", (QueueMoved(topic_id, 0, (Run(6, 7, OUT, 2, DUE_MS, 9, "b"),)),)))
    store.close()
    store = stores.open(segment_bytes=1 << 20)  # its state is saved, so that the first segment may go
    assert store.store.old.remove_first(1 << 60)
    store.close()
    assert check_directory(store.path).findings == []
    save(stores, store.path, PopRow(2, [SOUND[0]]))
    assert check_directory(store.path).findings == []
