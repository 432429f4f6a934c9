"""A trace tells what groups have really done with a message: groups of each kind, in each state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from minimq.admin.admin import Admin
from minimq.consumer import PullConsumer, PushConsumer, WorkQueueConsumer
from minimq.features.half_messages.resolutions import TransactionResolution
from minimq.features.half_messages.transactional_producer import TransactionalProducer
from minimq.features.listeners.listener import ConsumeResult
from minimq.features.search.message_trace import GroupTrace, MessageTrace, TraceState
from minimq.features.search.search_bounds import MessageAddress
from minimq.local.local_cluster import LocalCluster
from minimq.producer import Producer
from minimq.sending.receipt import SendReceipt
from minimq_common.batch.header import read_header
from minimq_common.batch.records import message_id
from minimq_common.errors import InvalidArgument, OffsetOutOfRange
from minimq_common.model import Message
from minimq_proto.v1 import staged_pb2
from minimq_proto.v1.staged_pb2_grpc import StagedStub
from support.broker_link import BrokerLink
from support.command import Minimq
from support.waiting import wait_until


@pytest.fixture
def minimq(cluster: LocalCluster) -> Minimq:
    return Minimq(cluster.nameserver)


@pytest.fixture
def one_queue(admin: Admin, new_name: Callable[[], str]) -> str:
    name = new_name()
    admin.create_topic(name, queues=1)
    return name


def address_of(receipt: SendReceipt) -> MessageAddress:
    assert receipt.queue is not None
    return MessageAddress(receipt.queue, receipt.queue_offset)


def state_in(trace: MessageTrace, group: str) -> GroupTrace:
    [found] = [each for each in trace.groups if each.group == group]
    return found


def test_a_group_that_divides_queues_waits_until_it_has_committed(
    cluster: LocalCluster, admin: Admin, producer: Producer, one_queue: str, group: str
) -> None:
    receipt = producer.send(Message(one_queue, b"x"))
    assert admin.trace_message(address_of(receipt)).groups == ()
    with PullConsumer(cluster.nameserver, group=group, start="earliest", auto_commit=False) as consumer:
        consumer.subscribe(one_queue)
        found = wait_until(lambda: consumer.poll(0.1))
        waiting = state_in(admin.trace_message(receipt.message_id, topic=one_queue), group)
        assert (waiting.state, waiting.client_id, waiting.delivery_count) == (TraceState.WAITING, consumer.client_id, 0)
        assert [each.message_id for each in found] == [receipt.message_id]
        consumer.commit()
        assert state_in(admin.trace_message(receipt.message_id), group).state is TraceState.READ


def test_a_group_that_takes_messages_one_by_one_is_traced_through_all_states(
    cluster: LocalCluster, admin: Admin, producer: Producer, one_queue: str, group: str, minimq: Minimq
) -> None:
    receipt = producer.send(Message(one_queue, b"x"))

    def traced() -> GroupTrace:
        return state_in(admin.trace_message(receipt.message_id, topic=one_queue), group)

    with WorkQueueConsumer(cluster.nameserver, group=group, start="earliest", invisible_s=600) as consumer:
        consumer.subscribe(one_queue)
        [message] = wait_until(lambda: consumer.receive(1, timeout=0.5))
        out = traced()
        assert (out.state, out.delivery_count) == (TraceState.IN_FLIGHT, 1)
        assert out.client_id == consumer.client_id
        assert out.until is not None
        assert timedelta(seconds=500) < out.until - datetime.now(UTC) < timedelta(seconds=700)
        consumer.release(message, delay_s=300)
        back = traced()
        assert (back.state, back.delivery_count, back.client_id) == (TraceState.RETURNED, 1, None)
        assert back.until is not None
        assert " returned  -  " in minimq("message", "trace", receipt.message_id, "--topic", one_queue)
        later = producer.send(Message(one_queue, b"y"))
        [message] = wait_until(lambda: consumer.receive(1, timeout=0.5))
        assert message.message_id == later.message_id
        consumer.ack(message)
        assert state_in(admin.trace_message(address_of(later)), group).state is TraceState.SETTLED
        assert traced().state is TraceState.RETURNED


def test_a_dead_letter_is_traced_until_it_is_resent(
    cluster: LocalCluster, admin: Admin, producer: Producer, one_queue: str, group: str, minimq: Minimq
) -> None:
    receipt = producer.send(Message(one_queue, b"x", keys=("k",)))
    with WorkQueueConsumer(cluster.nameserver, group=group, start="earliest") as consumer:
        consumer.subscribe(one_queue)
        [message] = wait_until(lambda: consumer.receive(1, timeout=0.5))
        consumer.reject(message, "no address")
    dead = state_in(admin.trace_message(receipt.message_id, topic=one_queue), group)
    assert (dead.state, dead.delivery_count) == (TraceState.DEAD, 1)
    assert dead.copy is not None
    assert dead.copy.queue.topic == f"%DLQ%{group}"
    assert admin.message_at(dead.copy).body == b"x"
    [row] = minimq.json("message", "trace", str(address_of(receipt)))["groups"]
    assert (row["state"], row["copy"]) == ("dead", str(dead.copy))
    assert admin.resend_dead_letters(group) == 1
    assert state_in(admin.trace_message(receipt.message_id), group).state is TraceState.DEAD_SETTLED
    assert len(admin.find_messages(one_queue, key="k").messages) == 2


def test_a_message_of_a_push_consumer_waits_for_its_next_try(
    cluster: LocalCluster, admin: Admin, producer: Producer, one_queue: str, group: str
) -> None:
    receipt = producer.send(Message(one_queue, b"x"))

    def fail(_messages: object) -> ConsumeResult:
        return ConsumeResult.RETRY_LATER

    with PushConsumer(cluster.nameserver, group=group, start="earliest", retry_delays_s=(600.0,)) as consumer:
        consumer.subscribe(one_queue)
        consumer.start(fail)
        wait_until(
            lambda: any(
                each.state is TraceState.RETRYING
                for each in admin.trace_message(receipt.message_id, topic=one_queue).groups
            )
        )
        trace = state_in(admin.trace_message(receipt.message_id, topic=one_queue), group)
        assert trace.delivery_count == 1
        assert trace.copy is not None
        assert trace.copy.queue.topic == f"%RETRY%{group}"


def test_a_delayed_message_is_traced_while_it_waits_and_once_it_is_recalled(
    admin: Admin, producer: Producer, topic: str, minimq: Minimq
) -> None:
    other = producer.send(Message(topic, b"other", deliver_after_s=3_000, recallable=True))
    waiting = producer.send(Message(topic, b"later", deliver_after_s=3_000, recallable=True))
    trace = admin.trace_message(waiting.message_id, topic=topic)
    assert trace.due is not None
    assert (trace.message, trace.is_known, trace.due.recall_handle) == (None, True, waiting.recall_handle)
    assert waiting.recall_handle is not None
    admin.recall(waiting.recall_handle)
    trace = admin.trace_message(waiting.message_id, topic=topic)
    assert trace.recalled is not None
    assert (trace.message, trace.due, trace.recalled.due_at) == (None, None, waiting.due_at)
    assert "recalled due_at" in minimq("message", "trace", waiting.message_id, "--topic", topic)
    assert admin.trace_message(other.message_id, topic=topic).recalled is None


def test_a_half_message_is_traced_until_it_is_committed(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str], minimq: Minimq
) -> None:
    group = new_name()
    with TransactionalProducer(
        cluster.nameserver, group=group, check=lambda _: TransactionResolution.UNKNOWN
    ) as producer:
        with producer.transaction() as tx:
            tx.send(Message(topic, b"x", keys=("k",)))
            [half] = halves(cluster, group)
            header = read_header(half.batch)
            wanted = message_id(header.producer_id, header.sequence, 0)
            trace = admin.trace_message(wanted, topic=topic)
            assert trace.message is None
            assert trace.half is not None
            assert (trace.half.producer_group, trace.half.number) == (group, half.number)
            assert f"half number          {half.number}" in minimq("message", "trace", wanted, "--topic", topic)
        wait_until(lambda: admin.trace_message(wanted, topic=topic).message is not None)
    assert admin.trace_message(wanted, topic=topic).half is None


def halves(cluster: LocalCluster, group: str) -> list[staged_pb2.OpenHalf]:
    request = staged_pb2.ListHalvesRequest(producer_group=group, number=-1, most=10)
    found: list[staged_pb2.OpenHalf] = []
    for broker in cluster.brokers:
        link = BrokerLink(broker.address)
        found += link.call(link.of(StagedStub).ListHalves, request, 10.0).halves
    return found


def test_what_is_not_there_is_not_traced(admin: Admin, topic: str, minimq: Minimq) -> None:
    with pytest.raises(InvalidArgument, match="is not the address of a message"):
        admin.trace_message("4711")
    with pytest.raises(OffsetOutOfRange):
        admin.trace_message(f"{topic}/broker-a/0@10")
    assert "is in no queue" in minimq("message", "trace", "0" * 40, "--topic", topic, status=1)
