"""A copy that takes the place of what a data directory holds: whatever interrupts that, it is the one or the other."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.backup.copy import StoreCopy
from minimq_broker.log.data_dir import DataDirectory, Owner
from minimq_common.errors import DataDirectoryInUse, StoreError
from support.kernel_stores import Stores

OWNER = Owner("default", "broker-a", 1)
#: What changes a directory, as Python tells before it does it.
CHANGES = frozenset({"os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "open"})


def make_old_and_copy(stores: Stores) -> Path:
    """Return a directory of five old messages, with a copy of two others in the making."""
    master = stores.open("master")
    master.create_topic("t")
    for body in (b"new-0", b"new-1"):
        master.append("t", 0, body)
    slave = stores.open("slave", owner=OWNER)
    slave.create_topic("t")
    for number in range(5):
        slave.append("t", 0, b"old-%d" % number)
    slave.close()
    with closing(StoreCopy(slave.path / "rebuilding", master.store.snapshot(), 0)) as copy:
        copy.put(master.store.entries(0, 1 << 30))
        copy.finish()
    return slave.path


def bodies(stores: Stores, path: Path) -> list[bytes]:
    store = stores.open(path.name, owner=OWNER)
    found = store.bodies("t", 0)
    store.close()
    return found


def replace(path: Path) -> None:
    with closing(DataDirectory(path, create=False, rebuilds=True)) as directory:
        directory.replace_by_rebuilt()


def killed_at(step: int, work: Callable[[], None]) -> bool:
    """Do something in a child that is killed just before it makes its change of that number; tell whether it was."""
    child = os.fork()
    if child == 0:
        left = step

        def look(event: str, _: object) -> None:
            nonlocal left
            if event in CHANGES:
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(look)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_whatever_moment_it_is_killed_at_a_directory_holds_the_old_or_the_new(stores: Stores) -> None:
    made = make_old_and_copy(stores)
    seen: list[list[bytes]] = []
    step, killed = 0, True
    while killed:
        path = stores.folder / f"killed-{step}"
        shutil.copytree(made, path)
        killed = killed_at(step, lambda path=path: replace(path))  # type: ignore[misc]
        assert check_directory(path).findings == []
        seen.append(bodies(stores, path))
        assert not (path / "rebuilding").exists()
        step += 1
    old, new = [b"old-%d" % number for number in range(5)], [b"new-0", b"new-1"]
    changes = sum(one != other for one, other in pairwise(seen))
    assert (seen[0], seen[-1], changes) == (old, new, 1)
    assert step > 10


def test_what_is_damaged_is_replaced_and_whose_it_is_stays(stores: Stores) -> None:
    path = make_old_and_copy(stores)
    (path / "format").write_text("damaged")
    (path / "state.mdb").write_bytes(b"damaged")
    for segment in (path / "commitlog").glob("*.mdb"):
        segment.write_bytes(b"damaged")
    (path / "copying").touch()
    replace(path)
    assert bodies(stores, path) == [b"new-0", b"new-1"]
    with closing(DataDirectory(path, create=False)) as directory:
        assert directory.owner() == OWNER


def test_nobody_rebuilds_what_is_open_or_of_an_unknown_owner(stores: Stores) -> None:
    store = stores.open("slave", owner=OWNER)
    with pytest.raises(DataDirectoryInUse, match="in use by process"):
        DataDirectory(store.path, create=False, rebuilds=True)
    store.close()
    with closing(DataDirectory(store.path, create=False, rebuilds=True)) as directory:
        for text, error in (("{", "cannot be read"), ("[1]", "cannot be read"), (None, "has no file owner")):
            directory.owner_path.unlink()
            if text is not None:
                directory.owner_path.write_text(text)
            else:
                assert not directory.owner_path.exists()
            with pytest.raises(StoreError, match=error):
                directory.owner()
            directory.owner_path.touch()
        directory.owner_path.unlink()
