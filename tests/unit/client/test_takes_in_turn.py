"""Takes from several brokers at once, by takes that end as a test says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minimq.errors import GroupConflict
from minimq.receiving.pop_places import PopPlace
from minimq.receiving.popped import PoppedMessage
from minimq.receiving.takes_in_turn import TakeRequest, TakeResult, TakesInTurn
from support.on_loop import on_loop

PLACES = [PopPlace("t", name, f"{name}:1") for name in "abcd"]


@on_loop
async def test_messages_go_to_others_when_another_broker_refuses_at_the_same_moment() -> None:
    returned: list[PoppedMessage] = []

    async def take(place: PopPlace, wanted: TakeRequest, wait_s: float) -> TakeResult:  # noqa: ARG001
        if place.broker_name == "d":
            raise GroupConflict("members divide the queues there")
        return TakeResult([cast(PoppedMessage, place)], 1)

    client: Any = SimpleNamespace(connection=SimpleNamespace(routes=None))
    takes = TakesInTurn(client, take, returned.extend, asyncio.create_task)
    for _ in range(20):  # which of them is looked at first is left to chance
        returned.clear()
        with pytest.raises(GroupConflict):
            await takes._first_of_all(PLACES, TakeRequest(1, 1_000), asyncio.get_running_loop().time() + 10)
        assert sorted(map(str, returned)) == sorted(map(str, PLACES[:3]))
