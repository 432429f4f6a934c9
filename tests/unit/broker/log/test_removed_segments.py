"""Segments that were removed: what holds their files, and for how long."""

from __future__ import annotations

import gc
from pathlib import Path

from minimq_broker.log.rows import BorrowedViews, ReadLimits
from minimq_broker.log.segment import Segment
from minimq_common.batch.records import RecordBatch
from support.kernel_stores import Stores
from support.waiting import wait_until


def test_no_other_file_gets_an_inode_of_a_segment_that_is_not_gone(tmp_path: Path) -> None:
    """LMDB knows open files by their inodes, and rejects a new segment that has one of them."""
    segment = Segment(tmp_path / "a.mdb", 0, 1 << 20)
    inodes = {file.stat().st_ino for file in tmp_path.iterdir()}
    assert len(inodes) == 2
    segment.remove_file()
    segment.close()  # as LMDB does it: its files are closed, then it forgets them
    for number in range(100):
        (tmp_path / str(number)).touch()
    assert inodes.isdisjoint(file.stat().st_ino for file in tmp_path.iterdir())
    assert segment.path.name == "a.mdb"  # it is still there


def test_the_disk_of_a_removed_segment_comes_back_when_it_is_gone(tmp_path: Path) -> None:
    open_before = _open_files(tmp_path)
    segment = Segment(tmp_path / "a.mdb", 0, 1 << 20)
    segment.remove_file()
    assert _open_files(tmp_path) > open_before
    del segment
    assert _open_files(tmp_path) == open_before


def _open_files(folder: Path) -> int:
    """Count the files of a folder that this process has open, those without a name included."""
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        try:
            count += str(file.readlink()).startswith(str(folder))
        except FileNotFoundError:  # that of the listing itself
            continue
    return count


def test_views_outlive_the_segment_that_they_are_of(stores: Stores) -> None:
    store = stores.open(segment_bytes=1 << 16, checkpoint_interval_s=0.01)
    store.create_topic("t")
    bodies = [bytes([number]) * 20_000 for number in range(20)]
    for body in bodies:
        store.append("t", 0, body)
    with BorrowedViews() as borrowed:
        found, _ = store.store.search(store.key("t", 0), 0, ReadLimits(1, 1, borrowed=borrowed))
        wait_until(lambda: store.store.saved_position >= store.store.end, what="the state is saved")
        while store.store.log.remove_first(store.store.saved_position):
            pass
        gc.collect()
        assert store.store.bounds(store.key("t", 0))[0] > 0
        assert RecordBatch(bytes(found[0].data)).bodies() == bodies[:1]
