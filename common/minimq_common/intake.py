"""Bounds on requests that a server has not taken in yet: they have arrived in part, or wait.

gRPC receives as many requests at once as there are calls, each up to the largest one that is allowed, and tells nobody
how much of them there is. The kernel tells how many bytes a connection has received, and the `Dispatcher` how many of
them became requests. The rest is held by gRPC. When it is too much in all, connections are ended that hold much of it,
or that send none of their requests to the end.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from minimq_common import connections
from minimq_common.connections import Traffic
from minimq_common.freed_memory import FreedMemory
from minimq_common.outage_log import OutageLog

log = logging.getLogger(__name__)

#: Bytes on a connection around those of a request: headers, frames of HTTP/2.
AROUND_REQUEST = 256
#: Parts of what was taken in, and of what was sent, that frames of HTTP/2 come to besides.
_AROUND_TAKEN, _AROUND_SENT = 0.01, 0.005
#: What is not counted on any connection: the windows of idle streams, pings.
_NOT_COUNTED = 1 << 20
#: A connection that takes part may hold so much; one that has sent nothing to its end for `_STUCK_S` nothing.
_ENOUGH_BYTES = 8 << 20
_STUCK_S = 1.0
#: Time between two looks at the memory of this process, and while it has grown; and between two at its connections in
#: any case, in seconds.
_LOOK_S, _LOOK_GROWN_S = 0.1, 0.025
_LOOK_AT_ALL_S = 5.0
#: A look at connections takes no more than one in so many parts of the time.
_LOOK_SHARE = 4
#: With so much more memory than a while ago, connections are looked at; so much of it is forgotten each second.
_GROWN_BYTES, _FORGOTTEN_BYTES_PER_S = 48 << 20, 10 << 20

_STATM, _STATM_BYTES = Path("/proc/self/statm"), 256
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Looks in a row without a connection after which its count is forgotten: one alone may have missed it.
_MISSED_MOST = 2


@dataclass(slots=True)
class Taken:
    """The bytes of one connection that have become requests.

    The event loop adds to `bytes`; all else belongs to `Intake`.
    """

    address: str = ""
    bytes: int = 0
    seen_bytes: int = -1
    #: When `bytes` was seen first and has not changed from then on.
    since: float = 0.0
    #: Looks in a row that did not find the connection.
    missed: int = 0


class Intake:
    """Bounds what all connections of a server hold of requests.

    It looks in a thread of its own, so that a flood which keeps the event loop busy does not keep it from looking.
    Requests are counted on one event loop.
    """

    def __init__(
        self,
        limit: int,
        traffic: Callable[[int], Iterable[Traffic]] = connections.traffic,
        cut: Callable[[Collection[str]], object] = connections.cut,
    ) -> None:
        self._limit = limit
        self._traffic = traffic
        self._cut = cut
        self._lock = threading.Lock()  # protects which counts there are
        self._taken: dict[str, Taken] = {}
        self._memory, self._memory_at = 0, 0.0
        self._looked_at = self._look_again_at = -math.inf
        self._freed = FreedMemory()
        self._outage = OutageLog(log)
        self._port = 0
        self._statm = -1
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.bytes = 0
        self.ended = 0

    def start(self, port: int) -> None:
        """Begin to look at what comes to a port, where the kernel tells the traffic of connections."""
        if connections.TELLS_TRAFFIC:
            self._port = port
            self._statm = os.open(_STATM, os.O_RDONLY)
            self._thread = threading.Thread(target=self._watch, name="intake", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more. Waits for a look under way: not for a loop. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        statm, self._statm = self._statm, -1
        if statm >= 0:
            os.close(statm)

    def of(self, peer: str) -> Taken:
        """Return the count of a connection by its peer, as gRPC names it."""
        with self._lock:
            taken = self._taken.get(peer)
            if taken is None:
                taken = self._taken[peer] = Taken(connections.peer_address(peer))
            taken.missed = 0
            return taken

    def _watch(self) -> None:
        has_grown = False
        while not self._stopping.wait(_LOOK_GROWN_S if has_grown else _LOOK_S):
            try:
                has_grown = self._look()
                self._outage.worked("requests on their way: looked at again")
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look comes
                self._outage.crashed(
                    "requests on their way: not looked at, will try again error=%r", error, cause=error
                )

    def _look(self) -> bool:
        now = time.monotonic()
        fields = os.pread(self._statm, _STATM_BYTES, 0).split()
        memory = (int(fields[1]) - int(fields[2])) * _PAGE_BYTES  # without the pages of files
        has_grown = self._has_grown(memory, now)
        if now >= (self._look_again_at if has_grown else self._looked_at + _LOOK_AT_ALL_S):
            with self._lock:
                known = list(self._taken.items())
            found = {each.address: each for each in self._traffic(self._port)}
            self._looked_at = time.monotonic()
            self._look_again_at = self._looked_at + _LOOK_SHARE * (self._looked_at - now)
            self._bound(known, found, self._looked_at)
        if has_grown:
            self._freed.look(memory)
        else:
            self._freed.pause()
        return has_grown

    def _has_grown(self, memory: int, now: float) -> bool:
        forgotten = int(_FORGOTTEN_BYTES_PER_S * (now - self._memory_at))
        self._memory = min(memory, self._memory + forgotten) if self._memory else memory
        self._memory_at = now
        return memory > self._memory + _GROWN_BYTES

    def _bound(self, known: Collection[tuple[str, Taken]], found: Mapping[str, Traffic], now: float) -> None:
        held: list[tuple[int, bool, str]] = []
        for address in found.keys() - {taken.address for _, taken in known}:  # none of its requests has come whole
            size = found[address].received - _NOT_COUNTED
            if size > 0:
                held.append((size, True, address))
        for peer, taken in known:
            if taken.address not in found:
                self._miss(peer, taken)
                continue
            taken.missed = 0
            _, received, sent = found[taken.address]
            counted = taken.bytes  # read once: the loop adds to it
            size = int(received - counted * (1 + _AROUND_TAKEN) - sent * _AROUND_SENT - _NOT_COUNTED)
            if counted != taken.seen_bytes:
                taken.seen_bytes, taken.since = counted, now
            if size > 0:
                held.append((size, size > _ENOUGH_BYTES or now > taken.since + _STUCK_S, taken.address))
        self.bytes = sum(size for size, _, _ in held)
        if self.bytes > self._limit:
            self._end(sorted(held, reverse=True))

    def _miss(self, peer: str, taken: Taken) -> None:
        with self._lock:
            taken.missed += 1
            if taken.missed >= _MISSED_MOST:
                del self._taken[peer]

    def _end(self, held: Iterable[tuple[int, bool, str]]) -> None:
        left, ended = self.bytes, []
        for size, may_end, address in held:
            if left <= self._limit // 2:
                break
            if may_end:
                left -= size
                ended.append(address)
                log.warning(
                    "connection ended: too much of requests has come that are not sent to their end, or not taken in "
                    "peer=%s held_bytes=%d limit_bytes=%d",
                    address,
                    size,
                    self._limit,
                )
        self.ended += len(ended)
        self._cut(ended)
