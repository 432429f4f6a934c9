"""The event loop waits a moment for the commit of a small job, and never for a disk that hangs."""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from minimq_broker.calls import finished_jobs
from minimq_broker.calls.limits import Limits
from minimq_broker.calls.writes import Writes
from minimq_broker.commit.jobs import FactJob, Job, Notify
from support.kernel_stores import TIMEOUT_S


def nothing(*_: object, **__: object) -> None:
    """Record nothing."""


class Disk:
    """Answers jobs on a thread of its own, each after a time that `take` blocks."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.works = threading.Event()
        self.works.set()
        self.delay_s = 0.0

    @property
    def writer(self) -> Disk:
        return self

    def submit(self, job: Job) -> None:
        self.jobs.put(job)

    def open(self, notify: Notify) -> Any:
        self.notify = notify
        return self

    def serve(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.works.wait(TIMEOUT_S)
            time.sleep(random.random() * self.delay_s)
            self.notify([job], frozenset())


def note(answered: list[tuple[int, int]], number: tuple[int, int], _: Job) -> None:
    answered.append(number)


@contextmanager
def disk_with_writes() -> Iterator[tuple[Disk, Writes]]:
    disk = Disk()
    made = Writes(disk.open, cast("Any", None), Limits(1 << 20, 1 << 20, 100), nothing, None)
    thread = threading.Thread(target=disk.serve)
    thread.start()
    try:
        yield disk, made
    finally:
        disk.works.set()
        disk.jobs.put(None)
        thread.join()


def test_each_job_is_answered_once_and_in_order_whatever_the_disk_takes() -> None:
    async def run() -> None:
        with disk_with_writes() as (disk, made):
            for disk.delay_s in (0.0, finished_jobs._MAX_WAIT_S, 2 * finished_jobs._MAX_WAIT_S):
                answered: list[tuple[int, int]] = []
                for number in range(60):
                    for each in range(number % 4):
                        made.submit(FactJob(nothing, done=partial(note, answered, (number, each))))
                    await made.written(FactJob(nothing))
                assert answered == [(number, each) for number in range(60) for each in range(number % 4)]

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_a_disk_that_hangs_does_not_stop_the_loop() -> None:
    async def run() -> None:
        with disk_with_writes() as (disk, made):
            await made.written(FactJob(nothing))
            disk.works.clear()
            hanging = asyncio.create_task(made.written(FactJob(nothing)))
            for _ in range(100):  # iterations of the loop, all while the disk hangs
                made.submit(FactJob(nothing))
                await asyncio.sleep(0)
            assert not hanging.done()
            disk.works.set()
            await hanging

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
