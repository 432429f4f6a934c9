"""Planning with an `Admin` that answers from a script, and connections."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Self

import pytest

from minimq import MessageQueue, Permission
from minimq.administration.descriptions import QueueDescription, TopicDescription, TopicSettings
from pyspark_minimq import batch
from pyspark_minimq.batch import MinimqBatchReader
from pyspark_minimq.connections import range_reader
from pyspark_minimq.errors import MinimqSourceError
from pyspark_minimq.options import parse_read_options
from pyspark_minimq.planning import OffsetRange, QueueName
from pyspark_minimq.schema import MESSAGE_SCHEMA

NOW = datetime.now(UTC)


class ScriptedAdmin:
    """One broker with three queues, of which consumers see two; meanwhile messages arrive."""

    permission = Permission.READ_WRITE

    def __init__(self, nameserver: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe_topic(self, name: str) -> TopicDescription:
        return TopicDescription(
            topic=name,
            settings=(TopicSettings("a", read_queues=2, write_queues=3, permission=self.permission, created_at=NOW),),
            queues=tuple(QueueDescription(MessageQueue(name, "a", queue), 5, 10, NOW) for queue in range(3)),
        )

    def offset_at(self, queue: MessageQueue, when: datetime) -> int:
        return 7 if when.year < 2000 else 15


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "Admin", ScriptedAdmin)


def planned(**options: str) -> list[OffsetRange]:
    reader = MinimqBatchReader(parse_read_options({"topic": "t", **options}), MESSAGE_SCHEMA)
    return [partition.part for partition in reader.partitions()]


def test_queues_that_consumers_do_not_see_are_left_out() -> None:
    assert planned() == [OffsetRange(QueueName("t", "a", queue), 5, 10) for queue in range(2)]


def test_messages_that_arrive_during_planning_are_not_part_of_the_query() -> None:
    assert {(part.start, part.end) for part in planned(endingTimestamp="2100-01-01T00:00Z")} == {(5, 10)}
    assert {(part.start, part.end) for part in planned(startingTimestamp="1999-01-01T00:00Z")} == {(7, 10)}
    assert planned(startingTimestamp="2100-01-01T00:00Z") == []


def test_a_topic_that_may_not_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedAdmin, "permission", Permission.WRITE)
    with pytest.raises(MinimqSourceError, match="topic t is not readable on a"):
        planned()


def test_a_forked_process_has_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first = range_reader("127.0.0.1:9")
    assert range_reader("127.0.0.1:9") is first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert range_reader("127.0.0.1:9") is not first
