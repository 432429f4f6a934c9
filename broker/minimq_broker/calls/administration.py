"""Log lines for administrative changes and their callers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from minimq_broker.commit.changes import AdminChange
from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_common.security.caller import current_caller
from minimq_common.wire.dispatcher import Serve
from minimq_common.wire.rpc import address_of

log = logging.getLogger(__name__)

#: The caller of the current task: address and client id.
_caller: ContextVar[tuple[str, str]] = ContextVar("caller", default=("-", "-"))


def log_change(change: AdminChange | None, error: BaseException | None = None, *, automatic: bool = False) -> None:
    """Log a change, if there is one, with its caller; `automatic` if a producer's first message caused it."""
    if change is None:
        return
    address, client_id = _caller.get()
    user = current_caller().user or "-"
    action = f"{change.action} automatically" if automatic else change.action
    values = action, change.name, change.old, change.new, address, client_id, user
    if error is None:
        log.info("administration: %s name=%s old=%r new=%r caller=%s client=%s user=%s", *values, extra=ALWAYS_WRITTEN)
    else:
        text = "administration: %s name=%s old=%r new=%r caller=%s client=%s user=%s error=%r"
        log.warning(text, *values, error, extra=ALWAYS_WRITTEN)


def as_caller(serve: Serve) -> Serve:
    """Return a handler that sets the caller first."""

    async def serve_as_caller(request: Any, context: Any) -> Any:
        _caller.set((address_of(context.peer()), getattr(request, "client_id", "") or "-"))
        return await serve(request, context)

    return serve_as_caller


def answering(call: Callable[[Any], Awaitable[Any]]) -> Serve:
    return as_caller(lambda request, _: call(request))
