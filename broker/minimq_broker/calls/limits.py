"""Limits on what a broker accepts, and the count of rejections."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from minimq_common.errors import SystemBusy
from minimq_common.retry_log import RetryLog
from minimq_common.wire.protocol_bounds import MAX_TOPICS

#: Bytes that a request may have besides the largest batch.
MAX_REQUEST_OVERHEAD = 1 << 20


#: Connections that may be open at once: more than one Python process can serve.
MAX_CONNECTIONS = 10_000
#: Streams of one kind that may be open at once. Each may hold an unread answer of 1 MiB, so fewer than connections.
MAX_STREAMS = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    max_body_bytes: int
    max_batch_bytes: int
    #: Bytes of batches that may wait for the disk; senders wait beyond that. A tenth of a second of a fast disk.
    max_pending_bytes: int = 64 << 20
    #: Seconds that a batch may wait for space among these bytes: longer than a sync, shorter than a sender's timeout.
    busy_after_s: float = 0.5
    #: Bytes of answers that clients have not read yet: some frames of 1 MiB for each of a few dozen slow clients.
    max_unsent_bytes: int = 96 << 20
    #: A name server keeps the topics of a broker in memory, too.
    max_topics: int = MAX_TOPICS
    #: A group takes some KiB of memory, and a checkpoint lists all of them.
    max_groups: int = 10_000
    #: One for each connection.
    max_sessions: int = MAX_CONNECTIONS

    @property
    def max_request_bytes(self) -> int:
        """Maximum bytes of a request that has batches."""
        return self.max_batch_bytes + MAX_REQUEST_OVERHEAD


log = logging.getLogger(__name__)

#: The names of the limits, as in `SystemBusy.limit`; features add theirs to `LimitErrors.counts`.
LIMITS = (
    "copies",
    "filters",
    "groups",
    "member-queues",
    "members",
    "offsets",
    "pending-bytes",
    "pulls",
    "queues",
    "sessions",
    "streams",
    "subscriptions",
    "topics",
)
#: After this long without a rejection, the next one is logged as the start of a new outage.
_QUIET_S = 60.0


class LimitErrors:
    """Counts rejections by limit. Logs the first rejection of a limit, then one line per minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest: dict[str, float] = {}
        self._outages: defaultdict[str, RetryLog] = defaultdict(lambda: RetryLog(log, clock))
        self.counts = Counter(dict.fromkeys(LIMITS, 0))

    def note(self, error: BaseException | None) -> None:
        """Count an error that is sent to a client, if it is the rejection of a limit."""
        if not isinstance(error, SystemBusy) or not error.limit:
            return
        limit, now = error.limit, self._clock()
        self.counts[limit] += 1
        if now > self._latest.get(limit, now) + _QUIET_S:
            self._outages[limit].forget()
        self._latest[limit] = now
        self._outages[limit].failed("rejected: a limit is reached limit=%s reason=%s", limit, error)
