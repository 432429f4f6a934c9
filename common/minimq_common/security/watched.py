"""A value that is loaded from files, and reloaded when they change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from minimq_common.errors import InvalidArgument
from minimq_common.files.text_file import MAX_BYTES, read_text_file

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Minimum seconds between two checks of the files.
_FRESH_S = 1.0


class Watched(Generic[T]):
    """A value loaded from files. Thread-safe. There is no thread for it: `get` checks the files once in a while.

    While the files are unreadable or do not fit together, because they are replaced one after the other, the former
    value stays.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        make: Callable[[Sequence[bytes]], T],
        *,
        max_bytes: int = MAX_BYTES,
        logs_changes: bool = True,
    ) -> None:
        """Load the files. Raises `InvalidArgument` if they cannot be used."""
        self._paths = tuple(paths)
        self._make = make
        self._max_bytes, self._logs_changes = max_bytes, logs_changes
        self._lock = threading.Lock()  # held during a check; only `at_once` waits for it
        self._complaint = ""
        self._looked_at = time.monotonic()
        self._marks = self._fingerprint()
        self._value = make(self._read())

    def get(self, *, at_once: bool = False) -> T:
        """Return the value of the files, or the last valid one. With `at_once`, check them now and wait for that."""
        fresh_s = 0.0 if at_once else _FRESH_S
        if time.monotonic() - self._looked_at >= fresh_s and self._lock.acquire(blocking=at_once):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._value

    @property
    def rejected(self) -> bool:
        """True if the files could not be used at the last check."""
        return bool(self._complaint)

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        marks = self._fingerprint()
        if marks == self._marks:
            self._complaint = ""  # the former files were restored unchanged
            return
        try:
            self._value = self._make(self._read())
        except InvalidArgument as error:
            if error.message != self._complaint:
                self._complaint = error.message
                log.error("security: new files cannot be used, the former ones stay in use reason=%s", error.message)
            return  # keeps the old marks, so the next check tries again: some files may not be replaced yet
        self._marks, self._complaint = marks, ""
        if self._logs_changes:
            log.info("security: new files are in use files=%s", ", ".join(map(str, self._paths)))

    def _read(self) -> list[bytes]:
        return [read_text_file(path, self._max_bytes) for path in self._paths]

    def _fingerprint(self) -> tuple[object, ...]:
        return tuple(_sign(path) for path in self._paths)


def _sign(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
