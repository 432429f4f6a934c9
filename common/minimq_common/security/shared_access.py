"""The users and rules of a server: from the folder of its secrets, and shared with all servers by streams."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_document import AccessDocument, changes, decode, from_toml
from minimq_common.security.server_secrets import ACCESS, CLUSTER_KEY
from minimq_common.security.watched import Watched
from minimq_common.serving.logs import ALWAYS_WRITTEN
from minimq_common.serving.periodic import PeriodicTask
from minimq_common.wire.bound_check import check_bounds
from minimq_common.wire.protocol_bounds import MAX_DOCUMENT_BYTES
from minimq_proto.v1.nameserver_pb2 import AccessNotice

log = logging.getLogger(__name__)
audit = logging.getLogger("minimq.audit")

#: Seconds between two looks at the file.
_LOOK_S = 0.4


class AccessRank(NamedTuple):
    """The place of a document among others: the largest counts."""

    version: int = 0
    digest: str = ""


class AccessAge:
    """The age of the users and rules of a server, which is bounded.

    Changed on one event loop; any thread may read it.
    """

    def __init__(self, max_s: float, now_s: Callable[[], float]) -> None:
        self._max_s = max_s
        self._now_s = now_s
        self._in_touch: set[object] = set()
        self._lost_at = -math.inf  # after a start nobody knows the age of what is on disk

    @property
    def seconds(self) -> float:
        """The age: 0 while in touch with another server, infinite from a start until then."""
        return 0.0 if self._in_touch else self._now_s() - self._lost_at

    @property
    def refusal(self) -> str:
        """The reason why users may not be served; empty if they may."""
        seconds = self.seconds
        if seconds <= self._max_s:
            return ""
        since = "since its start" if math.isinf(seconds) else f"for {seconds:.0f} s"
        return (
            f"users and rules may have changed without this server: it has not been in touch with others {since}, "
            f"and --access-max-age is {self._max_s:g} s; see that brokers and name servers reach each other"
        )

    def agreed(self, talk: object) -> None:
        """Note that another server has nothing newer, and that it would say so if it had."""
        self._in_touch.add(talk)

    def lost(self, talk: object) -> None:
        """Note that the connection has ended."""
        if talk in self._in_touch:
            self._in_touch.remove(talk)
            self._lost_at = self._now_s()


class SharedAccess:
    """The newest document that a server has heard of. Used on one event loop."""

    def __init__(self, *, only_reports: bool = False, max_age_s: float = math.inf) -> None:
        self.only_reports = only_reports
        self.document: AccessDocument | None = None
        #: The document as it travels; empty for none.
        self.encoded = b""
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
    """Be one end of the talk between two servers, the same at both, until the other side ends the stream.

    Each says what it has, at first and after each change, unless the other one has said the same. The newer one counts.
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
            # It may be large, and all who come back at once say the same: read it once, and keep it once.
            theirs = own.encoded if notice.document == own.encoded else notice.document
            if theirs and theirs is not own.encoded:
                own.offer(decode(theirs), peer)
            own.age.agreed(talk)
            agreed()

    own.listen(changed.set)
    saying = asyncio.create_task(say(), name=f"access-say-{peer}")
    hearing = asyncio.create_task(hear(), name=f"access-hear-{peer}")
    try:
        done, _ = await asyncio.wait((hearing, saying), return_when=asyncio.FIRST_COMPLETED)
        for task in (hearing, saying):  # the one that hears knows why a stream broke
            if task in done:
                task.result()
    finally:
        own.ignore(changed.set)
        own.age.lost(talk)
        for task in (saying, hearing):
            task.cancel()
        await asyncio.gather(saying, hearing, return_exceptions=True)


class AccessFolder(PeriodicTask):
    """The document of a server, of which its file `access.toml` is one source. Lives on one event loop."""

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
        in_force = self.shared.rank.version
        if found.version <= in_force and found.digest != self.shared.rank.digest:
            log.warning(
                "access: the file is not in force: its version must be larger, or use `minimq user` and "
                "`minimq access apply` with the credentials of an administrator file=%s version=%d in_force=%d",
                self._path,
                found.version,
                in_force,
            )
        if found.version > in_force:
            self.shared.offer(found, ACCESS)

    def _read(self, found: Sequence[bytes]) -> AccessDocument:
        try:
            return from_toml(found[0])
        except InvalidArgument as error:
            raise InvalidArgument(f"{self._path}: {error.message}") from None


def access_of(directory: Path | None, *, only_reports: bool = False, max_age_s: float = 0.0) -> AccessFolder | None:
    """Return the users and rules in a folder of secrets; None when nobody needs a key."""
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
