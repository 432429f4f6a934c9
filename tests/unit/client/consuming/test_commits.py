"""The offsets that a consumer records: always those of `commit`, and by itself none of an earlier reader."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from minimq.consuming.commits import Commits
from minimq.consuming.member_state import Grant
from minimq.consuming.queue_decisions import Commit, FetchOptions
from minimq.consuming.queue_reader import QueueReader
from minimq_common.errors import MinimqError
from minimq_common.model import MessageQueue

QUEUE = MessageQueue("t", "broker-a", 0)
OTHER = MessageQueue("t", "broker-a", 1)


class Store:
    """Keeps what it was given, by the calls."""

    def __init__(self) -> None:
        self.calls: list[dict[MessageQueue, int]] = []

    async def save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MinimqError]:
        if commits:
            self.calls.append({commit.queue: commit.offset for commit in commits})
        return {}


@pytest.fixture
def store() -> Store:
    return Store()


def new_commits(store: Store) -> tuple[Commits, dict[MessageQueue, QueueReader]]:
    options = FetchOptions(100, 1 << 20, offset_refresh_s=3600.0)
    readers = {queue: QueueReader(queue, Grant(0, 5, 0), options) for queue in (QUEUE, OTHER)}
    return Commits(readers, store), readers


def test_what_was_asked_for_is_always_recorded(store: Store) -> None:
    commits, _ = new_commits(store)
    for _ in range(2):
        asyncio.run(commits.record_all(commits.progress_of_all()))
        asyncio.run(commits.record(commits.progress({QUEUE: 5})))
    assert store.calls == [{QUEUE: 5, OTHER: 5}, {QUEUE: 5}] * 2


def test_how_far_an_earlier_reader_of_a_queue_was_is_not_recorded_by_itself(store: Store) -> None:
    commits, readers = new_commits(store)
    left_at = {QUEUE: readers[QUEUE].position}
    readers[QUEUE] = QueueReader(QUEUE, Grant(2, 0, 7), FetchOptions(100, 1 << 20))  # of a topic made anew
    asyncio.run(commits.record(commits.progress(left_at), automatic=True))
    assert store.calls == []
