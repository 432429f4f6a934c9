"""An attendance follows its broker to another master, also if the former one hangs and ends no stream."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from minimq.features.requests.event_streams import EventStream, EventStreams
from minimq_common.errors import AccessDenied, MinimqError
from minimq_proto.v1 import events_pb2

ATTENDING = events_pb2.ClientEvent(opened=events_pb2.EventsOpened())


class Streams:
    """The streams of a client to a broker whose master is set here; only rejected streams end by themselves."""

    def __init__(self, *rejections: MinimqError) -> None:
        self.rejections = [*rejections]
        self.broker_name = "broker-a"
        self.master = "first"
        self.opened: list[str] = []
        self.cancelled = 0
        self.was_opened = asyncio.Event()

    async def find(self, _: float) -> str:
        return self.master

    def open(self, address: str, on_event: Any, ended: asyncio.Future[None]) -> Streams:
        self.opened.append(address)
        if self.rejections:
            ended.set_exception(self.rejections.pop())
            return self
        on_event(ATTENDING)
        self.was_opened.set()
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def changed(self) -> None:
        pass

    def failed(self, _: str, __: Exception) -> None:
        pass


def test_a_master_that_hangs_is_left_for_the_next_one() -> None:
    async def run() -> None:
        streams = Streams()
        attendance = EventStream(cast("EventStreams", streams), streams)
        task = asyncio.create_task(attendance.run())
        await streams.was_opened.wait()
        streams.was_opened.clear()
        attendance.moved("first")
        await asyncio.sleep(0)
        assert (attendance.is_open, attendance.address, streams.cancelled) == (True, "first", 0)
        streams.master = "second"
        attendance.moved("second")
        attendance.moved("second")
        await streams.was_opened.wait()
        assert (attendance.is_open, attendance.address, streams.cancelled) == (True, "second", 1)
        assert streams.opened == ["first", "second"]
        task.cancel()

    asyncio.run(run())


def test_who_is_rejected_is_attended_as_soon_as_that_changes() -> None:
    async def run() -> None:
        streams = Streams(AccessDenied("not you"), AccessDenied("not yet"))
        attendance = EventStream(cast("EventStreams", streams), streams)
        task = asyncio.create_task(attendance.run())
        await streams.was_opened.wait()
        assert (attendance.is_open, len(streams.opened)) == (True, 3)
        task.cancel()

    asyncio.run(run())
