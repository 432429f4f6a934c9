"""The times of requests to brokers, and the use of the answers: with a script for brokers, and an own clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from minimq import MessageQueue, MinimqError, errors
from minimq.connection import master_calls
from minimq.consuming.queue_finder import QueueLookup
from minimq.consuming.stored_offsets import StoredOffsets, TopicOnBroker
from minimq_common.model import OfflineBroker, TopicId
from pyspark_minimq import micro_batch_planner
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.micro_batch_planner import MicroBatchPlanner
from pyspark_minimq.options import parse_stream_options
from pyspark_minimq.stream_planning import BatchLimits, StreamOffset

T0, T1 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)


@dataclass
class World:
    """The answers that brokers would give, and the requests that they had."""

    ends: dict[MessageQueue, int] = field(default_factory=lambda: {T0: 10})
    silent: dict[TopicOnBroker, MinimqError] = field(default_factory=dict)
    offline: dict[TopicOnBroker, OfflineBroker] = field(default_factory=dict)
    failure: MinimqError | None = None
    asked: list[float] = field(default_factory=list)
    committed: list[Mapping[MessageQueue, int]] = field(default_factory=list)
    commit_failures: dict[MessageQueue, MinimqError] = field(default_factory=dict)
    now: float = 1000.0
    first: int = 0

    # ---- As a finder ---------------------------------------------------------------------------------

    def find(self, topics: Iterable[str], known: Iterable[TopicOnBroker] = ()) -> QueueLookup:
        self.asked.append(self.now)
        if self.failure is not None:
            raise self.failure
        names = set(topics)
        queues = {
            queue: StoredOffsets(self.first, end, TopicId(1, 10), is_shown=True, is_readable=True, from_slave=False)
            for queue, end in self.ends.items()
            if queue.topic in names and ("t", queue.broker_name) not in self.silent
        }
        return QueueLookup(queues, frozenset(), self.silent, self.offline)

    def publish(self, group: str, offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, MinimqError]:
        if " " in group:
            raise errors.InvalidArgument(f"group {group!r} is no name")
        self.committed.append(dict(offsets))
        return self.commit_failures

    # ---- As a clock ----------------------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(micro_batch_planner, "queue_finder", lambda *_: made)
    for module in (micro_batch_planner, master_calls):
        monkeypatch.setattr(module, "time", made)
    return made


class Query:
    """Asks as Spark does."""

    def __init__(self, **options: str) -> None:
        parsed = parse_stream_options({"topic": "t", **options})
        self.planner, self._limits = MicroBatchPlanner(parsed), parsed.limits
        self.done = self.planner.initial()

    def advance(self, limits: BatchLimits | None = None) -> dict[int, tuple[int, int]] | None:
        """Return what the next micro-batch holds of each queue of topic t on broker a."""
        offset = self.planner.advance(self.done, limits or self._limits)
        if offset is None:
            return None
        self.done = StreamOffset.from_json(offset.to_json())
        return {part.queue.queue_id: (part.start, part.end) for part in offset.ranges()}


def test_an_idle_stream_asks_twice_a_second(world: World) -> None:
    query = Query()
    assert query.advance() == {}  # records where it begins
    began, before = world.now, len(world.asked)
    for _ in range(20):
        assert query.advance() is None
        world.now += 0.01  # as long as Spark waits
    assert len(world.asked) - before == 20
    assert 9.5 <= world.now - began <= 10.5


@pytest.mark.parametrize(("topics", "pause_s"), [(2, 1.0), (10, 5.0), (50, 5.0)])
def test_the_more_topics_a_broker_has_the_more_time_is_between_the_rounds(
    world: World, topics: int, pause_s: float
) -> None:
    world.ends = {MessageQueue(f"t-{number}", "a", queue): 10 for number in range(topics) for queue in range(2)}
    world.ends[MessageQueue("t-0", "b", 0)] = 10  # one that has fewer
    query = Query(topic=",".join(f"t-{number}" for number in range(topics)))
    query.advance()
    query.advance()
    began = world.now
    query.advance()
    assert world.now - began == pause_s


def test_it_waits_for_enough_messages(world: World) -> None:
    query = Query(minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    query.advance()
    world.ends[T0] = 19
    assert query.advance() is None
    assert query.planner.report == {"behind": 9, "end": {"t": {"a": {"0": 19}}}}
    world.ends[T0] = 20
    assert query.advance() == {0: (10, 20)}
    world.ends[T0] = 21
    assert query.advance() is None
    world.now += 60
    assert query.advance() == {0: (20, 21)}


def test_the_report_tells_what_is_left(world: World) -> None:
    query = Query(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    assert query.advance() == {0: (0, 4)}
    assert query.planner.report == {"behind": 6, "end": {"t": {"a": {"0": 10}}}}
    assert query.advance(BatchLimits()) == {0: (4, 10)}
    assert query.planner.report == {"behind": 0, "end": {"t": {"a": {"0": 10}}}}


def test_a_stream_that_is_frozen_first_begins_there(world: World) -> None:
    parsed = parse_stream_options({"topic": "t"})
    frozen = MicroBatchPlanner(parsed)
    frozen.freeze()
    world.ends[T0] = 50
    assert frozen.initial().end == {MessageQueue("t", "a", 0): 10}


def test_a_beginning_that_is_not_stored_is_rejected_unless_told_otherwise(world: World) -> None:
    offsets = '{"t": {"a": {"0": 50}}}'
    with pytest.raises(MinimqSparkError, match="startingOffsets has offset 50 for queue t/a/0, which has 0 to 10"):
        Query(startingOffsets=offsets)
    assert Query(startingOffsets=offsets, failOnDataLoss="false").done.end == {MessageQueue("t", "a", 0): 10}


def test_a_silent_broker_is_waited_for(world: World) -> None:
    query = Query(startingOffsets="earliest")
    assert query.advance() == {0: (0, 10)}
    world.silent = {TopicOnBroker("t", "a"): errors.Unavailable("not reached")}
    world.ends = {T0: 20, MessageQueue("t", "b", 0): 5}
    assert query.advance() == {0: (0, 5)}  # that of the other broker
    del world.ends[MessageQueue("t", "b", 0)]
    began = world.now
    while world.now - began < 59:
        assert query.advance() is None
    world.now += 2
    with pytest.raises(errors.Unavailable, match=r"topic t: no broker answers: a: does not answer \(not reached\)"):
        query.advance()


def test_a_silent_broker_is_offline_after_the_read_timeout(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.silent = {TopicOnBroker("t", "b"): errors.DeadlineExceeded("has not answered in time")}
    reason = r"topic t: b: does not answer \(has not answered in time\)"
    began = world.now
    with pytest.raises(errors.Unavailable, match=reason + r"; .* failOnDataLoss=false \(waited 20 s, as readTimeout"):
        Query(readTimeout="20s")
    assert world.now - began == pytest.approx(20)
    began = world.now
    query = Query(startingOffsets="earliest", failOnDataLoss="false", readTimeout="20s")
    assert world.now - began == pytest.approx(20)
    assert re.search(reason, caplog.text)
    assert query.advance() == {0: (0, 10)}


def test_what_is_available_now_does_not_need_a_silent_broker(world: World) -> None:
    query = Query(startingOffsets="earliest", readTimeout="10s")
    assert query.advance() == {0: (0, 10)}
    world.silent = {TopicOnBroker("t", "b"): errors.DeadlineExceeded("has not answered in time")}
    world.ends[T0] = 20
    began = world.now
    query.planner.freeze()
    assert world.now - began == pytest.approx(10)
    assert query.advance() == {0: (10, 20)}
    assert query.advance() is None
    world.silent[TopicOnBroker("t", "a")] = errors.DeadlineExceeded("has not answered in time")
    with pytest.raises(errors.Unavailable, match="does not answer"):
        query.planner.freeze()


def broker_offline(queues: int) -> OfflineBroker:
    return OfflineBroker("default", "b", {0: "b:1"}, datetime(2026, 1, 31, 8, tzinfo=UTC), stopped=False, queues=queues)


def test_a_stream_outlasts_servers_that_are_offline_for_as_long_as_it_is_told(world: World) -> None:
    query = Query(startingOffsets="earliest", readTimeout="30s")
    assert query.advance() == {0: (0, 10)}
    world.failure = errors.SystemBusy("the name server has just started")
    began = world.now
    while world.now - began < 29:
        assert query.advance() is None
    world.failure, world.ends[T0] = None, 20
    assert query.advance() == {0: (10, 20)}
    world.failure = errors.Unavailable("no name server answers")
    world.now += 10
    assert query.advance() is None
    world.now += 30
    with pytest.raises(errors.Unavailable, match=r"no name server answers \(waited 30 s, as readTimeout says\)"):
        query.advance()


def test_a_new_stream_waits_for_a_broker_that_is_offline_or_warns(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.offline = {TopicOnBroker("t", "b"): broker_offline(4)}
    began = world.now
    with pytest.raises(errors.Unavailable, match=r"topic t: b: offline since .* 4 queues not read; .* \(waited 20 s"):
        Query(readTimeout="20s")
    assert world.now - began == pytest.approx(20)
    assert not caplog.records
    query = Query(startingOffsets="earliest", failOnDataLoss="false")
    assert query.advance() == {0: (0, 10)}
    assert "topic t: b: offline since 2026-01-31" in caplog.text


def test_what_was_deleted_unread_ends_the_query_unless_told_otherwise(world: World) -> None:
    strict = Query(startingOffsets="earliest")
    lenient = Query(startingOffsets="earliest", failOnDataLoss="false")
    assert strict.advance() == lenient.advance() == {0: (0, 10)}
    world.first, world.ends[T0] = 15, 20
    with pytest.raises(MinimqSparkError, match="offsets 10 to 14 of queue t/a/0 were deleted unread: it has 15 to 20"):
        strict.advance()
    assert lenient.advance() == {0: (15, 20)}


def test_a_topic_that_is_not_there_when_the_query_starts_is_an_error(world: World) -> None:
    with pytest.raises(errors.TopicNotFound, match="topic u is on no broker: create it"):
        Query(topic="t,u")
    query = Query()
    query.planner = MicroBatchPlanner(parse_stream_options({"topic": "t,u"}))  # another one, for a checkpoint without u
    with pytest.raises(errors.TopicNotFound, match="topic u is on no broker: create it"):
        query.advance()


def test_a_commit_that_failed_is_made_again_and_harms_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(startingOffsets="earliest", consumerGroup="g")
    query.advance()
    world.commit_failures = {T0: errors.Unavailable("not reached")}
    query.advance()
    query.advance()
    world.commit_failures = {}
    query.advance()
    query.advance()
    assert world.committed == [{T0: 0}, {T0: 10}, {T0: 10}, {T0: 10}]
    assert caplog.text.count("progress of group g is not recorded: queue t/a/0: not reached") == 1
