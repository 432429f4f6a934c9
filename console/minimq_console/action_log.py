"""The audit log of the console: one line for each change that somebody asked for."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from starlette.requests import Request

from minimq_common.serving.logs import ALWAYS_WRITTEN
from minimq_console.guard import address_of

_audit = logging.getLogger("minimq.audit")

#: Characters of a value, and of a sentence, that a line has.
_MOST_VALUE, _MOST_SAID = 100, 1_000


class ActionLog:
    """Writes one line about one request. Used by one thread at a time."""

    def __init__(self, action: str, request: Request, private: Collection[str] = ()) -> None:
        self._action = action
        self._private = private
        self._user: str = request.state.visitor.user
        self._address = address_of(request.scope)
        self._names = {name: str(value) for name, value in request.path_params.items()}
        self.given: Mapping[str, str] = {}
        #: True once a part of it may have been done: its line then says how it ended.
        self.has_begun = False

    def done(self, said: str) -> None:
        """Say that it was done."""
        self._write(logging.INFO, "done", said)

    def failed(self, said: str) -> None:
        """Say that it was begun, and failed: a part of it may have been done."""
        self._write(logging.WARNING, "failed", said)

    def refused(self, said: str) -> None:
        """Say that nothing was done, and why."""
        self._write(logging.WARNING, "refused", said)

    def _write(self, level: int, result: str, said: str) -> None:
        given = {
            name[:_MOST_VALUE]: self._shown(name, value) for name, value in (*self._names.items(), *self.given.items())
        }
        _audit.log(
            level,
            "console: an action user=%r from=%s action=%s given=%r result=%s said=%r",
            self._user,
            self._address,
            self._action,
            given,
            result,
            said[:_MOST_SAID],
            # Whoever is refused may ask again and again: only what was begun is an account of what was done.
            extra=None if result == "refused" else ALWAYS_WRITTEN,
        )

    def _shown(self, name: str, value: str) -> str:
        if name in self._private:
            return f"({len(value)} characters)"
        return value if len(value) <= _MOST_VALUE else f"{value[:_MOST_VALUE]}..."
