"""Reads the pages of files at a start in this process: a child for each start takes most of the time of small tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from minimq_broker.log import lmdb_file, start_check
from minimq_broker.log.page_walk import PageDamage, walk


def unreadable(paths: Sequence[Path]) -> dict[Path, PageDamage | OSError]:
    found: dict[Path, PageDamage | OSError] = {}
    for path in paths:
        try:
            walk(path)
        except (PageDamage, OSError) as error:
            found[path] = error
        except lmdb.Error as error:
            found[path] = OSError(str(error))
    return found


@contextmanager
def in_this_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start_check, "unreadable", unreadable)
        patch.setattr(lmdb_file, "unreadable_files", unreadable)
        yield


@pytest.fixture(autouse=True)
def pages_are_read_here() -> Iterator[None]:
    """Override this in a module whose files are damaged, since that may end the process."""
    with in_this_process():
        yield
