"""The users and rules of a server: read from the folder of its secrets, and exchanged with other servers by streams."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from minimq_common.errors import InvalidArgument
from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_common.security.access_document import AccessDocument, changes, decode, from_toml
from minimq_common.security.server_secrets import ACCESS, CLUSTER_KEY
from minimq_common.security.watched import Watched
from minimq_common.serving.periodic import PeriodicTask, until_first_ends
from minimq_common.wire.bound_check import check_bounds
from minimq_common.wire.protocol_bounds import MAX_DOCUMENT_BYTES
from minimq_proto.v1.nameserver_pb2 import AccessNotice

log = logging.getLogger(__name__)
audit = logging.getLogger("minimq.audit")

#: Seconds between two checks of the file.
_LOOK_S = 0.4


class AccessRank(NamedTuple):
    """Orders documents: the one with the largest rank is in force."""

    version: int = 0
    digest: str = ""


class AccessAge:
    """The time since a server last compared its users and rules with others, and its limit.

    Changed on one event loop; any thread may read it.
    """

    def __init__(self, max_s: float, now_s: Callable[[], float]) -> None:
        self._max_s = max_s
        self._now_s = now_s
        self._in_touch: set[object] = set()
        self._lost_at = -math.inf  # after a start, the age of the document on disk is unknown

    @property
    def seconds(self) -> float:
        """The age: 0 while in touch with another server, infinite from a start to the first contact."""
        return 0.0 if self._in_touch else self._now_s() - self._lost_at

    @property
    def rejection(self) -> str:
        """The reason why users must not be served; empty if they may."""
        seconds = self.seconds
        if seconds <= self._max_s:
            return ""
        since = "since its start" if math.isinf(seconds) else f"for {seconds:.0f} s"
        return (
            f"users and rules may have changed without this server: it has not been in touch with others {since}, "
            f"and --access-max-age is {self._max_s:g} s; see that brokers and name servers reach each other"
        )

    def agreed(self, talk: object) -> None:
        """Record that another server has nothing newer, and will report changes over this connection."""
        self._in_touch.add(talk)

    def lost(self, talk: object) -> None:
        if talk in self._in_touch:
            self._in_touch.remove(talk)
            self._lost_at = self._now_s()


class SharedAccess:
    """The newest document that a server knows. Used on one event loop."""

    def __init__(self, *, only_reports: bool = False, max_age_s: float = math.inf) -> None:
        self.only_reports = only_reports
        self.document: AccessDocument | None = None
        #: The document encoded for other servers; empty if there is none.
        self.encoded = b""
        self.rank = AccessRank()
        #: The rank of the latest document that was set at this server, and by whom; the log names that as its source.
        self.set_here = AccessRank(), ""
        self.conflicts = 0
        self.age = AccessAge(max_age_s, time.monotonic)
        #: Set once another server has sent its document after the start, or has had the time to do so. A server that
        #: was down while a user was removed has an older document, and must not accept that user.
        self.settled = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._seen_conflict: tuple[AccessRank, AccessRank] | None = None

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` synchronously on the loop after each change; it must not block."""
        self._listeners.append(changed)

    def ignore(self, changed: Callable[[], None]) -> None:
        """Undo `listen`. Idempotent."""
        if changed in self._listeners:
            self._listeners.remove(changed)

    def offer(self, document: AccessDocument, source: str) -> bool:
        """Replace the document if another one is newer; return whether it was."""
        rank = AccessRank(document.version, document.digest)
        if rank == self.rank:
            return False
        if rank.version == self.rank.version:
            self._note_conflict(rank, source)
        if rank < self.rank:
            return False
        if rank == self.set_here[0]:
            source = self.set_here[1]
        former, self.document, self.rank = self.document, document, rank
        self.encoded = document.encoded()
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


async def exchange(
    own: SharedAccess,
    peer: str,
    heard: AsyncIterable[AccessNotice],
    write: Callable[[AccessNotice], Awaitable[object]],
    agreed: Callable[[], None] = lambda: None,
) -> None:
    """Exchange documents with another server until that ends the stream. Both ends run this function.

    Each end sends its document at the start and after each change, unless the other end has sent the same. The newer
    document wins.
    """
    changed, talk = asyncio.Event(), object()
    theirs: bytes | None = None

    async def say() -> None:
        said: bytes | None = None
        while True:
            changed.clear()
            mine = own.encoded
            if mine != said and (said is None or mine != theirs):
                await write(AccessNotice(document=mine))
            said = mine
            await changed.wait()

    async def hear() -> None:
        nonlocal theirs
        async for notice in heard:
            check_bounds(notice)
            # After a restart, many servers send the same document, which may be large: decode and store it only once.
            theirs = own.encoded if notice.document == own.encoded else notice.document
            if theirs and theirs is not own.encoded:
                own.offer(decode(theirs), peer)
            own.age.agreed(talk)
            agreed()

    own.listen(changed.set)
    try:  # the reader first: its error tells why the stream broke
        await until_first_ends({f"access-hear-{peer}": hear(), f"access-say-{peer}": say()})
    finally:
        own.ignore(changed.set)
        own.age.lost(talk)


class AccessFolder(PeriodicTask):
    """The document of a server, updated from its file `access.toml` and from other servers. Lives on one event loop."""

    def __init__(self, path: Path, *, only_reports: bool = False, max_age_s: float = math.inf) -> None:
        super().__init__("access file", self._follow, _LOOK_S, log)
        self._path = path
        self.shared = SharedAccess(only_reports=only_reports, max_age_s=max_age_s)
        self._file: Watched[AccessDocument] | None = None
        self._seen: AccessDocument | None = None
        self._follow()

    def _follow(self) -> None:
        if self._file is None:
            if not self._path.exists():
                return
            self._file = Watched([self._path], self._read, fresh_s=_LOOK_S / 2, most_bytes=MAX_DOCUMENT_BYTES)
        found = self._file.get()
        if found is self._seen:
            return
        self._seen = found
        self.shared.offer(replace(found, version=self.shared.rank.version + 1), ACCESS)

    def _read(self, found: Sequence[bytes]) -> AccessDocument:
        try:
            return from_toml(found[0])
        except InvalidArgument as error:
            raise InvalidArgument(f"{self._path}: {error.message}") from None


def access_of(directory: Path | None, *, only_reports: bool = False, max_age_s: float = 0.0) -> AccessFolder | None:
    """Return the users and rules in a folder of secrets; None if no keys are required."""
    if directory is None:
        return None
    if (directory / CLUSTER_KEY).exists():
        return AccessFolder(directory / ACCESS, only_reports=only_reports, max_age_s=max_age_s or math.inf)
    if (directory / ACCESS).exists():
        raise InvalidArgument(
            f"{directory} has {ACCESS} and no {CLUSTER_KEY}, with which servers authenticate each other: copy it from "
            f"another server, or remove {ACCESS} to require no keys"
        )
    log.warning("access: no keys are required, since there is no file cluster.key directory=%s", directory)
    return None
