"""Fixtures of stores, which are verified after every test that used one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.kernel_stores import OpenStore, Stores


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path)
    yield made
    made.close()


@pytest.fixture
def store(stores: Stores) -> OpenStore:
    """A store with the topic "t" of two queues."""
    opened = stores.open()
    opened.create_topic("t", 2)
    return opened
