"""The session of one member of a group, and the events that wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from minimq_broker.calls.streams import AnswerStream
from minimq_common.wire.unsent import UnsentBudget
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: The session of a client ends if more bytes of events wait for it. Member lists do not count: only the latest one of
#: each group waits.
MAX_WAITING_BYTES = 8 << 20
#: While more bytes of events wait, the broker receives nothing from the client.
_PAUSE_RECEIVING_BYTES = 64 << 10
#: The start position of a group, unless a member has sent another: skips no message.
EARLIEST = broker_pb2.StartPosition(at=broker_pb2.START_AT_EARLIEST)


class Session(AnswerStream):
    """One client in one group, and the events that wait for it, in order. A new member list replaces one that waits.

    Membership and leases outlive a broken stream by the grace period.
    """

    _answers: list[bytes | str]  # the name of the group stands for its member list

    def __init__(
        self,
        context: Any,
        soon: Callable[[Callable[[], None]], object],
        unsent: UnsentBudget,
        user: str,
        client_id: str,
        run: int = 0,
    ) -> None:
        super().__init__(context, soon, unsent)
        self.user, self.client_id, self.run = user, client_id, run
        #: Empty until it joins one.
        self.group = ""
        #: The start position of the group, if it is new. By default, no message is skipped.
        self.start = EARLIEST
        self.connected = True
        #: Ended because heartbeats were missing: the client may still run, suspended or cut off.
        self.is_silent = False
        #: Continues a session of the client whose connection broke.
        self.is_back = False
        self.grace: asyncio.TimerHandle | None = None
        self._lists: dict[str, bytes] = {}
        #: The version of each group at the latest join of the client: older lists are outdated.
        self._versions: dict[str, int] = {}
        self.waiting_bytes = 0

    def tell(self, event: broker_pb2.SessionEvent) -> None:
        """Send an event, unless the stream has ended. Ends it if the client lets too many bytes wait."""
        if self.is_closed:
            return
        data = event.SerializeToString()
        self.waiting_bytes += len(data)
        self.add(data)
        if self.waiting_bytes > MAX_WAITING_BYTES:
            log.warning("session: ended, the client does not read client=%s", self.client_id)
            self.close()

    def joined(self, group: str, version: int) -> None:
        """Drop the waiting member list if it is older than the client's join, and ignore older lists from now on."""
        if version > self._versions.get(group, 0) and self._lists.pop(group, None) is not None:
            self._answers.remove(group)
        self._versions[group] = version

    def add_list(self, group: str, version: int, event: bytes) -> None:
        """Queue a member list, unless it is older than the latest join of the client."""
        if self.is_closed or version < self._versions.get(group, 0):
            return
        is_new, self._lists[group] = group not in self._lists, event
        if is_new:
            self.add(group)

    async def few(self) -> None:
        """Wait until few bytes of events wait, or the stream ended."""
        while self.waiting_bytes > _PAUSE_RECEIVING_BYTES and not self.is_closed:
            await self._change()

    def next_size(self) -> int:
        return len(self._event(self._answers[0])) if self._answers else 0

    def take(self) -> bytes | None:
        """Remove and return the next event, if there still is one."""
        if not self._answers:
            return None
        item = self._answers.pop(0)
        event = self._event(item)
        if isinstance(item, str):
            del self._lists[item]
        else:
            self.waiting_bytes -= len(event)
        return event

    def _event(self, item: bytes | str) -> bytes:
        return self._lists[item] if isinstance(item, str) else item
