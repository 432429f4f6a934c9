"""Stores for the tests of the broker, verified after every test that used one."""

from support.page_reading import pages_are_read_here
from support.store_fixtures import store, stores

__all__ = ["pages_are_read_here", "store", "stores"]
