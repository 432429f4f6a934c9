"""`Admin` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Unpack

from minimq.admin.admin import Admin as SyncAdmin
from minimq.admin.admin import AdminMethods
from minimq.admin.operation import AsyncMethods
from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import ClosedByAsyncWith
from minimq.options import NoOptions
from minimq_common.security.credentials import CredentialsArgument


class Admin(ClosedByAsyncWith, AsyncMethods, AdminMethods):
    """Manages a cluster from an event loop; arguments and errors are those of `minimq.Admin`.

    Each call runs on a thread of the loop's executor, so nothing blocks the loop. A cancelled call still completes on
    its thread. Where `minimq.Admin` returns an iterator, this returns a list.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        timeout_s: float = 5.0,
        credentials: CredentialsArgument | None = None,
        **unknown: Unpack[NoOptions],
    ) -> None:
        self._admin = SyncAdmin(nameserver, timeout_s=timeout_s, credentials=credentials, **unknown)

    async def close(self) -> None:
        """Close all connections; later calls raise `Closed`. Idempotent."""
        await asyncio.to_thread(self._admin.close)
