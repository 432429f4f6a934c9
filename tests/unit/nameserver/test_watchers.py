from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_nameserver import watchers as module
from minimq_nameserver.watchers import Watcher, Watchers
from minimq_proto.v1.nameserver_pb2 import WatchRoutesRequest


class World:
    """Watchers, on an event loop of their own."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.watchers = Watchers()

    def watch(self, *topics: str) -> Watcher:
        watcher = Watcher()
        self.watchers.add(watcher)
        self.follow(watcher, *topics)
        return watcher

    def follow(self, watcher: Watcher, *topics: str) -> None:
        self._runner.run(self.watchers.follow(watcher, WatchRoutesRequest(topics=topics)))

    def publish(self, *topics: str) -> None:
        self.watchers.publish(topics)

    def news(self, watcher: Watcher) -> list[str]:
        """Take everything that would be sent now."""

        async def take() -> list[str]:
            return [await watcher.take() for _ in range(len(watcher._news))]

        return self._runner.run(take())


@pytest.fixture
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        yield World(runner)


def many(count: int) -> list[str]:
    return [f"topic-{number}" for number in range(count)]


# ---- Many of them ---------------------------------------------------------------------------------


def test_whoever_reads_slowly_is_told_of_everything_in_turn(world: World) -> None:
    topics = many(3_000)
    watcher = world.watch(*topics)
    told: set[str] = set()
    for _ in range(len(topics) // 200):  # everything changes all the time
        world.publish(*topics)
        assert len(watcher._news) == len(topics)
        told.update(world._runner.run(watcher.take()) for _ in range(200))
    assert told == set(topics)


def test_others_go_on_while_much_is_watched(world: World) -> None:
    """Ten clients watch 10,000 topics, and leave; meanwhile other work gets its turn many times."""

    async def count_turns() -> int:
        topics = many(10_000)
        watchers = [Watcher() for _ in range(10)]
        for watcher in watchers:
            world.watchers.add(watcher)
        request = WatchRoutesRequest(topics=topics)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        await asyncio.gather(*(world.watchers.follow(watcher, request) for watcher in watchers))
        for watcher in watchers:
            world.watchers.remove(watcher)
        counting.cancel()
        return turns

    assert world._runner.run(count_turns()) >= 20


def test_one_client_watches_no_more_than_one_may(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WATCHED", 10)
    watcher = world.watch(*many(10))
    with pytest.raises(InvalidArgument, match="more than 10 topics"):
        world.follow(watcher, *many(11))
    assert world.watchers.watched == 10


def test_all_together_watch_no_more_than_all_may(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WATCHED_BY_ALL", 25)
    monkeypatch.setattr(module, "MAX_WATCHERS", 3)
    first, second = world.watch(*many(10)), world.watch(*many(10))
    third = Watcher()
    world.watchers.add(third)
    with pytest.raises(SystemBusy, match="the limit is 25"):
        world.follow(third, *many(6))
    with pytest.raises(SystemBusy, match="3 clients"):
        world.watchers.add(Watcher())
    world.follow(first, *many(15))  # whoever has a place keeps it, and what is left is for all
    world.watchers.remove(second)
    world.follow(third, *many(10))
    assert world.watchers.watched == 25
