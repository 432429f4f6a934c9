"""Delayed batches whose rows or entries are damaged: nothing else is lost, and each damage is found."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import pytest

from minimq_broker.backup.copy import StoreCopy
from minimq_broker.features.delayed.delaying import next_due_ms
from minimq_broker.features.delayed.table import RecallOutcome
from minimq_broker.log.entry import HEADER_BYTES
from minimq_broker.state.queue_ends import HeldKey
from support.checking import findings_of
from support.stores import OpenStore, Stores

Table = Any
Harm = Callable[[lmdb.Environment, Table, Table, HeldKey], None]


def _position(key: HeldKey) -> bytes:
    return key.position.to_bytes(8, "big")


def wait_key(key: HeldKey) -> bytes:
    """Return under what the row of a waiting batch is stored."""
    return struct.pack(">QQB", *key, 1)


def _without_an_entry(env: lmdb.Environment, log: Table, due: Table, key: HeldKey) -> None:
    with env.begin(log, write=True) as txn:
        assert txn.delete(_position(key))


def _with_a_flipped_bit(env: lmdb.Environment, log: Table, due: Table, key: HeldKey) -> None:
    with env.begin(log, write=True) as txn:
        entry = bytearray(txn.get(_position(key), b""))
        entry[-1] ^= 1
        txn.put(_position(key), bytes(entry))


def _with_another_time(env: lmdb.Environment, log: Table, due: Table, key: HeldKey) -> None:
    with env.begin(log, write=True) as txn:
        entry = bytearray(txn.get(_position(key), b""))
        entry[HEADER_BYTES + 2] ^= 1
        txn.put(_position(key), bytes(entry))


def _with_a_damaged_row(env: lmdb.Environment, log: Table, due: Table, key: HeldKey) -> None:
    with env.begin(due, write=True) as txn:
        row = bytearray(txn.get(wait_key(key), b""))
        row[11] ^= 1
        txn.put(wait_key(key), bytes(row))


def _with_a_row_that_is_cut(env: lmdb.Environment, log: Table, due: Table, key: HeldKey) -> None:
    with env.begin(due, write=True) as txn:
        txn.put(wait_key(key), b"\0")


def _without_a_row(env: lmdb.Environment, log: Table, due: Table, key: HeldKey) -> None:
    with env.begin(due, write=True) as txn:
        assert txn.delete(wait_key(key))


def _with_another_row(env: lmdb.Environment, log: Table, due: Table, key: HeldKey) -> None:
    with env.begin(due, write=True) as txn:
        txn.put(wait_key(HeldKey(key.until_ms + 1, key.position)), txn.get(wait_key(key), b""))


ENTRIES = [_without_an_entry, _with_a_flipped_bit, _with_another_time]
ROWS = [_with_a_damaged_row, _with_a_row_that_is_cut]
LOST_ROWS = [_without_a_row, _with_another_row]


def delay(stores: Stores) -> tuple[OpenStore, list[HeldKey]]:
    store = stores.open()
    store.create_topic("t")
    keys = [store.delay("t", 0, store.clock.now_ms + number, b"body-%d" % number) for number in range(1, 6)]
    store.store.writer.call(lambda: store.store.log.roll(store.store.end))
    return store, keys


def harm(stores: Stores, by: Harm) -> tuple[OpenStore, list[HeldKey]]:
    """Return a store whose third delayed batch is damaged, and the keys of all."""
    store, keys = delay(stores)
    store.close()
    stores.damaged.add(store.path)
    file = min((store.path / "commitlog").glob("*.mdb"))
    with closing(lmdb.open(str(file), subdir=False, max_dbs=4, map_size=1 << 30)) as env:
        by(env, env.open_db(b"log", create=False), env.open_db(b"delayed", create=False), keys[2])
    return store, keys


def publish(store: OpenStore) -> list[bytes]:
    store.clock.now_ms += 100
    store.publish_due()
    return store.bodies("t", 0)


@pytest.mark.parametrize("by", ENTRIES)
def test_a_damaged_one_is_skipped_and_counted(stores: Stores, by: Harm) -> None:
    harm(stores, by)
    store = stores.open()
    store.clock.now_ms += 100
    [job] = store.publish_due()
    assert (job.published, job.lost) == (4, 1)
    assert store.bodies("t", 0) == [b"body-1", b"body-2", b"body-4", b"body-5"]
    assert store.state.tables["delayed"].by_topic == {}
    store.close()
    store = stores.open()
    assert next_due_ms(store.store) is None
    assert publish(store) == [b"body-1", b"body-2", b"body-4", b"body-5"]


@pytest.mark.parametrize("by", ROWS)
def test_the_entry_tells_what_a_damaged_row_does_not(stores: Stores, by: Harm) -> None:
    _, keys = harm(stores, by)
    store = stores.open()
    assert store.recall("t", keys[2]) == [RecallOutcome.RECALLED]
    assert publish(store) == [b"body-1", b"body-2", b"body-4", b"body-5"]


@pytest.mark.parametrize("by", ROWS)
def test_a_batch_with_a_damaged_row_is_published(stores: Stores, by: Harm) -> None:
    harm(stores, by)
    assert publish(stores.open()) == [b"body-%d" % number for number in range(1, 6)]


@pytest.mark.parametrize("by", [*ENTRIES, *ROWS, *LOST_ROWS])
def test_each_damage_is_found(stores: Stores, by: Harm) -> None:
    store, _ = harm(stores, by)
    assert findings_of(store.path) != []


def test_a_copy_has_what_waits(stores: Stores) -> None:
    store, keys = delay(stores)
    store.recall("t", keys[1])
    snapshot = store.store.snapshot()
    with closing(StoreCopy(stores.folder / "copy", snapshot, 0)) as copy:
        copy.put(store.store.entries(0, 1 << 30))
        copy.finish()
    made = stores.open("copy")
    assert publish(made) == [b"body-1", b"body-3", b"body-4", b"body-5"]
    assert check_directory_of(made) == []


def check_directory_of(store: OpenStore) -> list[str]:
    store.close()
    return findings_of(Path(store.path))
