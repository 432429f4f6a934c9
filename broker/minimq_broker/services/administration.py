"""Log lines for administrative changes and their callers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from minimq_broker.core.changes import AdminChange, change_of
from minimq_broker.core.facts import Fact
from minimq_broker.core.state import State
from minimq_common.serving.logs import ALWAYS_WRITTEN
from minimq_common.wire.rpc import address_of

log = logging.getLogger(__name__)

#: The caller of the current task: address and client id.
_caller: ContextVar[tuple[str, str]] = ContextVar("caller", default=("-", "-"))


def called_by(peer: str, client_id: str = "") -> None:
    """Set the caller of the current task."""
    _caller.set((address_of(peer), client_id or "-"))


def log_change(change: AdminChange, error: BaseException | None = None) -> None:
    """Log a change with its caller. Automatic changes have none."""
    address, client_id = _caller.get()
    values = change.action, change.name, change.old, change.new, address, client_id
    if error is None:
        log.info("administration: %s name=%s old=%r new=%r caller=%s client=%s", *values, extra=ALWAYS_WRITTEN)
    else:
        text = "administration: %s name=%s old=%r new=%r caller=%s client=%s error=%r"
        log.warning(text, *values, error, extra=ALWAYS_WRITTEN)


class LoggedDecision:
    """Wraps a decision about a fact, and logs the administrative change at the end of the block."""

    def __init__(self, decide: Callable[[State], Fact | None]) -> None:
        self._decide = decide
        self._change: AdminChange | None = None

    def __call__(self, state: State) -> Fact | None:
        """Return the fact to record. Called on the thread of the writer."""
        fact = self._decide(state)
        self._change = None if fact is None else change_of(state, fact)
        return fact

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._change is not None:
            log_change(self._change, error)
