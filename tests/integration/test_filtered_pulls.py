"""Pulls that pass over batches without a wanted tag, at a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import LocalCluster
from minimq_common.batch.header import tag_hash
from minimq_proto.v1 import broker_pb2
from support.kernel_stores import make_batch
from support.raw_member import RawMember
from support.raw_sender import RawSender

RED, BLUE = tag_hash("red"), tag_hash("blue")


@pytest.fixture
def reader(cluster: LocalCluster) -> Iterator[RawMember]:
    with RawMember(cluster.brokers[0].address, "reader") as made:
        yield made


def send(reader: RawMember, topic: str, *tags: str | None, size: int = 10) -> None:
    """Send a batch of two messages for each tag to queue 0."""
    with RawSender(reader.link.address) as sender:
        sender.send(topic, [(0, make_batch([bytes(size)] * 2, tag)) for tag in tags])


def offsets(frames: list[broker_pb2.PullFrame]) -> list[int]:
    return [batch.base_offset for frame in frames for batch in frame.batches]


@pytest.mark.parametrize(
    ("hashes", "offset", "found"),
    [
        ([RED], 0, [0, 8]),
        ([RED], 1, [0, 8]),  # the batch that holds the offset
        ([RED], 2, [8]),
        ([BLUE], 0, [2, 4]),
        ([0], 0, [6]),  # no tag
        ([RED, 0], 0, [0, 6, 8]),
        ([tag_hash("green")], 0, []),
        ([], 0, [0, 2, 4, 6, 8]),
    ],
)
def test_only_batches_with_a_wanted_tag_come(
    reader: RawMember, topic: str, hashes: list[int], offset: int, found: list[int]
) -> None:
    send(reader, topic, "red", "blue", "blue", None, "red")
    frames = list(reader.pull(topic, 0, offset=offset, tag_hashes=hashes))

    assert offsets(frames) == found
    assert [frame.end for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert max(frame.next_offset for frame in frames) == 10
    assert not any(frame.HasField("failure") for frame in frames)


def test_a_batch_with_too_many_tags_to_list_comes_always(reader: RawMember, topic: str, tmp_path: Path) -> None:
    from minimq_common.batch.builder import BatchBuilder
    from minimq_common.model import Message

    builder = BatchBuilder(1 << 20)
    builder.add([Message("", b"x", f"tag-{number}") for number in range(5000)])
    with RawSender(reader.link.address) as sender:
        sender.send(topic, [(0, builder.build(1, 0, 0, 0))])
    assert offsets(list(reader.pull(topic, 0, tag_hashes=[RED]))) == [0]


def test_a_pull_that_only_passes_over_says_how_far_it_is_and_goes_on(reader: RawMember, topic: str) -> None:
    send(reader, topic, *["blue"] * 700)
    frames = reader.pull(topic, 0, tag_hashes=[RED], wait_ms=20_000)

    told = next(frames)
    assert (list(told.batches), told.next_offset, told.max_offset, told.end) == ([], 1400, 1400, False)
    send(reader, topic, "blue", "red")
    found = next(frames)
    assert (offsets([found]), found.next_offset) == ([1402], 1404)


def test_arrivals_that_are_passed_over_are_told_of_now_and_then_only(reader: RawMember, topic: str) -> None:
    frames = reader.pull(topic, 0, tag_hashes=[RED], wait_ms=20_000)
    began = time.monotonic()
    for _ in range(100):
        send(reader, topic, "blue")
    send(reader, topic, "red")
    seen = [next(frames)]
    while not seen[-1].batches:
        seen.append(next(frames))
    assert offsets(seen) == [200]
    assert len(seen) - 1 <= time.monotonic() - began  # at most one a second
