"""A handle of a store, for services that work on one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minimq_broker.commit.message_store import MessageStore


class OneStore:
    """A handle of a store that is never replaced."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store

    @contextmanager
    def reading(self) -> Iterator[MessageStore]:
        yield self.store
