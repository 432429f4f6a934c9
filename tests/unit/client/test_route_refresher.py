from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from minimq.routes.route_refresher import RouteRefresher
from minimq_common.errors import Unavailable
from support.waiting import wait_until


class Asked:
    """Notes what is asked, and answers when it is let."""

    def __init__(self) -> None:
        self.at: list[tuple[str, float]] = []
        self.let = threading.Event()
        self.let.set()
        self.refresher = RouteRefresher(self.ask)

    @property
    def topics(self) -> list[str]:
        return [topic for topic, _ in self.at]

    def ask(self, topic: str) -> None:
        self.at.append((topic, time.monotonic()))
        assert self.let.wait(10)
        if topic == "gone":
            raise Unavailable("nobody answers")
        if topic == "broken":
            raise RuntimeError("a defect")


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.let.set()
    asked.refresher.close()
    asked.refresher.join()


def test_a_topic_that_is_wanted_often_waits_once_and_is_asked_for_seldom(asked: Asked) -> None:
    asked.let.clear()
    asked.refresher.want("orders")
    wait_until(lambda: asked.topics == ["orders"])
    for _ in range(1000):  # while its question is under way: the answer may be older than the wish
        asked.refresher.want("orders")
    asked.let.set()
    wait_until(lambda: len(asked.at) == 2)
    asked.refresher.want("orders")
    wait_until(lambda: len(asked.at) == 3)
    times = [moment for _, moment in asked.at]
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) > 0.09
    end = time.monotonic() + 0.2
    wait_until(lambda: time.monotonic() > end)
    assert len(asked.at) == 3


def test_each_topic_has_its_turn_and_a_failure_ends_nothing(asked: Asked) -> None:
    for topic in ("gone", "broken", "a", "b"):
        asked.refresher.want(topic)
    wait_until(lambda: asked.topics == ["gone", "broken", "a", "b"])


def test_nothing_is_asked_once_it_is_closed(asked: Asked) -> None:
    before = threading.active_count()
    asked.let.clear()
    asked.refresher.want("a")
    wait_until(lambda: asked.topics == ["a"])
    asked.refresher.want("b")
    asked.refresher.close()
    asked.refresher.want("c")
    asked.let.set()
    asked.refresher.join()
    assert asked.topics == ["a"]
    assert threading.active_count() == before


def test_no_thread_begins_without_a_question() -> None:
    before = threading.active_count()
    refresher = RouteRefresher(lambda topic: None)
    refresher.close()
    refresher.want("a")
    refresher.join()
    assert threading.active_count() == before


def test_a_topic_is_remembered_only_for_as_long_as_it_may_not_be_asked_for_again(asked: Asked) -> None:
    for number in range(50):
        asked.refresher.want(f"topic-{number}")
    wait_until(lambda: len(asked.at) == 50)
    latest = asked.at[-1][1]
    wait_until(lambda: time.monotonic() > latest + 0.11)
    asked.refresher.want("last")
    wait_until(lambda: asked.topics[-1] == "last")
    assert list(asked.refresher._asked) == ["last"]


def test_neglected_topics_are_asked_for_in_every_turn() -> None:
    asked: list[str] = []
    refresher = RouteRefresher(asked.append, lambda: ("a", "b"), poll_s=0.02)
    refresher.start()
    try:
        wait_until(lambda: asked[:4] == ["a", "b", "a", "b"])
    finally:
        refresher.close()
        refresher.join()
    before = threading.active_count()
    refresher.start()
    assert threading.active_count() == before
