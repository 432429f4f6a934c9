"""Observers that hear nothing; a test replaces what it wants to hear: `replace(NO_ENGINE_OBSERVER, log_grew=...)`."""

from __future__ import annotations

from typing import Any

from minimq_broker.calls.engine import EngineObserver


def nothing(*_: object, **__: object) -> None:
    """Do nothing, reject nothing."""


#: Arguments of a `StoreHandle` that calls nobody.
NOBODY: dict[str, Any] = dict.fromkeys(("notify", "grown", "closing", "replaced", "disk_filled"), nothing)
NO_ENGINE_OBSERVER = EngineObserver(nothing, nothing, nothing)
