"""Publishing batches that wait in the log until they are decided on, or due: in order, and again after an error."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

from minimq_common.errors import MiniMQError, NotEnoughReplicas, StoreError, StoreFull
from minimq_common.outage_log import OutageLog

log = logging.getLogger(__name__)

#: Stands for all names in the log; no legal name.
_ALL = "(all)"


class BatchPublication:
    """Publishes batches that wait under names, such as those of transactions. Belongs to the event loop."""

    def __init__(self, what: str, publish_next: Callable[[str], Awaitable[int]]) -> None:
        self._what = what
        self._publish_next = publish_next
        #: By the names that cannot be published.
        self._outages: dict[str, OutageLog] = {}

    async def publish_all(self, names: Collection[str]) -> None:
        """Publish the waiting batches of each name; one that cannot be read does not hold up the others."""
        for name in self._outages.keys() - names - {_ALL}:
            self._works(name)
        for name in names:
            try:
                await self.publish(name)
            except StoreError as error:
                self._not_now(name, error)
            except (StoreFull, NotEnoughReplicas) as error:  # the others would hear the same
                self._not_now(_ALL, error)
                return
        self._works(_ALL)

    async def publish(self, name: str) -> None:
        """Publish all that waits under a name. Raises as `publish_next` does; what is left waits on."""
        published = 0
        while more := await self._publish_next(name):
            published += more
        if published:
            log.info("%s: published name=%s batches=%d", self._what, name, published)

    def _not_now(self, name: str, error: MiniMQError) -> None:
        outage = self._outages.setdefault(name, OutageLog(log))
        outage.failed("%s: not now, will try again name=%s error=%s", self._what, name, error.message, cause=error)

    def _works(self, name: str) -> None:
        outage = self._outages.pop(name, None)
        if outage is not None:
            outage.worked("%s: go on name=%s", self._what, name)
