"""Reports a disk whose syncs take seconds in the log."""

from __future__ import annotations

import logging

from minimq_broker.calls.store_handle import StoreHandle
from minimq_common.retry_log import RetryLog
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

_CHECK_INTERVAL_S = 0.5


class SlowDisk(PeriodicTask):
    """Checks periodically how long the writer has waited for the disk."""

    def __init__(self, handle: StoreHandle) -> None:
        super().__init__("slow-disk", self._check, _CHECK_INTERVAL_S, log)
        self._handle = handle
        self._slow = RetryLog(log)

    def _check(self) -> None:
        syncs = self._handle.any_store.figures.syncs
        if syncs.slow_s:
            self._slow.failed(
                "store: the disk is slow, senders wait for its syncs slowest_s=%.1f unfinished_s=%.1f: compare with "
                "other programs and the health of the disk",
                syncs.slow_s,
                syncs.running_s,
            )
        else:
            self._slow.worked("store: the disk has been fast again for a minute")
