"""Stores for the tests of features, verified after every test that used one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.page_reading import pages_are_read_here
from support.store_fixtures import store
from support.stores import Stores

__all__ = ["pages_are_read_here", "store", "stores"]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path)
    yield made
    made.close()
