from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_nameserver import watchers as module
from minimq_nameserver.watchers import MOST_NEWS, Watcher, Watchers
from minimq_proto.v1.nameserver_pb2 import WatchRoutesRequest


class World:
    """Watchers, and who of them has something to be told."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._ready: set[Watcher] = set()
        self.watchers = Watchers(self._ready.add)

    def watch(self, *topics: str) -> Watcher:
        watcher = Watcher()
        self.watchers.add(watcher)
        self.follow(watcher, *topics)
        return watcher

    def follow(self, watcher: Watcher, *topics: str) -> None:
        self._runner.run(self.watchers.follow(watcher, WatchRoutesRequest(topics=topics)))

    def publish(self, *topics: str) -> None:
        async def publish() -> None:
            self.watchers.publish(topics)
            await self.settled()

        self._runner.run(publish())

    def remove(self, watcher: Watcher) -> None:
        async def remove() -> None:
            self.watchers.remove(watcher)
            await self.settled()

        self._runner.run(remove())

    async def settled(self) -> None:
        await asyncio.gather(*self.watchers._tasks)

    def news(self, watcher: Watcher) -> list[str]:
        """Take everything that would be sent now."""
        taken: list[str] = []
        if watcher in self._ready:
            while (topic := watcher.take()) is not None:
                taken.append(topic)
            self._ready.discard(watcher)
        return taken


@pytest.fixture
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        yield World(runner)


@pytest.fixture
def released(world: World) -> World:
    world.watchers.release()
    return world


def many(count: int) -> list[str]:
    return [f"topic-{number}" for number in range(count)]


def test_topics_that_are_new_to_a_watcher_are_news_once(released: World) -> None:
    watcher = released.watch("a", "b")
    assert released.news(watcher) == ["a", "b"]
    released.follow(watcher, "a", "b", "c")
    assert released.news(watcher) == ["c"]


def test_many_changes_of_a_topic_wait_as_one(released: World) -> None:
    watcher, other = released.watch("a", "b"), released.watch("c")
    released.news(watcher)
    released.news(other)
    for _ in range(1000):
        released.publish("b", "a", "unwatched")
    assert released.news(watcher) == ["b", "a"]
    assert released.news(other) == []


def test_a_topic_that_is_no_longer_watched_is_no_news(released: World) -> None:
    watcher = released.watch("a", "b")
    released.follow(watcher, "b")
    released.publish("a")
    assert released.news(watcher) == ["b"]
    released.remove(watcher)
    released.publish("b")
    assert released.news(watcher) == []
    assert released.watchers.watched == 0


def test_news_adds_up_until_it_is_released(world: World) -> None:
    watcher = world.watch("a", "b")
    world.publish("a")
    assert world.news(watcher) == []
    world.watchers.release()
    assert sorted(world.news(watcher)) == ["a", "b"]


# ---- Many of them ---------------------------------------------------------------------------------


def test_whoever_reads_slowly_is_told_of_everything_and_takes_no_memory(released: World) -> None:
    topics = many(3 * MOST_NEWS)
    watcher = released.watch(*topics)
    told: set[str] = set()
    for _ in range(len(topics) // 50):
        released.publish(*topics)
        assert len(watcher._news) <= MOST_NEWS
        assert len(watcher._round) <= len(topics)
        for _ in range(200):
            topic = watcher.take()
            assert topic is not None
            told.add(topic)
    # Everything changes all the time, and still what is watched last gets its turn.
    assert told == set(topics)
    released.publish(*topics)
    assert set(released.news(watcher)) == set(topics)


def test_changes_of_many_topics_reach_those_who_watch_many(released: World) -> None:
    topics = many(2_500)
    watchers = [released.watch(*topics[:2_000], f"own-{number}") for number in range(20)]
    for watcher in watchers:
        released.news(watcher)
    released.publish(*topics, "own-7")
    for number, watcher in enumerate(watchers):
        assert set(released.news(watcher)) >= {*topics[:2_000], *(["own-7"] if number == 7 else [])}


def test_others_go_on_while_much_is_watched_and_changed(released: World) -> None:
    """Ten clients watch 10,000 topics, which change, and leave; meanwhile other work gets its turn many times."""

    async def count_turns() -> int:
        topics = many(10_000)
        watchers = [Watcher() for _ in range(10)]
        for watcher in watchers:
            released.watchers.add(watcher)
        request = WatchRoutesRequest(topics=topics)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        await asyncio.gather(*(released.watchers.follow(watcher, request) for watcher in watchers))
        released.watchers.publish(topics)
        for watcher in watchers:
            released.watchers.remove(watcher)
        await released.settled()
        counting.cancel()
        return turns

    assert released._runner.run(count_turns()) >= 20


def test_one_client_watches_no_more_than_one_may(released: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WATCHED_BY_ONE", 10)
    watcher = released.watch(*many(10))
    with pytest.raises(InvalidArgument, match="more than 10 topics"):
        released.follow(watcher, *many(11))
    assert released.watchers.watched == 10


def test_all_together_watch_no_more_than_all_may(released: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WATCHED_BY_ALL", 25)
    monkeypatch.setattr(module, "MAX_WATCHERS", 3)
    first, second = released.watch(*many(10)), released.watch(*many(10))
    third = Watcher()
    released.watchers.add(third)
    with pytest.raises(SystemBusy, match="the limit is 25"):
        released.follow(third, *many(6))
    with pytest.raises(SystemBusy, match="3 clients"):
        released.watchers.add(Watcher())
    released.follow(first, *many(15))  # whoever has a place keeps it, and what is left is for all
    released.remove(second)
    released.follow(third, *many(10))
    assert released.watchers.watched == 25


def test_a_name_that_is_none_is_refused(released: World) -> None:
    watcher = released.watch("a")
    with pytest.raises(InvalidArgument, match="illegal topic name"):
        released.follow(watcher, "a", "b/c")
