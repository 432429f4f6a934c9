"""The limit of open files of a server process, divided between its connections and its files."""

from __future__ import annotations

import contextlib
import logging
import resource

log = logging.getLogger(__name__)

#: Descriptors of a server besides those of connections and of stored data.
_OWN_FILES = 64


def open_more_files() -> None:
    """Raise the limit of open files and sockets as far as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS reports a hard limit that it does not accept
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def connections_within_limit(wanted: int, stored_files: int = 0) -> int:
    """Return the number of connections to accept; log a warning if the limit of open files allows fewer than `wanted`.

    Keeps descriptors for `stored_files`, which at most fill the half of the limit that connections do not get.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = limit - min(_OWN_FILES + stored_files, limit // 2)
    if limit == resource.RLIM_INFINITY or wanted <= allowed:
        return wanted
    log.warning(
        "open files: accepts fewer connections, to keep descriptors for its files limit=%d connections=%d wanted=%d: "
        "raise the limit (ulimit -Hn, LimitNOFILE)",
        limit,
        allowed,
        wanted,
    )
    return allowed
