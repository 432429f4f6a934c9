"""Files that somebody has deleted, moved or added in a data directory are named, by a start and by `check`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.log.lmdb_file import DamagedFile
from minimq_broker.log.segment import Segment
from minimq_broker.state.queue_ends import NOTHING_NEEDED
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


def test_first_segments_that_are_not_there_are_missed(
    stores: Stores, filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, *_ = segments(filled)
    first.unlink()
    lacking = f"log positions 0 to {int(second.stem)} are missing"
    assert any(lacking in finding for finding in findings_of(filled))
    for _ in range(2):  # it is said each time
        caplog.clear()
        store = opened(stores)
        assert store.store.log.missing.startswith(lacking)
        assert any(lacking in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)
        store.close()


def test_what_retention_deletes_is_not_missed(
    stores: Stores, filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(stores)
    assert store.store.remove_first(NOTHING_NEEDED)
    kept = store.store.log.start

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    # It is recorded ahead of the deletion, which does not take place.
    monkeypatch.setattr(Segment, "remove_file", killed)
    with pytest.raises(KeyboardInterrupt):
        store.store.remove_first(NOTHING_NEEDED)
    monkeypatch.undo()
    store.close()
    assert findings_of(filled) == []
    store = opened(stores)
    assert (store.store.log.start, store.store.log.missing) == (kept, "")
    store.close()
    segments(filled)[0].unlink()
    assert any("are missing" in finding for finding in findings_of(filled))


def test_a_record_that_is_gone_is_made_anew(stores: Stores, filled: Path) -> None:
    [record] = (filled / "commitlog").glob("*.first")
    record.unlink()
    assert findings_of(filled) == []
    opened(stores).close()
    assert record.exists()


def test_of_several_records_that_of_the_first_segment_stays(stores: Stores, filled: Path) -> None:
    [record] = (filled / "commitlog").glob("*.first")
    for position in range(1, 9):  # of another copy of the directory, say, over which this one was copied
        record.with_stem(f"{position:020d}").touch()
    opened(stores).close()
    assert [*record.parent.glob("*.first")] == [record]


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
