"""Reports a disk whose syncs take seconds: in the log, and to the producers that wait for one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from minimq_broker.commit.store import Store
from minimq_broker.commit.sync_watch import SLOW_S
from minimq_common.retry_log import RetryLog
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 0.5


class SlowDisk(PeriodicTask):
    """Checks periodically how long the writer has waited for the disk."""

    def __init__(self, store: Store, still_syncing: Callable[[float], object]) -> None:
        """`still_syncing` is called with the seconds of a slow sync while it is running."""
        super().__init__("slow-disk", self._check, _CHECK_INTERVAL_S, log)
        self._store, self._still_syncing = store, still_syncing
        self._slow = RetryLog(log)

    def _check(self) -> None:
        syncs = self._store.writer.figures.syncs
        slow_s, running_s = syncs.slow_s, syncs.running_s
        if slow_s:
            self._slow.failed(
                "store: the disk is slow, senders wait for its syncs slowest_s=%.1f unfinished_s=%.1f: compare with "
                "other programs and the health of the disk",
                slow_s,
                running_s,
            )
        else:
            self._slow.worked("store: the disk has been fast again for a minute")
        if running_s >= SLOW_S:
            self._still_syncing(running_s)
