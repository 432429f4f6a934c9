"""Verification of a segment in small steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import pytest

from minimq_broker.backup.check import verified
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted
from support.kernel_stores import TIMEOUT_S, Stores, numbered_batch

Table = Any  # as lmdb has it


@pytest.fixture
def path(stores: Stores) -> Path:
    """The log of a closed store with entries of all kinds, in two segments."""
    store = stores.open()
    store.create_topic("t", 2)
    for number in range(10):
        store.append("t", number % 2, b"first-%d" % number, b"second-%d" % number)
    store.record(OffsetsCommitted("g", (CommittedOffset(*store.key("t", 0), 4),)))
    store.submit("t", 0, numbered_batch(1, 1)).result(TIMEOUT_S)
    store.store.writer.call(lambda: store.store.log.roll(store.store.end))
    store.close()
    stores.damaged.add(store.path)
    return store.path / "commitlog"


def steps(path: Path) -> int:
    """Verify the first segment five entries at a time, and return in how many steps."""
    with closing(CommitLog(path, 1 << 20, readonly=True)) as log:
        first, second = log.segments
        return 1 + sum(1 for _ in verified(first, second.start, 1 << 20, 5))


def test_a_segment_in_order_is_walked_through_in_steps(path: Path) -> None:
    with closing(CommitLog(path, 1 << 20, readonly=True)) as log:
        entries, rows, _ = log.segments[0].counts
    assert rows == 11
    assert steps(path) > entries // 5


def _without_a_row(env: lmdb.Environment, log: Table, rows: Table) -> None:
    with env.begin(rows, write=True) as txn:
        txn.delete(next(iter(txn.cursor()))[0])


def _with_another_row(env: lmdb.Environment, log: Table, rows: Table) -> None:
    with env.begin(rows, write=True) as txn:
        every = list(txn.cursor())
        txn.put(every[0][0][:-1] + b"\x7f", every[0][1])


def _without_an_entry(env: lmdb.Environment, log: Table, rows: Table) -> None:
    with env.begin(log, write=True) as txn:
        txn.delete(list(txn.cursor())[-1][0])


def _with_a_flipped_bit(env: lmdb.Environment, log: Table, rows: Table) -> None:
    with env.begin(log, write=True) as txn:
        key, entry = next((key, bytes(value)) for key, value in txn.cursor() if b"second-3" in value)
        txn.put(key, entry.replace(b"second-3", b"second-2"))


@pytest.mark.parametrize("harm", [_without_a_row, _with_another_row, _without_an_entry, _with_a_flipped_bit])
def test_what_is_not_as_it_was_written_is_found(
    path: Path, harm: Callable[[lmdb.Environment, Table, Table], None]
) -> None:
    file = min(path.glob("*.mdb"))
    with closing(lmdb.open(str(file), subdir=False, max_dbs=2, map_size=1 << 30)) as env:
        harm(env, env.open_db(b"log", create=False), env.open_db(b"consumequeue", create=False))
    with pytest.raises(DAMAGE):
        steps(path)
