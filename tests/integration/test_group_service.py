"""Groups as others look at them: described, listed and reset, at a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minimq import LocalCluster
from minimq_common.errors import Fenced, InvalidArgument, MinimqError, OffsetOutOfRange, QueueNotFound, TopicNotFound
from minimq_proto.v1 import broker_pb2
from support.raw_member import RawMember
from support.raw_sender import RawSender
from support.stores import make_batch

EARLIEST = broker_pb2.StartPosition(at=broker_pb2.START_AT_EARLIEST)


@pytest.fixture
def address(cluster: LocalCluster) -> str:
    return cluster.brokers[0].address


@pytest.fixture
def member(address: str, group: str) -> Iterator[RawMember]:
    with RawMember(address, f"{group}-member") as made:
        yield made


def send(address: str, topic: str, *batches: int, queue_id: int = 0) -> list[broker_pb2.AppendResult]:
    """Send batches of so many messages, one after the other."""
    with RawSender(address) as sender:
        return [result for count in batches for result in sender.send(topic, [(queue_id, make_batch([b"x"] * count))])]


def reset(member: RawMember, group: str, topic: str, **fields: object) -> dict[int, int]:
    """Return the new offsets by queue."""
    request = broker_pb2.ResetOffsetsRequest(group=group, topic=topic, **fields)  # type: ignore[arg-type]
    return {item.queue_id: item.offset for item in member.call("ResetOffsets", request).offsets}


def committed(member: RawMember, group: str) -> dict[int, int]:
    request = broker_pb2.GetCommittedRequest(group=group)
    return {item.queue_id: item.offset for item in member.call("GetCommitted", request).offsets}


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"offset": 3}, OffsetOutOfRange, "offset 3 of queue .*/0 is not stored: valid are 0 to 2"),
        ({"offset": -1}, OffsetOutOfRange, "valid are 0 to 2"),
        ({"offset": 1}, OffsetOutOfRange, "offset 1 of queue .*/1 is not stored: valid are 0 to 0"),
        ({}, InvalidArgument, "the reset has no position"),
        ({"start": broker_pb2.StartPosition()}, InvalidArgument, "the reset has no position"),
        ({"offset": 0, "queue_ids": [0, 4]}, QueueNotFound, "0 to 3"),
    ],
)
def test_a_reset_that_cannot_be_changes_nothing(
    address: str,
    topic: str,
    group: str,
    member: RawMember,
    fields: dict[str, object],
    error: type[MinimqError],
    text: str,
) -> None:
    send(address, topic, 2)
    member.join(group, topic)
    member.hear("members")
    member.ask(group, topic, 0)
    epoch = member.granted().epoch

    with pytest.raises(error, match=text):
        reset(member, group, topic, force=True, **fields)

    assert committed(member, group) == {0: 2, 1: 0, 2: 0, 3: 0}
    member.commit(group, topic, 0, 2, epoch)  # nor has it fenced anybody


def test_a_topic_that_is_not_there_cannot_be_reset(group: str, member: RawMember) -> None:
    with pytest.raises(TopicNotFound):
        reset(member, group, "no-such-topic", start=EARLIEST)


def test_a_forced_reset_fences_owners_and_grants_anew(address: str, topic: str, group: str, member: RawMember) -> None:
    send(address, topic, 10)
    member.join(group, topic, start=EARLIEST)
    member.hear("members")
    member.ask(group, topic, 0, 1)
    old = {granted.queue_id: granted.epoch for granted in (member.granted(), member.granted())}
    member.commit(group, topic, 0, 10, old[0])
    waiting = member.pull(topic, 0, offset=10, wait_ms=60_000, lease=member.lease(group, old[0]))

    assert reset(member, group, topic, offset=4, queue_ids=[0], force=True) == {0: 4}

    granted = member.granted()
    assert (granted.queue_id, granted.offset) == (0, 4)
    assert granted.epoch > old[0]
    assert next(waiting).failure.code == Fenced.code
    with pytest.raises(Fenced):
        member.commit(group, topic, 0, 10, old[0])
    assert committed(member, group)[0] == 4
    member.commit(group, topic, 0, 5, granted.epoch)
    member.commit(group, topic, 1, 0, old[1])  # the others are as they were


def test_a_commit_on_its_way_does_not_overtake_a_reset(address: str, topic: str, group: str, member: RawMember) -> None:
    """Commits and forced resets in a row, with nothing to wait for between them: the latest reset stands."""
    send(address, topic, 100)
    member.join(group, topic, start=EARLIEST)
    member.hear("members")
    member.ask(group, topic, 0)
    granted = member.granted()
    for number in range(30):
        item = broker_pb2.QueueOffset(topic=topic, queue_id=0, offset=100, epoch=granted.epoch)
        request = broker_pb2.CommitOffsetsRequest(group=group, client_id=member.client_id, offsets=[item])
        commits = [member.link.stub.CommitOffsets.future(request) for _ in range(3)]
        reset(member, group, topic, offset=number, queue_ids=[0], force=True)
        for commit in commits:
            commit.exception()  # done, or fenced
        assert committed(member, group)[0] == number
        granted = member.granted()
        assert granted.offset == number
