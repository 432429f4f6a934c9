"""A value made of files, which is made anew when they change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from minimq_common.errors import InvalidArgument

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which nobody looks again.
_FRESH_S = 1.0
#: Most bytes of a file of secrets.
MOST_BYTES = 256 << 10


class Watched(Generic[T]):
    """The value of some files. Thread-safe; no thread looks at them: whoever asks does, once in a while.

    Files are replaced one after the other: while they do not fit, and while they cannot be read, the former value
    stands.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        make: Callable[[Sequence[bytes]], T],
        *,
        fresh_s: float | None = None,
        most_bytes: int = MOST_BYTES,
        initial: T | None = None,
    ) -> None:
        """Read the files; they have to be right, unless there is a value to begin with."""
        self._paths = tuple(paths)
        self._make = make
        self._fresh_s = fresh_s
        self._most_bytes = most_bytes
        self._lock = threading.Lock()  # held while files are read; a look that is under way serves all
        self._complaint = ""
        if initial is None:
            self._looked_at = time.monotonic()
            self._marks: object = self._fingerprint()
            self._value = make(self._read())
        else:
            self._value, self._marks = initial, None
            self._look()

    def get(self, *, at_once: bool = False) -> T:
        """Return the value of the files as they are, or were when they were right."""
        fresh_s = 0.0 if at_once else _FRESH_S if self._fresh_s is None else self._fresh_s
        if time.monotonic() - self._looked_at >= fresh_s and self._lock.acquire(blocking=at_once):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._value

    @property
    def rejected(self) -> bool:
        """True if the files could not be used when they were last looked at."""
        return bool(self._complaint)

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        marks = self._fingerprint()
        if marks == self._marks:
            self._complaint = ""  # the former files are back, as they were
            return
        try:
            self._value = self._make(self._read())
        except InvalidArgument as error:
            if error.message != self._complaint:
                self._complaint = error.message
                stands = "no others were there before" if self._marks is None else "the former ones stand"
                log.error("security: new files cannot be used, %s reason=%s", stands, error.message)
            return  # it is looked at again: the others of the files may be on their way
        self._marks, self._complaint = marks, ""
        log.info("security: new files are in use files=%s", ", ".join(map(str, self._paths)))

    def _read(self) -> list[bytes]:
        return [read_bounded(path, self._most_bytes) for path in self._paths]

    def _fingerprint(self) -> tuple[object, ...]:
        return tuple(_sign(path) for path in self._paths)


def read_bounded(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what is in a file of secrets. Raises `InvalidArgument` when it cannot be read or is too large."""
    try:
        with path.open("rb") as opened:
            data = opened.read(most_bytes + 1)
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None
    if len(data) > most_bytes:
        raise InvalidArgument(f"{path} has more than {most_bytes} bytes: it is no file of secrets")
    return data


def _sign(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
