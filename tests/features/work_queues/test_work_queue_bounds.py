"""The bounds of what may be under way, in flight and on one stream of consumers that take messages one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from minimq_broker.features.work_queues.pop_runs import MAX_HELD
from minimq_broker.features.work_queues.work_queue_clients import MAX_CLIENTS, MAX_TOPICS
from minimq_broker.features.work_queues.work_queue_service import MAX_PENDING_SPANS, MAX_PENDING_STEPS
from minimq_common.errors import SystemBusy
from minimq_common.wire.protocol_bounds import MAX_SPANS, MAX_TAKEN
from minimq_proto.v1 import broker_pb2, work_queues_pb2
from support.bounds import max_items
from support.raw_popper import RawPopper, popped

DONE = broker_pb2.POP_OUTCOME_DONE
MAX_TAKES = max_items(work_queues_pb2.PopRequest, "takes")


@pytest.fixture
def one_queue(cluster: LocalCluster, admin: Admin, new_name: Callable[[], str]) -> Iterator[str]:
    """Name of a new topic with a queue on each broker; the tests use that of the first one."""
    name = new_name()
    admin.create_topic(name, queues=1)
    yield name
    admin.delete_topic(name)


@pytest.fixture
def popper(cluster: LocalCluster, one_queue: str) -> Iterator[RawPopper]:
    with RawPopper(cluster.brokers[0].address, one_queue, "a", one_queue) as made:
        yield made


def send(cluster: LocalCluster, topic: str, count: int) -> None:
    """Fill the queue of the first broker."""
    queue = MessageQueue(topic, cluster.brokers[0].name, 0)
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"x")] * count, queue=queue)


def spans_of(result: work_queues_pb2.PopResult) -> list[tuple[int, int, int]]:
    """Return epoch, first offset and number of what was handed out, unopened."""
    return [(result.popped.epoch, run.first, run.count) for run in result.popped.runs]


def settling(popper: RawPopper, epoch: int, spans: list[int]) -> broker_pb2.PopSettle:
    return broker_pb2.PopSettle(topic=popper.topic, queue_id=0, epoch=epoch, spans=spans, outcome=DONE)


def test_as_many_messages_are_in_flight_as_may_be_and_no_more_until_some_are_settled(
    cluster: LocalCluster, admin: Admin, one_queue: str, popper: RawPopper
) -> None:
    send(cluster, one_queue, MAX_HELD + MAX_TAKEN)
    taken: list[tuple[int, int, int]] = []
    while True:
        popper.begin(takes=[popper.taking(MAX_TAKEN, 600, 5 if sum(n for *_, n in taken) < MAX_HELD else 0)])
        if not (runs := spans_of(popper.answer())):
            break
        taken += runs
    assert sum(count for *_, count in taken) == MAX_HELD
    found = admin.describe_group(one_queue)
    assert (found.in_flight, found.lag) == (MAX_HELD, MAX_HELD + MAX_TAKEN)
    popper.begin(takes=[popper.taking(MAX_TAKEN, 600, 60)])  # it waits for room
    with RawPopper(cluster.brokers[0].address, one_queue, "b", one_queue) as other:
        for epoch, first, count in taken:
            other.begin(settles=[settling(other, epoch, [first, count])])
            assert not other.answer().expired
    assert sum(count for *_, count in spans_of(popper.answer())) == MAX_TAKEN
    assert admin.describe_group(one_queue).in_flight == MAX_TAKEN


def test_more_spans_than_may_be_on_their_way_to_the_disk_are_rejected_whole(
    cluster: LocalCluster, one_queue: str, popper: RawPopper
) -> None:
    send(cluster, one_queue, MAX_TAKEN)
    popper.begin(takes=[popper.taking(MAX_TAKEN, 600, 30)])
    [(epoch, _, count)] = spans_of(popper.answer())
    assert count == MAX_TAKEN == 2 * MAX_SPANS
    halves = [[number for at in range(first, first + MAX_SPANS) for number in (at, 1)] for first in (0, MAX_SPANS)]
    fitting = MAX_PENDING_SPANS // MAX_SPANS
    ids = popper.begin(settles=[settling(popper, epoch, halves[0])] * fitting + [settling(popper, epoch, halves[1])])
    answers = {answer.id: answer for answer in (popper.result() for _ in ids)}
    assert [answers[number].HasField("failure") for number in ids] == [False] * fitting + [True]
    assert answers[ids[-1]].failure.code == SystemBusy.code
    assert "more than 50,000 spans of messages are on their way to the disk" in answers[ids[-1]].failure.message
    with Admin(cluster.nameserver) as admin:
        assert admin.describe_group(one_queue).in_flight == MAX_SPANS
    popper.begin(settles=[settling(popper, epoch, halves[1])])
    assert not popper.answer().expired


def test_takes_of_one_stream_that_are_too_many_are_rejected_and_the_others_wait_on(
    cluster: LocalCluster, one_queue: str, popper: RawPopper
) -> None:
    waiting = popper.taking(1, 600, 60)
    requests = MAX_PENDING_STEPS // MAX_TAKES + 1  # of the last one nothing is taken in
    ids = [popper.begin(takes=[waiting] * MAX_TAKES) for _ in range(requests + 1)]
    rejected = [popper.result() for _ in range(MAX_TAKES)]
    assert {answer.id for answer in rejected} == {*ids[-1]}
    assert {answer.failure.code for answer in rejected} == {SystemBusy.code}
    assert "more than 4096 takes and settles are under way on one stream" in rejected[0].failure.message
    send(cluster, one_queue, 1)
    [message] = popped(answer := popper.answer())
    assert answer.id == ids[0][0]  # the first one waits longest
    with pytest.raises(SystemBusy):
        popper.settle([message])
    popper.cancel(ids[0][1:])
    assert {popper.result().id for _ in ids[0][1:]} == {*ids[0][1:]}
    assert popper.settle([message]) == []


def test_a_stream_takes_for_a_thousand_consumers_from_five_thousand_topics(
    cluster: LocalCluster, admin: Admin, one_queue: str, new_name: Callable[[], str]
) -> None:
    others = [new_name() for _ in range(MAX_TOPICS // MAX_CLIENTS)]
    for name in others:
        admin.create_topic(name, queues=1)
    send(cluster, one_queue, 1)
    with RawPopper(cluster.brokers[0].address, one_queue, "", one_queue) as popper:

        def take(clients: Iterable[int], topics: list[str]) -> list[work_queues_pb2.PopResult]:
            takes = []
            for name in topics:
                popper.topic = name
                takes.append(popper.taking(1, 600))
            ids: list[int] = []
            for client in clients:
                popper.client_id = f"c{client}"
                ids += popper.begin(takes=takes)
            return [popper.result() for _ in ids]

        half = MAX_CLIENTS // 2  # or more than may be under way would be
        for clients in (range(half), range(half, MAX_CLIENTS)):
            assert not any(answer.HasField("failure") for answer in take(clients, others))
        [rejected] = take([MAX_CLIENTS], others[:1])
        assert rejected.failure.code == SystemBusy.code
        assert rejected.failure.message == "one stream takes for 1,000 consumers at most"
        [rejected] = take([0], [one_queue])
        assert rejected.failure.code == SystemBusy.code
        assert rejected.failure.message.startswith("one stream takes from 5,000 topics at most")
        members = {member.client_id for member in admin.describe_group(one_queue).members}
        assert members == {f"c{client}" for client in range(MAX_CLIENTS)}
        assert not take([0], others[:1])[0].HasField("failure")  # those that are known go on
        with RawPopper(cluster.brokers[0].address, one_queue, "d", one_queue) as more:
            [message] = more.take()  # another stream may: and nothing was handed out to whoever was rejected
            assert message.delivery_count == 1
    for name in others:
        admin.delete_topic(name)
