"""Writes what the controller decides, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from minimq_common.replicas.replica_set import ReplicaSet
from minimq_nameserver.controller.decisions import DecisionFile


class DecisionWriter:
    """Has decisions on disk, and the event loop go on meanwhile. Lives on that loop.

    All that waits is written in one transaction, with one sync.
    """

    def __init__(self, file: DecisionFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="controller-writer")
        self._waiting: list[tuple[ReplicaSet, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, record: ReplicaSet) -> None:
        """Return when a record is on disk in place of the former one."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="controller-write")
        await written

    async def close(self) -> None:
        """Return when nothing is being written any more; what waits is not written."""
        for _, written in self._waiting:
            written.cancel()
        self._waiting.clear()
        await asyncio.to_thread(self._thread.shutdown)

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                records = [record for record, _ in batch]
                outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._save, records)
                for (_, written), error in zip(batch, outcomes, strict=True):
                    if written.done():  # whoever waited has gone
                        continue
                    if error is None:
                        written.set_result(None)
                    else:
                        written.set_exception(error)
        finally:
            self._writing = None

    def _save(self, records: Sequence[ReplicaSet]) -> list[Exception | None]:
        try:
            self._file.save(*records)
        except Exception as error:  # noqa: BLE001 - whatever it is, the waiting caller gets it
            if len(records) == 1:
                return [error]
        else:
            return [None] * len(records)
        # Where all of them do not fit some may, and nobody's fault becomes that of others.
        return [error for record in records for error in self._save([record])]
