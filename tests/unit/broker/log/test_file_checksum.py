"""The checksum at the end of a sealed segment file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from minimq_broker.log.file_checksum import has_checksum, make_checksum, remove_checksum, verify_checksum
from minimq_broker.log.page_walk import PageDamage
from support.chance import SEED
from support.kernel_stores import OpenStore, Stores


def make(path: Path) -> bytes:
    assert list(make_checksum(path))
    return path.read_bytes()


def test_every_byte_of_a_file_counts(tmp_path: Path) -> None:
    path, chance = tmp_path / "a.mdb", random.Random(SEED)
    path.write_bytes(chance.randbytes(3 << 20))
    sealed = make(path)
    list(verify_checksum(path))
    for _ in range(20):
        data = bytearray(sealed)
        data[chance.randrange(len(data) - 16)] ^= chance.randrange(1, 256)
        path.write_bytes(data)
        with pytest.raises(PageDamage, match="does not match its CRC-32C"):
            list(verify_checksum(path))
    path.write_bytes(sealed)
    assert list(make_checksum(path)) == []
    remove_checksum(path)
    assert not has_checksum(path)
    assert path.read_bytes() == sealed[:-16]


def test_a_body_cannot_look_like_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.mdb"
    path.write_bytes(bytes(4096))
    path.write_bytes(bytes(4096) + bytes(4096 - 16) + make(path)[-16:])
    assert not has_checksum(path)


def roll(store: OpenStore) -> Path:
    file = store.store.log.active.path
    store.store.writer.call(lambda: store.store.log.roll(store.store.end))
    return file


def test_a_segment_that_is_written_again_has_no_checksum(stores: Stores) -> None:
    store = stores.open(alone=False)
    store.store.writer.lead(1)
    store.create_topic("t")
    store.append("t", 0, b"a")
    end = store.store.end
    store.append("t", 0, b"b")
    file = roll(store)
    make(file)
    store.append("t", 0, b"c")
    store.store.writer.follow()
    store.store.writer.truncate(end)
    assert not has_checksum(file)
    assert store.store.log.active.path == file
    store.store.writer.lead(2)
    store.append("t", 0, b"d")
    assert store.bodies("t", 0) == [b"a", b"d"]


def test_a_checksum_stays_through_restarts(stores: Stores) -> None:
    store = stores.open()
    store.create_topic("t")
    store.append("t", 0, bytes(10_000))
    file = roll(store)
    sealed = make(file)
    for _ in range(2):
        store.close()
        store = stores.open()
        assert len(store.bodies("t", 0)) == 1
        assert file.read_bytes() == sealed
