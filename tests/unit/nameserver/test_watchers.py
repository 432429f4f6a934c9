from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from minimq_nameserver.watchers import Watcher, Watchers

WaitingNews = Callable[[Watcher], list[str]]


@pytest.fixture
def waiting_news() -> Iterator[WaitingNews]:
    """Takes everything that would be sent now."""

    async def take(watcher: Watcher) -> list[str]:
        taken: list[str] = []
        while True:
            task = asyncio.ensure_future(watcher.next_topic())
            await asyncio.sleep(0)
            if not task.done():
                task.cancel()
                return taken
            taken.append(task.result())

    with asyncio.Runner() as runner:  # all calls of a test on one loop
        yield lambda watcher: runner.run(take(watcher))


def test_topics_that_are_new_to_a_watcher_are_news_once(waiting_news: WaitingNews) -> None:
    watchers, watcher = Watchers(), Watcher()
    watchers.release()
    watchers.add(watcher)
    watchers.follow(watcher, ["a", "b"])
    assert sorted(waiting_news(watcher)) == ["a", "b"]
    watchers.follow(watcher, ["a", "b", "c"])
    assert waiting_news(watcher) == ["c"]


def test_many_changes_of_a_topic_wait_as_one(waiting_news: WaitingNews) -> None:
    watchers, watcher, other = Watchers(), Watcher(), Watcher()
    watchers.release()
    for each in (watcher, other):
        watchers.add(each)
    watchers.follow(watcher, ["a", "b"])
    watchers.follow(other, ["c"])
    for each in (watcher, other):
        waiting_news(each)
    for _ in range(1000):
        watchers.publish(["b", "a", "unwatched"])
    assert waiting_news(watcher) == ["b", "a"]
    assert waiting_news(other) == []


def test_a_topic_that_is_no_longer_watched_is_no_news(waiting_news: WaitingNews) -> None:
    watchers, watcher = Watchers(), Watcher()
    watchers.release()
    watchers.add(watcher)
    watchers.follow(watcher, ["a", "b"])
    watchers.follow(watcher, ["b"])
    watchers.publish(["a"])
    assert waiting_news(watcher) == ["b"]
    watchers.remove(watcher)
    watchers.publish(["b"])
    assert waiting_news(watcher) == []


def test_news_adds_up_until_it_is_released(waiting_news: WaitingNews) -> None:
    watchers, watcher = Watchers(), Watcher()
    watchers.add(watcher)
    watchers.follow(watcher, ["a", "b"])
    watchers.publish(["a"])
    assert waiting_news(watcher) == []
    watchers.release()
    assert sorted(waiting_news(watcher)) == ["a", "b"]
