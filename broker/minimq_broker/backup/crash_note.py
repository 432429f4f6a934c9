"""A note that a crashing process leaves in its data directory.

LMDB maps files into memory: a damaged page that points outside of the file makes the kernel kill the process. Python
cannot prevent that, but it writes the stacks of all threads into the note, and the next start verifies all files.
"""

from __future__ import annotations

import faulthandler
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

FILE_NAME = "crash"
_MAX_LOGGED_BYTES, _MAX_LOGGED_LINES = 16 << 10, 8
#: Seconds in which a start may verify the pages of old segments.
_LOOK_S = 2.0


def leave_notes(folder: Path) -> None:
    """From now on, write the stacks of all threads into a data directory when a memory fault kills this process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The descriptor stays open for the lifetime of the process: a crash writes to it.
        file = os.open(folder / FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:  # opening the data directory will report what is wrong with it
        faulthandler.enable()
    else:
        faulthandler.enable(file)


def startup_verify_s(folder: Path) -> float:
    """Return how long a start may verify old segments, in seconds; infinity after a crash, whose note is logged."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            note = file.read(_MAX_LOGGED_BYTES).decode(errors="replace")
        if not note:
            return _LOOK_S
        os.truncate(path, 0)
    except OSError:
        return _LOOK_S
    log.error(
        "store: the previous process was killed by a memory fault, maybe while reading a damaged file; all segments "
        "are verified now: %s",
        " | ".join(line.strip() for line in note.splitlines() if line.strip())[: 160 * _MAX_LOGGED_LINES],
    )
    return float("inf")
