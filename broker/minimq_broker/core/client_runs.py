"""The processes that have used one client id: the newest one has taken over, and the others are fenced."""

from __future__ import annotations

from typing import NamedTuple

from minimq_common.errors import Fenced

#: Fenced runs that are remembered for each client id; a process stops once it has received the error.
_MAX_FENCED = 16


class Runs(NamedTuple):
    """A run is one consumer object; its number is random, and the same for all of its streams."""

    current: int
    fenced: tuple[int, ...] = ()

    def followed_by(self, run: int) -> Runs:
        """Return the runs after a connection of `run`."""
        if run == self.current:
            return self
        return Runs(run, (*self.fenced, self.current)[-_MAX_FENCED:])

    def check(self, run: int, client_id: str) -> None:
        """Raise `Fenced` if another run has taken over from this one."""
        if run in self.fenced:
            raise fenced(client_id)


def fenced(client_id: str) -> Fenced:
    """Return the error for a consumer whose client id another one has now."""
    return Fenced(
        f"another consumer has started with client id {client_id!r} and has taken over: this one reads and commits "
        "nothing more; close it, and give each consumer its own client_id"
    )
