"""The visitor who makes a request, and the rights with which the console answers it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from minimq_common.security.access_rule import Need
from minimq_console.observer import Observer


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person who looks at the console."""

    #: Random id in the cookie of the browser; empty if it has none yet. No `repr` shows it.
    browser: str = field(repr=False)
    #: With whose credentials the cluster is asked; empty on a cluster without access control.
    user: str
    observer: Observer
    address: str

    def rights(self, needs: Iterable[Need]) -> frozenset[Need]:
        """Return which of some rights the visitor has; asks the cluster. Raises `MiniMQError`."""
        asked = frozenset(needs)
        if not self.user or not asked:
            return asked
        return self.observer.admin.own_rights(asked)[1]
