"""Stores for the tests of features, verified after every test that used one."""

from support.store_fixtures import store, stores

__all__ = ["store", "stores"]
