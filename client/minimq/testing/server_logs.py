"""The part of the logs of a cluster that was written during a test."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from minimq.local.local_cluster import LocalCluster

_MOST_BYTES = 16 << 10


class ServerLogs:
    """The logs of the servers of a cluster. Not thread-safe."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._paths = {server.name: server.log_path for server in (*cluster.nameservers, *cluster.brokers)}
        self._begins: dict[str, int] = {}

    def begin(self) -> None:
        """Leave out what is logged so far."""
        self._begins = {name: _size(path) for name, path in self._paths.items()}

    def sections(self) -> list[tuple[str, str]]:
        """Return a title and the text of each server that has logged something since; of a long one the end."""
        found = []
        for name, path in self._paths.items():
            begin, end = self._begins.get(name, 0), _size(path)
            if end > begin:
                with suppress(OSError), path.open("rb") as log_file:  # its cluster may end meanwhile
                    log_file.seek(max(begin, end - _MOST_BYTES))
                    found.append((f"log of minimq {name}", log_file.read().decode(errors="replace")))
        return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it was never started, or the data directory is gone
        return 0
