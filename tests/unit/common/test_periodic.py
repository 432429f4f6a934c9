"""A periodic task: it continues whatever its function raises, runs at once when it is woken, and ends when told to."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator

import pytest

from minimq_common.errors import StoreFull, SystemBusy
from minimq_common.serving.periodic import PeriodicTask
from support.virtual_loop import VirtualLoop

TIMEOUT_S = 20.0
log = logging.getLogger(__name__)


def test_it_goes_on_after_every_kind_of_error(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = [SystemBusy("not now"), StoreFull("full"), OSError("no disk"), KeyError("a mistake")]
    runs = iter(errors)

    async def test() -> None:
        worked = asyncio.Event()

        async def run() -> None:
            for error in runs:
                raise error
            worked.set()

        task = PeriodicTask("work", run, 0.001, log)
        task.start()
        async with asyncio.timeout(TIMEOUT_S):
            await worked.wait()
            await task.stop()

    with caplog.at_level(logging.DEBUG), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())
    levels = [(record.levelname, bool(record.exc_info)) for record in caplog.records if record.name == __name__]
    assert levels == [("DEBUG", False), ("WARNING", False), ("WARNING", False), ("ERROR", True), ("ERROR", False)]
    assert caplog.messages[-1].startswith("work: works again failures=3 outage_s=")


def test_it_pauses_after_an_error_however_short_its_interval_is() -> None:
    failures = 0

    def run() -> None:
        nonlocal failures
        failures += 1
        raise StoreFull("full")

    async def test() -> None:
        task = PeriodicTask("work", run, 0.0, log)
        task.start()
        await asyncio.sleep(10)  # of virtual time
        await task.stop()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())
    assert 10 <= failures <= 21


def test_it_waits_for_its_time_unless_it_is_woken() -> None:
    async def test() -> None:
        runs: asyncio.Queue[None] = asyncio.Queue()
        task = PeriodicTask("work", lambda: runs.put_nowait(None), math.inf, log)
        task.start()
        await asyncio.sleep(0)
        assert runs.empty()
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(2):
                task.wake()
                await runs.get()
            await task.stop()
            await task.stop()
        assert runs.empty()

    asyncio.run(test())


def test_a_run_under_way_is_cancelled_by_stop() -> None:
    outcomes: list[str] = []

    async def test() -> None:
        began = asyncio.Event()

        async def run() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                outcomes.append("cancelled")
                raise

        task = PeriodicTask("work", run, math.inf, log, at_once=True)
        task.start()
        async with asyncio.timeout(TIMEOUT_S):
            await began.wait()
            stopping = asyncio.create_task(task.stop())
            await asyncio.sleep(0)
            assert task.is_woken
            await stopping

    asyncio.run(test())
    assert outcomes == ["cancelled"]


def test_it_goes_on_though_its_interval_fails_or_what_it_waits_for_is_cancelled() -> None:
    async def test() -> None:
        runs: asyncio.Queue[None] = asyncio.Queue()
        intervals: Iterator[float | KeyError] = iter([0.001, KeyError("a mistake"), 0.001, 0.001, 0.001])

        def interval_s() -> float:
            found = next(intervals, math.inf)
            if isinstance(found, KeyError):
                raise found
            return found

        async def run() -> None:
            runs.put_nowait(None)
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone

        async def work() -> None:
            runs.put_nowait(None)

        async with asyncio.timeout(TIMEOUT_S):
            for task in (PeriodicTask("work", run, 0.001, log), PeriodicTask("work", work, interval_s, log)):
                for _ in range(2):  # it may be started anew
                    task.start()
                    await runs.get()
                    await runs.get()
                    await task.stop()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())
