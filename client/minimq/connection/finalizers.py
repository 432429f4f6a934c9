"""Ends clients: by `close`, by garbage collection, and at the end of the process."""

from __future__ import annotations

import _thread
import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any, Self

from minimq.connection.fork_guard import ForkGuard, loop_threads

log = logging.getLogger(__name__)

#: Clients that were dropped in a fork: if gRPC freed their parts, connections of the parent process would break.
_never_released: list[Finalizer] = []
#: Open clients that can be flushed.
_unclosed: set[Finalizer] = set()
#: At the end of the process, for flushing all open clients: a user may sit at the terminal.
_FLUSH_S = 2.0


class ClosedByWith:
    """A client that a `with` block closes at its end."""

    close: Callable[..., Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # After Ctrl-C, a second one ends the waits of `close`: the first one propagates.
        with suppress(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext():
            self.close()


class ClosedByAsyncWith:
    """A client that an `async with` block closes at its end."""

    close: Callable[..., Any]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Closing:
    """Closes a client once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._has_begun = False

    def run(self, close: Callable[[], None]) -> None:
        """Close the client, or wait until another thread has done so. Raises what `close` raises."""
        with self._lock:
            if not self._has_begun:
                self._has_begun = True
                close()


class Finalizer:
    """Releases the parts of a client when it is garbage collected without `close`.

    The threads of a client keep its parts alive, so they must not refer to the client itself.
    """

    def __init__(
        self, client: object, release: Callable[[], None], flush: Callable[[float], object] | None = None
    ) -> None:
        self.name = type(client).__name__
        self._release, self._process = release, ForkGuard()
        self.flush = flush
        self._finalizer = weakref.finalize(client, self._drop)
        self._finalizer.atexit = False
        if flush is not None:
            _unclosed.add(self)

    def close(self, close: Callable[[], object]) -> None:
        """Call `close`, unless nothing is left to close: see `detach`. Raises what it raises.

        Python may call a user's `__del__`, and so this, on the thread of any client: then another thread closes.
        """
        if not self.detach():
            return
        if threading.get_ident() in loop_threads:
            _on_thread(self.name, close)
        else:
            close()

    def detach(self) -> bool:
        """Leave the end of the client to the caller. False if nothing is left: in a fork, or as the interpreter ends.

        At the end of the interpreter, the threads of clients have stopped: a call that waits for one would hang.
        """
        if self._process.is_void:
            return False
        self._finalizer.detach()
        _unclosed.discard(self)
        return True

    def _drop(self) -> None:
        if self.detach():
            _on_thread(self.name, self._release)
        else:
            _never_released.append(self)


@atexit.register
def _flush_all() -> None:
    until = time.monotonic() + _FLUSH_S
    for client in [*_unclosed]:
        if client.flush is None or not client.detach():
            continue
        try:
            client.flush(max(until - time.monotonic(), 0.0))
        except Exception as error:  # noqa: BLE001 - the other clients must be flushed
            log.warning("client: the process ends before all is sent client=%s reason=%s", client.name, error)


def _on_thread(name: str, close: Callable[[], object]) -> None:
    # Takes no lock of `threading`, unlike a `Thread`: a finalizer may have interrupted the code that holds it.
    _thread.start_new_thread(_run, (name, close))


def _run(name: str, close: Callable[[], object]) -> None:
    try:
        close()
    except Exception:
        log.exception("client: releasing a dropped client failed client=%s", name)
