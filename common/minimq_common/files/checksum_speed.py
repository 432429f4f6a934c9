"""Warns where checksums are computed in Python."""

from __future__ import annotations

import logging

import google_crc32c

_told: set[str] = set()


def warn_of_slow_checksums(log: logging.Logger) -> None:
    """Log once in a process that `google-crc32c` is not compiled, and what to do."""
    if google_crc32c.implementation == "python" and not _told:
        _told.add(log.name)
        log.warning(
            "checksums are computed in pure Python, which makes sending and receiving 25 to 34 times slower: "
            "google-crc32c has no wheel for this Python and platform (there is none for Alpine Linux). Use a "
            "platform and Python version for which `pip download --only-binary=:all: google-crc32c` finds one, or "
            "build it with a C compiler and the library crc32c"
        )
