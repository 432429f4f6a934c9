"""The writer when something fails: everybody hears of it, and nothing is acknowledged that is not written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minimq_broker.log import commit_log
from minimq_broker.log.checkpoint import Checkpoint
from minimq_broker.log.segment import Segment
from minimq_broker.state.state import State
from minimq_common.errors import InternalError, StoreError
from support.kernel_stores import OpenStore, Stores
from support.waiting import wait_until


class Disk:
    """A disk for the writes of segments, which fail while there is an error."""

    def __init__(self) -> None:
        self.error: Exception | None = None


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    write = Segment.write

    def write_or_fail(segment: Segment, *written: Any) -> None:
        if made.error:
            raise made.error
        write(segment, *written)

    monkeypatch.setattr(Segment, "write", write_or_fail)
    return made


@pytest.fixture
def broken_checkpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def save(_: Checkpoint, state: object) -> None:
        raise RuntimeError("not thought of")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", save)
        yield


@pytest.mark.usefixtures("broken_checkpoint")
def test_an_unexpected_error_of_the_checkpoint_stops_the_store_loudly(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    store = stores.open(checkpoint_interval_s=0.001)
    wait_until(lambda: "not thought of" in caplog.text)
    with pytest.raises(InternalError, match=r"not thought of\): restart the broker"):
        store.create_topic("t")
    assert "Traceback" in caplog.text


def test_a_failed_store_is_well_after_a_new_start(stores: Stores, store: OpenStore, disk: Disk) -> None:
    store.append("t", 0, b"before")
    disk.error = OSError(errno.EIO, "no more")
    with pytest.raises(InternalError):
        store.append("t", 0, b"rejected")
    disk.error = None
    store.close()
    again = stores.open()
    assert again.append("t", 0, b"after") == 1
    assert again.bodies("t", 0) == [b"before", b"after"]


def test_a_state_without_all_that_the_log_has_stops_the_store(
    stores: Stores, store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("does not fit")

    with monkeypatch.context() as patch:
        patch.setattr(State, "apply", fail)
        with pytest.raises(InternalError, match=r"does not fit\): restart the broker"):
            store.append("t", 0, b"first")
    with pytest.raises(InternalError, match="restart the broker"):
        store.append("t", 0, b"rejected")
    store.close()
    again = stores.open()
    assert again.append("t", 0, b"second") == 1
    assert again.bodies("t", 0) == [b"first", b"second"]


def test_an_entry_whose_place_is_taken_is_not_acknowledged(stores: Stores, store: OpenStore) -> None:
    stores.damaged.add(store.path)
    store.store.log.active.write([(store.store.end, b"not of this state")], [])
    with pytest.raises(InternalError, match="already has an entry at or after position"):
        store.append("t", 0, b"x")
    assert store.bodies("t", 0) == []
    assert store.store.writer.has_failed


def test_a_segment_that_is_not_synced_is_not_used(
    stores: Stores, store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.ENOSPC, "no space")

    log = store.store.log
    for number in range(2):
        store.append("t", 0, b"%d" % number)
        with monkeypatch.context() as patch:
            patch.setattr(commit_log, "sync_directory", fail)
            with pytest.raises(InternalError, match="no space"):
                store.record(lambda state: log.roll(state.position))
    store.append("t", 0, b"2")
    store.record(lambda state: log.roll(state.position))
    assert [segment.sealed for segment in log.segments] == [True, False]
    assert sorted(log.path.glob("*.mdb")) == [segment.path for segment in log.segments]
    store.append("t", 0, b"3")
    store.close()
    assert stores.open().bodies("t", 0) == [b"0", b"1", b"2", b"3"]
