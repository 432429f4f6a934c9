"""Stores for the tests of the broker, verified after every test that used one."""

from support.store_fixtures import store, stores

__all__ = ["store", "stores"]
