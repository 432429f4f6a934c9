"""Retention on real servers: the disk comes back, who misses messages is told, offsets are never used again."""

from __future__ import annotations

import json
import queue as queues
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import OffsetReset, PullConsumer
from minimq.connection.connection import Connection
from minimq.consuming.consumer_options import OffsetResetRule
from minimq.consuming.pulls import open_pulls
from minimq.consuming.range_reader import RangeReader
from minimq_common.errors import MinimqError, OffsetOutOfRange
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import broker_pb2
from support.raw_popper import RawPopper, popped
from support.scraping import Scrape, metrics_address
from support.small_segments import BODY, OTHER, QUEUE, SEGMENT, TIMEOUT_S, World, world_of
from support.waiting import wait_until


@pytest.fixture
def by_size(tmp_path: Path) -> Iterator[World]:
    """Keeps 300,000 bytes, which are four segments."""
    with world_of(tmp_path, retention_bytes=300_000) as world:
        yield world


@pytest.fixture
def by_age(tmp_path: Path) -> Iterator[World]:
    """Keeps messages for half a second."""
    with world_of(tmp_path, retention_s=0.5) as world:
        yield world


# ---- the disk -------------------------------------------------------------------------------------


def test_the_disk_comes_back_and_offsets_go_on(by_size: World) -> None:
    assert by_size.send(100) == list(range(100))
    by_size.wait_until_trimmed()
    first, end = by_size.bounds()
    assert 0 < first < end == 100
    report = by_size.report()
    assert report.segments_deleted > 5
    assert report.bytes_deleted >= report.segments_deleted * SEGMENT
    assert report.log_start > 0
    names = {path.name for path in by_size.files() if not path.name.endswith("-lock")}
    assert len(names) == report.segments
    assert {path.name.removesuffix("-lock") for path in by_size.files()} == names
    by_size.restart()
    assert by_size.bounds() == (first, end)
    assert by_size.send(1) == [100]


@pytest.mark.replaced_by("machine")
def test_an_idle_broker_forgets_everything_but_where_its_queues_end(by_age: World) -> None:
    by_age.send(20)
    by_age.wait_until_empty(20)
    assert wait_until(lambda: by_age.report().segments == 1, TIMEOUT_S)
    assert by_age.bounds(OTHER) == (0, 0)
    for _ in range(2):
        by_age.restart()
        assert by_age.bounds() == (20, 20)
    assert by_age.send(1) == [20]
    by_age.wait_until_empty(21)


def test_messages_that_nobody_has_settled_are_told_of_when_they_are_deleted(tmp_path: Path) -> None:
    shown = {"metrics": "127.0.0.1:0", "log_format": "json"}
    with world_of(tmp_path, retention_bytes=300_000, **shown) as world:
        [broker] = world.cluster.brokers

        def counted(name: str, **labels: str) -> float:
            return Scrape(metrics_address(broker.log_path)).value(f"minimq_broker_group_{name}", **labels)

        with RawPopper(broker.address, "g", "a") as popper:
            world.send(4)
            taken = popper.take(1) + popper.take(1) + popper.take(1)
            popper.settle([taken[1]])
            world.send(76)
            world.wait_until_trimmed()
            first, end = world.bounds()
            assert 10 < first < end == 80
            [described] = [item for item in world.admin.describe_group("g").queues if item.queue == QUEUE]
            assert described.work_queue is not None
            popped = described.work_queue
            assert (popped.missed, popped.in_flight, popped.settled_ahead) == (first - 1, 0, 0)
            assert described.lag == counted("lag_messages", group="g", topic="t") == end - first
            assert counted("missed_messages_total") == 0

            again = popper.take(5, wait_s=30)
            assert [message.offset for message in again] == [*range(first, first + 5)]
            popper.settle(again[1:])
            assert counted("missed_messages_total") == first - 1
            assert counted("in_flight_messages", group="g", topic="t") == 1
            [told] = [
                line for line in broker.log_path.read_text().splitlines() if "unsettled messages were deleted" in line
            ]
            assert json.loads(told)["fields"] == {"group": "g", "queue": "0 of topic t", "count": first - 1}
            [described] = [item for item in world.admin.describe_group("g").queues if item.queue == QUEUE]
            assert (
                (described.work_queue.missed, described.work_queue.settled_ahead) == (0, 4)
                if described.work_queue
                else None
            )
            assert described.lag == counted("lag_messages", group="g", topic="t") == end - first - 4
            assert popper.settle([taken[0]]) == []  # which is deleted


def test_they_are_also_counted_by_a_take_that_has_waited_meanwhile(tmp_path: Path) -> None:
    with world_of(tmp_path, retention_s=0.5, metrics="127.0.0.1:0", log_format="json") as world:
        [broker] = world.cluster.brokers
        with RawPopper(broker.address, "g", "a") as popper:
            world.send(1)
            assert len(popper.take(1)) == 1
            popper.begin(takes=[popper.taking(1, wait_s=30)])
            world.wait_until_empty(1)
            world.send(1)
            assert [message.offset for message in popped(popper.answer())] == [1]
        assert Scrape(metrics_address(broker.log_path)).value("minimq_broker_group_missed_messages_total") == 1


# ---- readers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["earliest", "latest"])
def test_a_reader_of_what_was_deleted_goes_on_and_is_told_what_it_missed(by_size: World, rule: OffsetResetRule) -> None:
    by_size.send(10)
    resets: list[OffsetReset] = []
    with PullConsumer(
        by_size.nameserver, group="g", offset_reset=rule, on_offset_reset=resets.append, prefetch_bytes=2 * len(BODY)
    ) as consumer:
        consumer.assign([QUEUE])
        read = consumer.poll(TIMEOUT_S, max_messages=1)
        assert [message.queue_offset for message in read] == [0]
        by_size.send(90)
        by_size.wait_until_trimmed()
        first, end = by_size.bounds()
        while not resets:
            read += consumer.poll(0.05)
        if rule == "latest":
            by_size.send(1)
        while read[-1].queue_offset < resets[0].offset:
            read += consumer.poll(TIMEOUT_S)
        [reset] = resets
        assert (reset.queue, reset.min_offset, reset.max_offset) == (QUEUE, first, end)
        assert reset.offset == (first if rule == "earliest" else end)
        offsets = [message.queue_offset for message in read]
        ahead = [offset for offset in offsets if offset < reset.offset]
        assert ahead == list(range(reset.wanted))  # what was fetched in time is handed out
        assert offsets[len(ahead)] == reset.offset
        assert consumer.missed_messages == reset.missed == reset.offset - reset.wanted
        assert reset.deleted == first - reset.wanted > 0
        consumer.commit()
    with PullConsumer(by_size.nameserver, group="g") as consumer:
        consumer.assign([QUEUE])
        assert consumer.position(QUEUE) == offsets[-1] + 1
        assert consumer.missed_messages == 0


def test_a_reader_that_wants_an_error_gets_one(by_size: World) -> None:
    by_size.send(100)
    wait_until(lambda: by_size.bounds()[0] > 0, TIMEOUT_S)
    with PullConsumer(by_size.nameserver, group="g", offset_reset="error") as consumer:
        consumer.assign([QUEUE])
        consumer.seek(QUEUE, 0)
        with pytest.raises(OffsetOutOfRange, match=r"offset 0 of queue .* is not stored: valid are \d+ to 100"):
            consumer.poll(TIMEOUT_S)
        consumer.seek(QUEUE, 99)
        assert consumer.poll(TIMEOUT_S)[0].queue_offset == 99


def test_who_broadcasts_is_told_as_well(by_size: World, tmp_path: Path) -> None:
    resets: list[OffsetReset] = []

    def consumer() -> PullConsumer:
        return PullConsumer(
            by_size.nameserver,
            group="g",
            client_id="display",
            broadcast_dir=tmp_path / "offsets",
            on_offset_reset=resets.append,
        )

    by_size.send(1)
    with consumer() as first:
        first.subscribe("t")
        wait_until(lambda: first.poll(0.1), TIMEOUT_S)
    by_size.send(99)
    by_size.wait_until_trimmed()
    stored, _ = by_size.bounds()
    with consumer() as again:
        again.subscribe("t")
        message = wait_until(lambda: again.poll(0.1), TIMEOUT_S)[0]
        assert (message.queue, message.queue_offset) == (QUEUE, stored)
        assert [(reset.wanted, reset.offset) for reset in resets] == [(1, stored)]
        assert again.missed_messages == stored - 1


def test_a_slow_reader_gets_each_message_or_is_told_of_it(by_size: World) -> None:
    resets: list[OffsetReset] = []
    read: list[int] = []
    with PullConsumer(
        by_size.nameserver, group="g", on_offset_reset=resets.append, prefetch_bytes=2 * len(BODY)
    ) as consumer:
        consumer.assign([QUEUE])
        for _ in range(40):
            by_size.send(10)
            read += [message.queue_offset for message in consumer.poll(0.0, max_messages=2)]
        while not consumer.at_end():
            read += [message.queue_offset for message in consumer.poll(0.1)]
    missed = [offset for reset in resets for offset in range(reset.wanted, reset.offset)]
    assert missed
    assert sorted([*read, *missed]) == list(range(400))
    assert read == sorted(read)


def test_ranges_are_read_as_a_whole_or_not(by_size: World) -> None:
    by_size.send(100)
    by_size.wait_until_trimmed()
    first, end = by_size.bounds()
    reader = RangeReader(by_size.nameserver)
    try:
        assert [batch.base_offset for batch in reader.read(QUEUE, first, end)] == list(range(first, end))
        with pytest.raises(OffsetOutOfRange, match=f"offsets {first - 1} to 99 .*: it holds {first} to 99"):
            list(reader.read(QUEUE, first - 1, end))
    finally:
        reader.close()


def test_a_pull_that_waits_is_answered_at_once_when_its_offset_was_deleted(by_age: World) -> None:
    by_age.send(3)
    by_age.wait_until_empty(3)
    connection = Connection([by_age.nameserver])
    frames: queues.SimpleQueue[broker_pb2.PullFrame] = queues.SimpleQueue()

    def receive(frame: broker_pb2.PullFrame | None, error: MinimqError | None) -> None:
        assert frame is not None, error
        frames.put(frame)

    try:

        def request(pull_id: int) -> broker_pb2.PullRequest:
            limits = broker_pb2.PullRequest(max_messages=10, max_bytes=1000, wait_ms=60_000)
            limits.MergeFrom(broker_pb2.PullRequest(pull_id=pull_id, topic="t", offset=1))
            return limits

        open_pulls(connection, by_age.cluster.brokers[0].address).request(request, receive)
        frame = frames.get(timeout=TIMEOUT_S)
        assert isinstance(from_failure(frame.failure), OffsetOutOfRange)
        assert (frame.min_offset, frame.max_offset, frame.end) == (3, 3, True)
    finally:
        connection.close()
