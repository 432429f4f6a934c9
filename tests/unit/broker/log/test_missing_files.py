"""Files that somebody has deleted, moved or added in a data directory are named, by a start and by `check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.log.lmdb_file import DamagedFile
from minimq_common.errors import StoreError
from support.checking import findings_of
from support.kernel_stores import OpenStore, Stores

SEGMENT_BYTES = 96 << 10


@pytest.fixture
def filled(stores: Stores) -> Path:
    """A closed directory of at least three segments."""
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    store.create_topic("t", 1)
    for number in range(24):
        store.append("t", 0, b"%d-" % number + bytes(9000))
    assert len(store.store.log.segments) >= 3
    store.close()
    stores.damaged.add(store.path)
    return store.path


def segments(path: Path) -> list[Path]:
    return sorted((path / "commitlog").glob("*.mdb"))


def opened(stores: Stores) -> OpenStore:
    return stores.open(segment_bytes=SEGMENT_BYTES)


def test_a_file_of_another_name_is_named(stores: Stores, filled: Path) -> None:
    (filled / "commitlog" / "foo.mdb").write_text("x")
    with pytest.raises(StoreError, match=r"foo\.mdb is not named like a segment.*: move it away"):
        opened(stores)
    assert any("foo.mdb: it is not named like a segment" in finding for finding in findings_of(filled))


def test_a_directory_in_the_place_of_a_file_is_a_finding(filled: Path) -> None:
    (filled / "state.mdb").unlink()
    (filled / "state.mdb").mkdir()
    assert any("state.mdb: " in finding for finding in findings_of(filled))


def test_a_log_without_its_format_is_rejected_by_all(stores: Stores, filled: Path) -> None:
    (filled / "format").unlink()
    for look in (lambda: opened(stores), lambda: check_directory(filled)):
        with pytest.raises(StoreError, match="holds a log, but no file named format: restore that"):
            look()


def test_an_empty_segment_is_damaged(stores: Stores, filled: Path) -> None:
    *_, last = segments(filled)
    last.write_bytes(b"")
    with pytest.raises(DamagedFile) as caught:
        opened(stores)
    assert caught.value.message.count("is damaged") == caught.value.message.count("restore") == 1
