"""Takes from several brokers at once, by takes that end as a test says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minimq.errors import GroupConflict
from minimq.features.work_queues import work_queue_fetcher
from minimq.features.work_queues.work_queue_fetcher import TakeRequest, TakeResult, TopicOnBroker, WorkQueueFetcher
from minimq.features.work_queues.work_queue_message import WorkQueueMessage
from support.on_loop import on_loop

PLACES = [TopicOnBroker("t", name, f"{name}:1") for name in "abcd"]


@on_loop
async def test_messages_go_to_others_when_another_broker_rejects_at_the_same_moment() -> None:
    returned: list[WorkQueueMessage] = []

    async def take(place: TopicOnBroker, wanted: TakeRequest, wait_s: float) -> TakeResult:
        if place.broker_name == "d":
            raise GroupConflict("members divide the queues there")
        return TakeResult([cast(WorkQueueMessage, place)], 1)

    client: Any = SimpleNamespace(connection=SimpleNamespace(routes=None))
    takes = WorkQueueFetcher(client, take, returned.extend, asyncio.create_task)
    for _ in range(20):  # which of them is looked at first is left to chance
        returned.clear()
        with pytest.raises(GroupConflict):
            await takes._first_of_all(PLACES, TakeRequest(1, 1_000), asyncio.get_running_loop().time() + 10)
        assert sorted(map(str, returned)) == sorted(map(str, PLACES[:3]))


@on_loop
async def test_a_broker_that_is_slow_each_time_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue_fetcher, "QUICK_S", 0.05)

    async def take(place: TopicOnBroker, wanted: TakeRequest, wait_s: float) -> TakeResult:
        if place.broker_name == "d":  # has all messages, and too much to do
            await asyncio.sleep(2.5 * work_queue_fetcher.QUICK_S)
            return TakeResult([cast(WorkQueueMessage, place)], 1)
        return TakeResult([])

    async def find(*_: object) -> tuple[list[TopicOnBroker], None]:
        return PLACES, None

    client: Any = SimpleNamespace(connection=SimpleNamespace(routes=None))
    takes = WorkQueueFetcher(client, take, lambda _: None, asyncio.create_task)
    monkeypatch.setattr(takes, "find", find)
    loop = asyncio.get_running_loop()
    found = list[WorkQueueMessage]()
    for _ in range(30):  # a machine that stands still makes any broker slow
        deadline = loop.time() + work_queue_fetcher.QUICK_S / 2
        result, *_ = await takes.first(["t"], TakeRequest(1, 1_000), deadline)
        found += result.messages
        if len(found) == 3:
            break
    assert len(found) == 3
    assert work_queue_fetcher._SLOW_S >= takes.max_wait_s(PLACES[3]) > 2.5 * work_queue_fetcher.QUICK_S
    takes.answered(PLACES[3], 0.0)
    assert takes.max_wait_s(PLACES[3]) == work_queue_fetcher.QUICK_S
