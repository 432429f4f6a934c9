"""A periodic task: it continues whatever its function raises, runs at once when it is woken, and ends when told to."""

from __future__ import annotations

import asyncio
import logging
import math

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
