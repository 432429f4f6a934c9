"""Calls the user's callbacks about queues."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.queue_decisions import Change, OffsetReset, QueueEvent
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)

T = TypeVar("T")


class QueueCallbacks:
    """The callbacks of one consumer. They run where it polls."""

    def __init__(self, options: ConsumerOptions, group: str) -> None:
        self._options = options
        self._group = group

    def announce(self, changes: deque[Change]) -> None:
        """Call `on_assigned`, `on_lost` and `on_offset_reset`; remove each change once its callback has returned."""
        while changes:
            first, count = changes[0], 1
            if isinstance(first, OffsetReset):
                self._call(self._options.on_offset_reset, first, [first.queue])
            else:
                queues = _of_kind(first[0], [*changes])
                count = len(queues)
                is_gain = first[0] is QueueEvent.GAINED
                self._call(self._options.on_assigned if is_gain else self._options.on_lost, queues, queues)
            for _ in range(count):
                changes.popleft()

    def revoke(self, queues: Sequence[MessageQueue]) -> bool:
        """Call `on_revoked`; return whether the state of the queues is saved."""
        return bool(queues) and self._call(self._options.on_revoked, queues, queues)

    def _call(self, callback: Callable[[T], object] | None, about: T, queues: Iterable[MessageQueue]) -> bool:
        try:
            return callback is not None and callback(about) is not False
        except Exception:  # an error of user code must neither stop reading nor block the rebalance
            log.exception("consumer: a callback failed group=%s queues=%s", self._group, ", ".join(map(str, queues)))
            return False


def _of_kind(event: QueueEvent, changes: Sequence[Change]) -> list[MessageQueue]:
    """Return the queues of the first changes, as long as they are of one kind."""
    queues: list[MessageQueue] = []
    for change in changes:
        if isinstance(change, OffsetReset) or change[0] is not event:
            break
        queues.append(change[1])
    return queues
