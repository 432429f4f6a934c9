"""Directories of slaves that are marked to be replaced by a copy."""

from __future__ import annotations

from contextlib import closing

import pytest

from minimq_broker.log.data_dir import DataDirectory, Owner
from minimq_common.errors import CopyInterrupted, DataDirectoryInUse, StoreError
from support.kernel_stores import Stores

OWNER = Owner("default", "broker-a", 1)


def test_a_start_empties_a_marked_directory_with_unreadable_files(stores: Stores) -> None:
    store = stores.open("slave", owner=OWNER)
    store.create_topic("t")
    store.close()
    for file in (store.path / "format", store.path / "state.mdb", *(store.path / "commitlog").glob("*.mdb")):
        file.write_bytes(b"damaged")
    with closing(DataDirectory(store.path, create=False, checks_format=False)) as directory:
        directory.mark_copying()
    with pytest.raises(CopyInterrupted):
        stores.open("slave", owner=OWNER)
    again = stores.open("slave", owner=OWNER, alone=False)
    assert (again.store.end, again.state.topics) == (0, {})


def test_nobody_rebuilds_what_is_open_or_of_an_unknown_owner(stores: Stores) -> None:
    store = stores.open("slave", owner=OWNER)
    with pytest.raises(DataDirectoryInUse, match="in use by process"):
        DataDirectory(store.path, create=False, checks_format=False)
    store.close()
    with closing(DataDirectory(store.path, create=False, checks_format=False)) as directory:
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
