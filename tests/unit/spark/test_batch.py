"""Planning with a `QueueFinder` that answers from a script, and connections."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime

import pytest

from minimq import Credentials, MessageQueue
from minimq.consuming.queue_finder import QueueInfo, QueueLookup, TopicOnBroker
from minimq_common.model import TopicId, TopicRoute
from pyspark_minimq import connections, planning
from pyspark_minimq.columns import MESSAGE_SCHEMA
from pyspark_minimq.connections import ConnectionOptions, range_reader
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.options import parse_read_options
from pyspark_minimq.planning import OffsetRange, QueueName
from pyspark_minimq.readers import MinimqBatchReader

ID = planning.TopicId(1, 10)


class ScriptedFinder:
    """One broker with three queues, of which consumers see two; meanwhile messages arrive."""

    is_readable = True
    ends = (10, 10, 10)

    def __init__(self, nameserver: str | None, timeout_s: float, credentials: Credentials | None) -> None:
        pass

    def close(self) -> None:
        pass

    def known_routes(self, topics: Iterable[str]) -> list[TopicRoute]:
        return []

    def topics(self) -> list[str]:
        return ["%RETRY%tt", "t", "tt", "u"]

    def find(self, topics: Iterable[str], known: Iterable[TopicOnBroker] = ()) -> QueueLookup:
        queues = {
            MessageQueue(name, "a", queue): QueueInfo(
                5, self.ends[queue], TopicId(*ID), queue < 2, self.is_readable, from_slave=False
            )
            for name in topics
            for queue in range(3)
        }
        return QueueLookup(queues, frozenset(), {})

    def offsets_at(self, queues: Iterable[MessageQueue], when: datetime) -> dict[MessageQueue, int]:
        return dict.fromkeys(queues, 7 if when.year < 2000 else 15)


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "QueueFinder", ScriptedFinder)


def planned(**options: str) -> list[OffsetRange]:
    which = {} if {"subscribePattern", "assign"} & options.keys() else {"topic": "t"}
    reader = MinimqBatchReader(parse_read_options({**which, **options}), MESSAGE_SCHEMA)
    return [part for partition in reader.partitions() for part in partition.ranges]


def test_queues_that_consumers_do_not_see_are_left_out() -> None:
    assert planned() == [OffsetRange(QueueName("t", "a", queue), 5, 10, topic_id=ID) for queue in range(2)]


def test_a_pattern_takes_whole_names_and_not_those_of_groups(caplog: pytest.LogCaptureFixture) -> None:
    assert {part.queue.topic for part in planned(subscribePattern="t+")} == {"t", "tt"}
    assert {part.queue.topic for part in planned(subscribePattern="%.*")} == {"%RETRY%tt"}
    assert caplog.text == ""
    assert planned(subscribePattern="nothing") == []
    assert "subscribePattern 'nothing' matches no topic: there is nothing to read" in caplog.text


def test_chosen_queues_are_read_also_when_they_are_hidden() -> None:
    assert planned(assign='{"t": {"a": [2]}}') == [OffsetRange(QueueName("t", "a", 2), 5, 10, topic_id=ID)]
    with pytest.raises(MinimqSparkError, match="assign names queue t/a/3, which does not exist: there are queue t/a/0"):
        planned(assign='{"t": {"a": [1, 3]}}')


def test_without_fail_on_data_loss_queues_that_do_not_exist_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    times = '{"t": {"a": {"1": "1999-01-01T00:00Z", "9": 5}}}'
    options = {"assign": '{"t": {"a": [1, 3]}}', "failOnDataLoss": "false"}
    part = OffsetRange(QueueName("t", "a", 1), 7, 10, topic_id=ID)
    assert planned(**options, startingOffsetsByTimestamp=times) == [part]
    assert "assign names queue t/a/3, which does not exist" in caplog.text
    assert "startingOffsetsByTimestamp names queue t/a/9, which does not exist" in caplog.text
    with pytest.raises(MinimqSparkError, match="assign names queue t/a/3, which does not exist: there are queue t/a/0"):
        planned(assign='{"t": {"a": [3]}}', failOnDataLoss="false")


def test_one_large_queue_is_work_for_many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedFinder, "ends", (10_000_005, 5, 5))
    assert [len(part) for part in planned(tag="paid")] == [1_000_000] * 10


def test_messages_that_arrive_during_planning_are_not_part_of_the_query() -> None:
    assert {(part.start, part.end) for part in planned(endingTimestamp="2100-01-01T00:00Z")} == {(5, 10)}
    assert {(part.start, part.end) for part in planned(startingTimestamp="1999-01-01T00:00Z")} == {(7, 10)}
    assert planned(startingTimestamp="2100-01-01T00:00Z") == []


def test_each_queue_has_a_time_of_its_own() -> None:
    times = '{"t": {"a": {"0": "1999-01-01T00:00Z", "1": 4102444800000}}}'
    assert planned(startingOffsetsByTimestamp=times) == [OffsetRange(QueueName("t", "a", 0), 7, 10, topic_id=ID)]
    assert [(part.start, part.end) for part in planned(endingOffsetsByTimestamp=times)] == [(5, 7), (5, 10)]
    with pytest.raises(MinimqSparkError, match="startingOffsetsByTimestamp has no time for queue t/a/1: name every"):
        planned(startingOffsetsByTimestamp='{"t": {"a": {"0": 5}}}')
    with pytest.raises(MinimqSparkError, match="endingOffsetsByTimestamp names queue t/a/9, which does not exist"):
        planned(endingOffsetsByTimestamp='{"t": {"a": {"0": 5, "1": 6, "9": 7}}}')


def test_a_topic_that_may_not_be_read_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedFinder, "is_readable", False)
    with pytest.raises(MinimqSparkError, match="topic t is not readable on a"):
        planned()


def test_a_forked_process_has_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = ConnectionOptions("127.0.0.1:9")
    first = range_reader(connection, 60.0)
    assert range_reader(connection, 60.0) is first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert range_reader(connection, 60.0) is not first
