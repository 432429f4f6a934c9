"""Cleans up clients that were dropped without `close`: their threads would run forever."""

from __future__ import annotations

import _thread
import atexit
import itertools
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from types import FrameType

from minimq.transport.client_log import client_logger

log = client_logger(__name__)

#: Parts of clients that were dropped in a fork: if gRPC freed them, connections of the parent process would break.
_never_released: list[Callable[[], None]] = []
#: Open clients that can be flushed: name, location of creation, flush and process.
_unclosed: dict[int, tuple[str, str, Callable[[float], object], int]] = {}
_numbers = itertools.count()
#: At the end of the process, for flushing all open clients: a user may sit at the terminal.
_FLUSH_S = 2.0


class Closing:
    """Closes a client once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closer: int | None = None
        self._is_over = threading.Event()

    def run(self, close: Callable[[], None]) -> None:
        """Close the client, or wait until another thread has done so. Raises what `close` raises."""
        with self._lock:
            is_first = self._closer is None
            if is_first:
                self._closer = threading.get_ident()
        if not is_first:
            if self._closer != threading.get_ident():  # else this is a signal handler that interrupts the closing
                self._is_over.wait()
            return
        try:
            close()
        finally:
            self._is_over.set()


class WhenDropped:
    """Releases the parts of a client when the client is garbage collected; warns with a `ResourceWarning`.

    The threads of a client keep its parts alive, so they must not refer to the client itself.
    """

    def __init__(
        self, client: object, release: Callable[[], None], flush: Callable[[float], object] | None = None
    ) -> None:
        kind = type(client)
        package = "minimq.aio" if kind.__module__.startswith("minimq.aio") else "minimq"
        name = f"{package}.{kind.__name__}"
        self._number, place, self._process = next(_numbers), _caller_location(), os.getpid()
        self._finalizer = weakref.finalize(client, _drop, self._number, name, place, release, self._process)
        self._finalizer.atexit = False
        if flush is not None:
            _unclosed[self._number] = name, place, flush, self._process

    def closed(self) -> None:
        """Cancel this: the client was closed. Does nothing in a fork, where nothing is closed."""
        if os.getpid() == self._process:
            self._finalizer.detach()
            _unclosed.pop(self._number, None)


def _caller_location() -> str:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "minimq":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "an unknown place"


def _drop(number: int, name: str, place: str, release: Callable[[], None], process: int) -> None:
    _unclosed.pop(number, None)
    if os.getpid() != process:
        _never_released.append(release)
        return
    try:
        _thread.start_new_thread(_begin, (name, release))  # takes no lock of `threading`, as a finalizer must not
    except RuntimeError:  # the interpreter shuts down, which ends the threads of the client
        return
    _warn(f"a {name} was dropped without being closed", name, place)


def _warn(what: str, name: str, place: str) -> None:
    word = "async with" if name.startswith("minimq.aio") else "with"
    warnings.warn(
        f"{what}: use `{word} {name.rpartition('.')[2]}(...)`, or call its close(); it was made at {place}",
        ResourceWarning,
        stacklevel=3,
    )


def _at_exit() -> None:
    until = time.monotonic() + _FLUSH_S
    unclosed = [client for client in list(_unclosed.values()) if client[-1] == os.getpid()]
    for name, _, flush, _ in unclosed:
        try:
            flush(max(until - time.monotonic(), 0.0))
        except Exception as error:  # noqa: BLE001 - the other clients must be flushed
            log.warning("client: the process ends before all is sent client=%s reason=%s", name, error)
    for name, place, _, _ in unclosed:
        _warn(f"a {name} was not closed when the process ended", name, place)


atexit.register(_at_exit)


def _begin(name: str, release: Callable[[], None]) -> None:
    threading.Thread(target=_release, args=(name, release), name="minimq-release", daemon=True).start()


def _release(name: str, release: Callable[[], None]) -> None:
    try:
        release()
    except Exception:
        log.exception("client: releasing a dropped client failed client=%s", name)
