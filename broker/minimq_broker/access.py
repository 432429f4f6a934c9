"""The users and rules of the cluster at this broker: in memory, and in the log of a master."""

from __future__ import annotations

import asyncio
import logging

from minimq_broker.calls.engine import Engine
from minimq_broker.state.facts import AccessSet, Fact
from minimq_broker.state.state import State
from minimq_common.errors import AccessConflict, InvalidArgument
from minimq_common.security.access_document import AccessDocument, decode
from minimq_common.security.caller import current_caller
from minimq_common.security.shared_access import AccessRank, SharedAccess
from minimq_common.serving.periodic import PeriodicTask
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Interval at which the documents in the log and in memory are compared.
_CHECK_INTERVAL_S = 1.0


class AccessService:
    """Reads, replaces and stores the document of users and rules. Belongs to the event loop.

    Keeps log and memory in sync: a master records a document that is newer than the one in its log, and every broker
    loads a newer one from its log. So a cluster still has the newest document after all servers restart.
    """

    def __init__(self, engine: Engine, shared: SharedAccess | None) -> None:
        self._engine = engine
        self._shared = shared
        self._setting = asyncio.Lock()  # held while a document is replaced
        self._task = PeriodicTask("access", self._keep, _CHECK_INTERVAL_S, log, at_once=True)
        self._known: AccessSet | None = None  # the latest one read from the log
        self._recorded = AccessRank()  # its rank

    @property
    def rank(self) -> AccessRank:
        """The rank of the document in memory; the lowest rank without access control."""
        return AccessRank() if self._shared is None else self._shared.rank

    @property
    def only_reports(self) -> bool:
        """True in report mode: rules are evaluated, not enforced; see `SharedAccess`."""
        return self._shared is not None and self._shared.only_reports

    def start(self) -> None:
        """Load the document from the log, and keep both in sync from now on."""
        if self._shared is not None:
            self._read_log(self._shared)
            self._shared.listen(self._task.wake)
            self._task.start()

    async def stop(self) -> None:
        """Stop keeping them in sync."""
        await self._task.stop()

    async def get(self, _: broker_pb2.GetAccessRequest) -> broker_pb2.GetAccessResponse:
        """Return the document. Raises `InvalidArgument` without access control."""
        document = self._needed().document
        return broker_pb2.GetAccessResponse(document=b"" if document is None else document.encoded())

    async def set(self, request: broker_pb2.SetAccessRequest) -> broker_pb2.SetAccessResponse:
        """Replace the document if it has the expected version. The new one is on disk when this returns."""
        shared, later = self._needed(), decode(request.document)
        async with self._setting:
            if shared.rank.version != request.expected_version:
                raise AccessConflict(
                    f"users and rules have version {shared.rank.version}, not {request.expected_version}: somebody "
                    "else has changed them meanwhile, try again"
                )
            if later.version <= request.expected_version:
                raise InvalidArgument(f"the document has version {later.version}: it must be above the former one")
            # Set before: it may come back from the log, or from another server, before this broker has recorded it.
            source = f"user {current_caller().user}"
            shared.set_here = AccessRank(later.version, later.digest), source
            await self._record(later)
            shared.offer(later, source)
        return broker_pb2.SetAccessResponse()

    def _needed(self) -> SharedAccess:
        if self._shared is None:
            raise InvalidArgument(
                "this cluster has no users and rules: start its servers with --secrets DIR, a folder of "
                "`minimq secure init`"
            )
        return self._shared

    async def _keep(self) -> None:
        shared = self._needed()
        self._read_log(shared)
        if shared.document is not None and self._recorded < shared.rank:
            await self._record(shared.document)  # fails at a slave; its master gets the document from name servers too

    def _read_log(self, shared: SharedAccess) -> None:
        found = self._engine.state.access
        if found is self._known:
            return
        self._known, self._recorded = found, AccessRank()
        if found is not None:
            document = decode(found.document)
            self._recorded = AccessRank(document.version, document.digest)
            shared.offer(document, "log")

    async def _record(self, document: AccessDocument) -> None:
        fact = AccessSet(document.version, document.encoded())
        rank = AccessRank(document.version, document.digest)

        def decide(state: State) -> Fact | None:
            former = state.access
            if former is not None and AccessRank(former.version, decode(former.document).digest) >= rank:
                return None
            return fact

        await self._engine.writes.record(decide)
