"""Clients that ask for much and do not read: others are served."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from minimq import Admin, Message, MessageQueue, Producer, PullConsumer
from minimq_broker.backup import copying
from minimq_common.errors import MinimqError, SystemBusy
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2, replication_pb2, replication_pb2_grpc
from support.broker_link import BrokerLink
from support.limited import Limited, limited
from support.waiting import wait_until

TIMEOUT_S = 60.0
TOPIC, LITTLE = "large", "little"
#: What a client can be sent before it reads anything is about four of them.
BODY, BATCHES = bytes(1 << 20), 12


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    """A broker that holds few unsent bytes, with some large batches."""
    with limited(tmp_path_factory.mktemp("unread"), max_unsent_bytes=4 << 20) as made:
        with Admin(made.nameserver) as admin, Producer(made.nameserver) as producer:
            admin.create_topic(TOPIC, queues=1)
            admin.create_topic(LITTLE, queues=1)
            for _ in range(BATCHES):
                producer.send(Message(TOPIC, BODY))
            producer.send(Message(LITTLE, b"x"))
        yield made


def ended(call: Any) -> MinimqError:
    """Return the error by which a stream ends, after what came before."""
    with pytest.raises(grpc.RpcError) as raised:
        for _ in call:
            pass
    return rpc.from_rpc_error(raised.value, "broker")


def test_who_reads_is_served_while_others_do_not(own: Limited, caplog: pytest.LogCaptureFixture) -> None:
    request = broker_pb2.PullRequest(pull_id=1, topic=TOPIC, max_messages=1 << 40, max_bytes=1 << 40, wait_ms=60_000)
    over = threading.Event()

    def asks() -> Iterator[broker_pb2.PullRequest]:
        yield request
        over.wait()

    with ExitStack() as links:
        idle: list[Any] = []
        for _ in range(5):
            link = BrokerLink(own.broker)
            links.callback(link.close)
            idle.append(link.stub.Pull(asks(), timeout=TIMEOUT_S))
        with PullConsumer(own.nameserver) as consumer:
            consumer.assign([MessageQueue(LITTLE, "broker-a", 0)])
            assert [message.body for message in consumer.poll(timeout=TIMEOUT_S)] == [b"x"]
        received = 0
        with PullConsumer(own.nameserver) as consumer:
            consumer.assign([MessageQueue(TOPIC, "broker-a", 0)])
            while received < BATCHES:  # once the answers to the others stop counting
                received += len(consumer.poll(timeout=TIMEOUT_S))
        assert all(call.is_active() for call in idle)
        assert next(idle[0]).ByteSize() > len(BODY)  # a client that reads at last continues
        over.set()
        for call in idle:
            call.cancel()
    assert "its client does not read while others wait" in caplog.text


def test_only_some_copies_are_taken_at_a_time(own: Limited) -> None:
    request = replication_pb2.TakeSnapshot()
    with ExitStack() as opened:
        calls = []
        for _ in range(copying.MAX_COPIES):
            channel = opened.enter_context(rpc.open_channel(own.broker))
            snapshot: Any = replication_pb2_grpc.ReplicationStub(channel).Snapshot
            calls.append(snapshot(iter([request]), timeout=TIMEOUT_S))
            assert next(calls[-1]).HasField("copy")
        link = opened.enter_context(rpc.open_channel(own.broker))
        another: Any = replication_pb2_grpc.ReplicationStub(link).Snapshot
        error = ended(another(iter([request]), timeout=TIMEOUT_S))
        assert isinstance(error, SystemBusy)
        assert error.message == (
            f"{copying.MAX_COPIES} copies of this broker are running, which is the limit: retry when one is done"
        )
        calls[0].cancel()

        def is_taken() -> bool:
            try:
                return bool(next(another(iter([request]), timeout=TIMEOUT_S)).HasField("copy"))
            except grpc.RpcError:
                return False

        wait_until(is_taken, TIMEOUT_S)
