"""A replica that does nothing but report to its controller."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from minimq_broker.replication.controller import Controller
from minimq_common.errors import MinimqError
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from support.loop_thread import LoopThread

#: As short as a loaded machine allows.
LEASE_S = 1.5
#: For what comes out otherwise when a replica is held up for the time of a lease.
PATIENT_LEASE_S = 8.0


class Reporter:
    """Reports as a broker does, from its start until it falls silent. Its methods may be called from any thread."""

    def __init__(self, loop: LoopThread, controller: Controller, report: ReplicaReport) -> None:
        self.controller = controller
        self.report = report
        self.record: ReplicaSet | None = None
        self.lease_until = 0.0
        #: Number of reports that were answered.
        self.reports = 0
        #: The latest answer, old or new, to what it came, and when.
        self.answer: ReplicaSet | None = None
        self.answered: ReplicaReport | None = None
        self.answered_at = 0.0
        self.errors: list[MinimqError] = []
        #: Each term that it led, with the time at which it learned of that.
        self.led: dict[int, float] = {}
        self._loop = loop
        self._task: asyncio.Task[None] | None = None

    @property
    def is_master(self) -> bool:
        return time.monotonic() < self.lease_until

    def start(self) -> None:
        self._task = self._loop.call(lambda: asyncio.create_task(self._go_on(), name="reporter"))

    def fall_silent(self) -> None:
        """As if its machine were gone."""
        task, self._task = self._task, None
        if task is not None:
            self._loop.run(_end(task))

    def resign(self) -> ReplicaSet | None:
        self.fall_silent()
        self.lease_until = 0.0
        return self._loop.run(self.controller.report(replace(self.report, resigns=True)))

    def restart(self) -> None:
        self.fall_silent()
        self.lease_until, self.record = 0.0, None
        self.report = replace(self.report, run=self.report.run + 1000)
        self.start()

    def join(self, *in_sync: int) -> ReplicaSet:
        """As the master: change the in-sync set."""
        assert self.record is not None
        self._learn(self._loop.run(self.controller.change_in_sync(self.record, in_sync)))
        return self.record

    def promote(self, replica_id: int | None = None, *, unclean: bool = False) -> ReplicaSet:
        chosen = self.report.replica_id if replica_id is None else replica_id
        cluster, name = self.report.key
        return self._loop.run(self.controller.promote(cluster, name, chosen, unclean=unclean))

    def close(self) -> None:
        self.fall_silent()
        self._loop.run(self.controller.close())

    async def _go_on(self) -> None:
        while True:
            said, sent_at = replace(self.report, known=self.record), time.monotonic()
            try:
                answer = await self.controller.report(said, wait_s=0.2)
            except MinimqError as error:
                self.errors.append(error)
                await asyncio.sleep(0.05)
                continue
            self.reports += 1
            record = answer
            if record is None:
                continue
            self._learn(record)
            self.answer, self.answered, self.answered_at = record, said, time.monotonic()
            if record.is_master(self.report.replica_id, self.report.run):
                self.led.setdefault(record.term, time.monotonic())
                self.lease_until = max(self.lease_until, sent_at + record.lease_s)
                self.report = replace(self.report, last_term=record.term)
            elif self.report.replica_id in record.in_sync:
                self.report = replace(self.report, last_term=record.term)

    def _learn(self, record: ReplicaSet) -> None:
        if self.record is None or record.number > self.record.number:
            self.record = record


#: Takes what `--controller` takes, a replica id, the time of a lease, and fields of its report.
StartReporter = Callable[..., Reporter]


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
