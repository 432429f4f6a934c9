"""The users and rules of a server, which all servers come to share; `access_exchange.py` talks to others."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_age import AccessAge
from minimq_common.security.access_document import AccessDocument, changes, decode
from minimq_common.serving.log_handler import ALWAYS_WRITTEN

log = logging.getLogger(__name__)
audit = logging.getLogger("minimq.audit")


class AccessRank(NamedTuple):
    """The place of a document among others: the largest counts."""

    version: int = 0
    digest: str = ""


class AccessSaid(NamedTuple):
    """A sentence between servers: the rank of a document, and the document for whom it is new."""

    rank: AccessRank
    document: bytes = b""


class SharedAccess:
    """The newest document that a server has heard of. Used on one event loop."""

    def __init__(self, *, only_reports: bool = False, max_age_s: float = math.inf) -> None:
        self.only_reports = only_reports
        self.document: AccessDocument | None = None
        self.rank = AccessRank()
        self.conflicts = 0
        self.age = AccessAge(max_age_s, time.monotonic)
        self._settled = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._seen_conflict: tuple[AccessRank, AccessRank] | None = None

    def listen(self, changed: Callable[[], None]) -> None:
        """Call back after each change, at once and on the loop; it must not block."""
        self._listeners.append(changed)

    @property
    def settled(self) -> bool:
        """False after the start, until another server has said what it has, or had the time for that.

        A server that slept while a user was removed may have an older document, and must not let that user in.
        """
        return self._settled.is_set()

    async def wait_until_settled(self) -> None:
        """Return once it is settled."""
        await self._settled.wait()

    def settle(self) -> None:
        """Go by the document that is here."""
        self._settled.set()

    def ignore(self, changed: Callable[[], None]) -> None:
        """Do not call back any more. Idempotent."""
        if changed in self._listeners:
            self._listeners.remove(changed)

    def offer(self, document: AccessDocument, source: str) -> bool:
        """Take a document if it is newer than that which is here; return whether it was."""
        rank = AccessRank(document.version, document.digest)
        if rank == self.rank:
            return False
        if rank.version == self.rank.version:
            self._note_conflict(rank, source)
        if rank < self.rank:
            return False
        former, self.document, self.rank = self.document, document, rank
        log.info("access: document in force version=%d digest=%.8s source=%s", *rank, source)
        if former is not None:
            for change in changes(former, document):
                audit.info("access: %s version=%d source=%s", change, rank.version, source, extra=ALWAYS_WRITTEN)
        for changed in tuple(self._listeners):
            changed()
        return True

    def _note_conflict(self, rank: AccessRank, source: str) -> None:
        found = (min(rank, self.rank), max(rank, self.rank))
        if found == self._seen_conflict:
            return
        self._seen_conflict = found
        self.conflicts += 1
        log.error(
            "access: two documents have one version, the one with the larger digest counts: apply one with a larger "
            "version by `minimq access apply` version=%d digests=%.8s,%.8s source=%s",
            rank.version, found[0].digest, found[1].digest, source,
        )  # fmt: skip


class AccessConversation:
    """One end of the talk between two servers, the same at both.

    Each says the rank of its document first; the one whose document is newer sends it, then and after each change.
    """

    def __init__(self, own: SharedAccess, peer: str) -> None:
        self._own = own
        self._peer = peer
        self._greeted = False
        self._theirs: AccessRank | None = None

    @property
    def agreed(self) -> bool:
        """True once the peer has said what it has, and nothing of it is lacking here."""
        return self._theirs is not None and self._own.rank >= self._theirs

    def due(self) -> AccessSaid | None:
        """Return what is to be said now; None for nothing."""
        rank = self._own.rank
        if not self._greeted:
            self._greeted = True
            return AccessSaid(rank)
        if self._theirs is None or self._theirs >= rank or self._own.document is None:
            return None
        self._theirs = rank
        return AccessSaid(rank, self._own.document.encoded())

    def hear(self, said: AccessSaid) -> None:
        """Take in what the peer says. Raises `InvalidArgument` when its document is none, or another one."""
        if said.document:
            document = decode(said.document)
            if (document.version, document.digest) != said.rank:
                raise InvalidArgument("the document of users and rules is not that which was announced")
            self._theirs = said.rank
            self._own.offer(document, self._peer)
        else:
            self._theirs = said.rank
