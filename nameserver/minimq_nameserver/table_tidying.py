"""Clears in the background what brokers with many topics leave behind in the route table."""

from __future__ import annotations

import asyncio

from minimq_nameserver.loop_share import LoopShare
from minimq_nameserver.route_table import RouteTable

#: Topics that are gone, cleared between two looks at the clock.
_PART = 500


class TableTidying:
    """Tidies a route table up, a slice at a time. Lives on one event loop."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self._share = LoopShare()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Have the table tidied up, if there is anything to do; `finish` may be called besides."""
        if not self._table.is_tidy and self._task is None:
            self._task = asyncio.create_task(self._run(), name="nameserver-tidy")

    async def finish(self) -> None:
        """Return when the table is tidy."""
        async with self._share:
            while not self._table.is_tidy:
                self._table.tidy(_PART)
                await self._share.turn()

    async def _run(self) -> None:
        try:
            await self.finish()
        finally:
            self._task = None
