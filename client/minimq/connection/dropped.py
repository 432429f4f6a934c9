"""Ends clients: by `close`, by garbage collection, and at the end of the process."""

from __future__ import annotations

import _thread
import atexit
import itertools
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable

from minimq.connection.client_log import client_logger
from minimq.connection.home_process import check_no_signal, is_finalizing, loop_threads

log = client_logger(__name__)

#: Parts of clients that were dropped in a fork: if gRPC freed them, connections of the parent process would break.
_never_released: list[Callable[[], None]] = []
#: Open clients that can be flushed: name, flush and process.
_unclosed: dict[int, tuple[str, Callable[[float], object], int]] = {}
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


class Finalizer:
    """Releases the parts of a client when it is garbage collected without `close`; warns with a `ResourceWarning`.

    The threads of a client keep its parts alive, so they must not refer to the client itself.
    """

    def __init__(
        self, client: object, release: Callable[[], None], flush: Callable[[float], object] | None = None
    ) -> None:
        kind = type(client)
        package = "minimq.aio" if kind.__module__.startswith("minimq.aio") else "minimq"
        self._name = f"{package}.{kind.__name__}"
        self._number, self._process = next(_numbers), os.getpid()
        self._finalizer = weakref.finalize(client, _drop, self._number, self._name, release, self._process)
        self._finalizer.atexit = False
        if flush is not None:
            _unclosed[self._number] = self._name, flush, self._process

    def close(self, close: Callable[[], object]) -> None:
        """Call `close`, unless nothing is left to close: see `detach`. Raises what it raises.

        Python may call a user's `__del__`, and so this, on the thread of any client: then another thread closes.
        """
        if threading.get_ident() in loop_threads:
            if self.detach():
                _on_thread(self._name, close)
            return
        check_no_signal()
        if self.detach():
            close()

    def detach(self) -> bool:
        """Leave the end of the client to the caller. False if nothing is left: in a fork, or as the interpreter ends.

        At the end of the interpreter, the threads of clients have stopped: a call that waits for one would hang.
        """
        if os.getpid() != self._process or is_finalizing():
            return False
        self._finalizer.detach()
        _unclosed.pop(self._number, None)
        return True


def _drop(number: int, name: str, release: Callable[[], None], process: int) -> None:
    _unclosed.pop(number, None)
    if os.getpid() != process:
        _never_released.append(release)
        return
    if is_finalizing():  # which has ended the threads of the client
        return
    _on_thread(name, release)
    word = "async with" if name.startswith("minimq.aio") else "with"
    warnings.warn(
        f"a {name} was dropped without being closed: use `{word} {name.rpartition('.')[2]}(...)`, or call its close()",
        ResourceWarning,
        stacklevel=2,
    )


def _at_exit() -> None:
    until = time.monotonic() + _FLUSH_S
    for name, flush, process in [*_unclosed.values()]:
        if process != os.getpid():
            continue
        try:
            flush(max(until - time.monotonic(), 0.0))
        except Exception as error:  # noqa: BLE001 - the other clients must be flushed
            log.warning("client: the process ends before all is sent client=%s reason=%s", name, error)


atexit.register(_at_exit)


def _on_thread(name: str, close: Callable[[], object]) -> None:
    # Takes no lock of `threading`: a finalizer may have interrupted the code that holds it.
    _thread.start_new_thread(_begin, (name, close))


def _begin(name: str, close: Callable[[], object]) -> None:
    threading.Thread(target=_run, args=(name, close), name="minimq-release", daemon=True).start()


def _run(name: str, close: Callable[[], object]) -> None:
    try:
        close()
    except Exception:
        log.exception("client: releasing a dropped client failed client=%s", name)
