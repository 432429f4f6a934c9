"""Observers that hear nothing; a test replaces what it wants to hear: `replace(NO_ENGINE_OBSERVER, log_grew=...)`."""

from __future__ import annotations

from minimq_broker.services.engine import EngineObserver
from minimq_broker.services.store_handle import HandleObserver
from minimq_broker.store.store_options import StoreObserver


def nothing(*_: object, **__: object) -> None:
    """Do nothing, refuse nothing."""


NO_STORE_OBSERVER = StoreObserver(nothing, nothing, nothing)
NO_HANDLE_OBSERVER = HandleObserver(nothing, nothing, nothing, nothing, nothing)
NO_ENGINE_OBSERVER = EngineObserver(nothing, nothing, nothing, nothing)
