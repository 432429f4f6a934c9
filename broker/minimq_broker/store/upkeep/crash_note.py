"""A note that a process leaves in its data directory when reading a damaged file ends it.

LMDB reads through memory: where a page leads out of the file, the kernel ends the process. Nothing can be done about
that in Python, but the stacks of its threads are written down, and the next start looks at all files.
"""

from __future__ import annotations

import faulthandler
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

FILE_NAME = "crash"
#: Maximum logged size of a note.
_TOLD_BYTES, _TOLD_LINES = 16 << 10, 8
#: Time for a look at the pages of old segments at a start, in seconds.
_LOOK_S = 2.0


def leave_notes(folder: Path) -> None:
    """Have the stacks of all threads written into a data directory when a fault of memory ends this process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The descriptor stays open for the lifetime of the process: it is needed at its very end.
        file = os.open(folder / FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:  # what is wrong with the directory is told by who opens it
        faulthandler.enable()
    else:
        faulthandler.enable(file)


def time_to_look(folder: Path) -> float:
    """Return for how many seconds a start may look at old segments; forever when there is a note, which is logged."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            note = file.read(_TOLD_BYTES).decode(errors="replace")
        if not note:
            return _LOOK_S
        os.truncate(path, 0)
    except OSError:
        return _LOOK_S
    log.error(
        "store: the process before was ended by a fault of memory, as reading a damaged file is; all segments are "
        "verified now: %s",
        " | ".join(line.strip() for line in note.splitlines() if line.strip())[: 160 * _TOLD_LINES],
    )
    return float("inf")
