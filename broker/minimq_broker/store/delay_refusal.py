"""The refusal of further delays while those that wait fill the disk."""

from __future__ import annotations

from minimq_broker.core.delays import DueKey
from minimq_broker.core.disk import DiskLevel
from minimq_broker.store.disk import Disk
from minimq_broker.store.due_index import DueIndex
from minimq_common.errors import StoreFull

#: When a sender that was refused may come back, in seconds.
_COME_BACK_S = 1.0


def delay_refusal(disk: Disk, index: DueIndex, mark: DueKey) -> StoreFull | None:
    """Return why no batch may be delayed now, None when one may: they fill the disk, and nothing can be deleted."""
    use, level = disk.latest
    if level < DiskLevel.DELETE_EARLY or not index.keeps_first(mark):
        return None
    return StoreFull(
        f"the disk of the broker is {use.ratio:.1%} full, and delayed messages keep its oldest data: no more are "
        "accepted until some are due: send without a delay, or give the broker a larger disk",
        retry_after_s=_COME_BACK_S,
    )
