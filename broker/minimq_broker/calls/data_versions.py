"""The versions of a broker's registrations."""

from __future__ import annotations

from minimq_broker.commit.store import Store
from minimq_broker.state.state import State


class DataVersions:
    """The versions of this broker's registrations. Belongs to the event loop.

    A later run has larger ones, so a name server replaces the registration of an earlier run.
    """

    def __init__(self, store: Store) -> None:
        self._term, self._store = store.term, store
        #: Added to versions: one for each role, and the changes counted by states that were replaced.
        self._before = 0

    @property
    def next(self) -> int:
        """The lowest version of a registration made from the state after this read."""
        return (self._term << 32) + self._before + self._store.writer.state.made

    @property
    def answered(self) -> int:
        """The version from which on registrations include everything read from the state before this read."""
        return (self._term << 32) + self._before + self._store.writer.state.begun

    def begin(self, term: int) -> None:
        """Begin a role."""
        self._term = term
        self._before += 1

    def count_replaced(self, before: State) -> None:
        """Keep the versions growing after the state `before` was replaced."""
        self._before += before.made + 1
