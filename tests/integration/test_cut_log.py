"""A broker that comes back with less than it had: readers beyond the end, listeners that see offsets again."""

from __future__ import annotations

import queue as queues
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from minimq import ConsumeResult, OffsetReset, PullConsumer, PushConsumer, ReceivedMessage
from support.small_segments import QUEUE, TIMEOUT_S, World, world_of
from support.waiting import wait_until


@contextmanager
def cut_log(path: Path, before: int, after: int) -> Iterator[tuple[World, Callable[[], None]]]:
    """A broker with `before` messages, and later `before + after`; the call makes those after go offline."""
    with world_of(path / "data") as world:
        [broker] = world.cluster.brokers
        copy = path / "copy"
        world.send(before)
        broker.stop()
        shutil.copytree(broker.data_dir, copy)
        broker.start()
        world.send(after)

        def cut() -> None:
            broker.kill()
            shutil.rmtree(broker.data_dir)
            copy.rename(broker.data_dir)
            broker.start()

        yield world, cut


@pytest.mark.fault
def test_a_reader_beyond_the_end_goes_back_there(tmp_path: Path) -> None:
    resets: list[OffsetReset] = []
    with (
        cut_log(tmp_path, 5, 3) as (world, cut),
        PullConsumer(world.nameserver, group="g", on_offset_reset=resets.append) as consumer,
    ):
        consumer.assign([QUEUE])
        while consumer.position(QUEUE) < 8:
            consumer.poll(TIMEOUT_S)
        consumer.commit()
        cut()
        while not resets:
            consumer.poll(0.1)
        assert resets == [OffsetReset(QUEUE, 8, 5, 0, 5)]
        assert world.send(2) == [5, 6]
        while consumer.position(QUEUE) < 7:
            consumer.poll(TIMEOUT_S)
        consumer.commit()
        assert consumer.missed_messages == 0
        assert world.admin.describe_group("g").queues[0].committed_offset == 7


@pytest.mark.fault
def test_a_listener_gets_what_comes_under_offsets_that_it_had_before(tmp_path: Path) -> None:
    seen: queues.SimpleQueue[int] = queues.SimpleQueue()
    is_cut, go_on = threading.Event(), threading.Event()

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        [message] = messages
        seen.put(message.queue_offset)
        if message.queue_offset == 3 and not is_cut.is_set():
            go_on.wait(TIMEOUT_S)
            return ConsumeResult.RETRY_LATER
        return ConsumeResult.SUCCESS

    with (
        cut_log(tmp_path, 5, 3) as (world, cut),
        PushConsumer(world.nameserver, group="g", commit_interval_s=0.05, batch_size=1) as consumer,
    ):
        consumer.subscribe("t")
        consumer.start(listen)
        assert sorted(seen.get(timeout=TIMEOUT_S) for _ in range(8)) == list(range(8))
        is_cut.set()
        cut()
        # What was in flight is given again, since nobody knows any more what becomes of it.
        assert sorted(seen.get(timeout=TIMEOUT_S) for _ in range(2)) == [3, 4]
        go_on.set()
        assert world.send(2) == [5, 6]
        assert sorted(seen.get(timeout=TIMEOUT_S) for _ in range(2)) == [5, 6]
        wait_until(lambda: 7 in {item.committed_offset for item in world.admin.describe_group("g").queues}, TIMEOUT_S)
