"""The consumers that have used one client id: the newest one has taken over, and older ones are fenced."""

from __future__ import annotations

from minimq_common.errors import Fenced


def is_newer(run: int, known: int, client_id: str) -> bool:
    """Return whether `run` takes over from the `known` one. Raises `Fenced` if it is the older one."""
    if run < known:
        raise fenced(client_id)
    return run > known


def fenced(client_id: str) -> Fenced:
    """Return the error for a consumer whose client id another one has now."""
    return Fenced(
        f"another consumer has started with client id {client_id!r} and has taken over: this one reads and commits "
        "nothing more; close it, and give each consumer its own client_id"
    )
