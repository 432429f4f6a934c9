"""Ids and handles of one user do not help another one who has the same rights to the topic and the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from queue import SimpleQueue
from typing import NamedTuple

import grpc
import pytest

from minimq import Admin, Credentials, LocalCluster, Message, Producer, PullConsumer, SendReceipt, WorkQueueConsumer
from minimq.errors import AccessDenied, Fenced, GroupConflict, HandleExpired, MinimqError
from minimq.sending.receipt import SendStatus
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc, staged_pb2
from minimq_proto.v1.staged_pb2_grpc import StagedStub
from support.kernel_stores import numbered_batch
from support.reading import read_all
from support.secure_scraping import trust_of
from support.users import Users
from support.waiting import wait_until

TIMEOUT_S = 60.0

pytestmark = pytest.mark.system


class World(NamedTuple):
    """Two users with the same rights to a topic and a group; only alice may write her transactions."""

    cluster: LocalCluster
    alice: Credentials
    mallory: Credentials
    topic: str
    group: str

    def bodies(self) -> list[bytes]:
        return [each.body for each in read_all(self.cluster.nameserver, self.topic, self.cluster.credentials)]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, data_dir=tmp_path_factory.mktemp("ids"), secure=True) as cluster:
        yield cluster


@pytest.fixture
def world(secure: LocalCluster, new_name: Callable[[], str]) -> World:
    topic, group, names = new_name(), new_name(), (new_name(), new_name())
    rules = [f"allow {right}" for right in (f"write topic {topic}", f"read topic {topic}", f"read group {group}")]
    with Admin(credentials=secure.credentials) as admin:
        admin.create_topic(topic, queues=1)
    users = Users(secure)
    alice = users.add(names[0], [*rules, f"allow write transaction {group}"])
    mallory = users.add(names[1], rules)
    return World(secure, Credentials.from_text(alice), Credentials.from_text(mallory), topic, group)


def append(stub: broker_pb2_grpc.BrokerStub, topic: str, batches: list[bytes]) -> list[broker_pb2.AppendResult]:
    requests = [
        broker_pb2.AppendRequest(appends=[broker_pb2.Append(request_id=1, topic=topic, batch=each)]) for each in batches
    ]
    return [result for answer in stub.Append(iter(requests), timeout=TIMEOUT_S) for result in answer.results]


def append_atomic(stub: broker_pb2_grpc.BrokerStub, topic: str, batches: list[bytes]) -> list[broker_pb2.AppendResult]:
    made = [broker_pb2.AtomicBatch(topic=topic, batch=each) for each in batches]
    request = broker_pb2.AtomicAppendRequest(appends=[broker_pb2.AtomicAppend(batches=made)])
    answers = stub.AppendAtomic(iter([request]), timeout=TIMEOUT_S)
    return [result for answer in answers for each in answer.results for result in each.batches]


def send(producer: Producer, topic: str, body: bytes) -> SendReceipt:
    return producer.send(Message(topic, body))


def commit(producer: Producer, topic: str, body: bytes) -> SendReceipt:
    with producer.transaction() as transaction:
        transaction.send(Message(topic, body))
    return transaction.receipts[0]


@pytest.mark.parametrize("store", [append, append_atomic])
@pytest.mark.parametrize("write", [send, commit])
def test_a_producer_id(
    world: World,
    write: Callable[[Producer, str, bytes], SendReceipt],
    store: Callable[[broker_pb2_grpc.BrokerStub, str, list[bytes]], list[broker_pb2.AppendResult]],
) -> None:
    with Producer(world.cluster.nameserver, credentials=world.alice) as producer:
        first = write(producer, world.topic, b"first")
        forged = [numbered_batch(first.batch.producer_id, first.batch.sequence + each, b"forged") for each in (1, 2)]
        with closing(rpc.open_channel(world.cluster.brokers[0].address, trust_of(world.mallory))) as channel:
            answers = store(broker_pb2_grpc.BrokerStub(channel), world.topic, forged)
        assert [each.status for each in answers] == [broker_pb2.SEND_STATUS_OK] * 2
        for body in (b"second", b"third"):
            assert write(producer, world.topic, body).status is SendStatus.SEND_OK
    assert sorted(world.bodies()) == [b"first", b"forged", b"forged", b"second", b"third"]


def test_a_recall_handle(world: World) -> None:
    with Producer(world.cluster.nameserver, credentials=world.alice) as producer:
        handle = producer.send(Message(world.topic, b"x", deliver_after_s=3600, recallable=True)).recall_handle
        with Producer(world.cluster.nameserver, credentials=world.mallory) as other, pytest.raises(AccessDenied):
            other.recall(handle)
        assert producer.recall(handle)


def test_a_receipt_handle(world: World) -> None:
    with Producer(world.cluster.nameserver, credentials=world.alice) as producer:
        producer.send(Message(world.topic, b"x"))

    def consumer(credentials: Credentials) -> WorkQueueConsumer:
        return WorkQueueConsumer(world.cluster.nameserver, group=world.group, credentials=credentials)

    with consumer(world.alice) as taker, consumer(world.mallory) as other:
        taker.subscribe(world.topic)
        [message] = taker.receive(1, timeout=TIMEOUT_S)
        for settle in (other.ack, other.release, other.extend):
            with pytest.raises(HandleExpired):
                settle(message.handle)
        taker.extend(message.handle)
    with consumer(world.alice) as second:
        second.ack(message.handle)


@pytest.mark.parametrize("kind", [PullConsumer, WorkQueueConsumer])
def test_a_client_id(world: World, kind: type[PullConsumer] | type[WorkQueueConsumer]) -> None:
    def consumer(credentials: Credentials) -> PullConsumer | WorkQueueConsumer:
        made = kind(world.cluster.nameserver, group=world.group, client_id="worker-0", credentials=credentials)
        made.subscribe(world.topic)
        return made

    def read(consumer: PullConsumer | WorkQueueConsumer) -> list[bytes]:
        messages = consumer.poll(0.1) if isinstance(consumer, PullConsumer) else consumer.receive(timeout=0.1)
        return [message.body for message in messages]

    with consumer(world.alice) as holder, Producer(world.cluster.nameserver, credentials=world.alice) as producer:
        producer.send(Message(world.topic, b"first"))
        wait_until(lambda: read(holder), TIMEOUT_S)
        with consumer(world.mallory) as other:

            def is_rejected() -> bool:
                try:
                    assert not read(other)
                except GroupConflict as error:
                    return "is in use by another client" in error.message
                return False

            wait_until(is_rejected, TIMEOUT_S)
            producer.send(Message(world.topic, b"second"))
            wait_until(lambda: read(holder) == [b"second"], TIMEOUT_S)


def test_a_lease(world: World) -> None:
    with PullConsumer(
        world.cluster.nameserver, group=world.group, client_id="worker-0", credentials=world.alice
    ) as consumer:
        consumer.subscribe(world.topic)
        with closing(rpc.open_channel(world.cluster.brokers[0].address, trust_of(world.mallory))) as channel:
            stub = broker_pb2_grpc.BrokerStub(channel)

            def epoch() -> int:
                consumer.poll(0.1)
                described = stub.DescribeGroup(broker_pb2.DescribeGroupRequest(group=world.group), timeout=TIMEOUT_S)
                return next((item.epoch for item in described.queues if item.owner == "worker-0"), 0)

            held = wait_until(epoch, TIMEOUT_S)
            offset = broker_pb2.QueueOffset(topic=world.topic, queue_id=0, offset=0, epoch=held)
            commit = broker_pb2.CommitOffsetsRequest(group=world.group, client_id="worker-0", offsets=[offset])
            with pytest.raises(grpc.RpcError) as raised:
                stub.CommitOffsets(commit, timeout=TIMEOUT_S)
            assert isinstance(rpc.from_rpc_error(raised.value, "broker"), Fenced)
            lease = broker_pb2.Lease(group=world.group, client_id="worker-0", epoch=held)
            pull = broker_pb2.PullRequest(pull_id=1, topic=world.topic, max_messages=1, max_bytes=1, lease=lease)
            [frame] = stub.Pull(iter([pull]), timeout=TIMEOUT_S)
            assert isinstance(rpc.from_failure(frame.failure), Fenced)
        consumer.commit()


def test_a_member_cannot_acquire_for_another_user_without_joining(world: World) -> None:
    nameserver = world.cluster.nameserver
    with PullConsumer(nameserver, group=world.group, client_id="worker-0", credentials=world.alice) as consumer:
        consumer.subscribe(world.topic)
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment, TIMEOUT_S)
        queue = broker_pb2.QueueEpoch(topic=world.topic, queue_id=0)
        acquire = broker_pb2.AcquireQueues(group=world.group, queues=[queue])
        requests: SimpleQueue[broker_pb2.SessionRequest | None] = SimpleQueue()
        with closing(rpc.open_channel(world.cluster.brokers[0].address, trust_of(world.mallory))) as channel:
            requests.put(broker_pb2.SessionRequest(client_id="worker-0", run=1, acquire=acquire))
            session = broker_pb2_grpc.BrokerStub(channel).Session(iter(requests.get, None), timeout=TIMEOUT_S)
            event = next(session)
            requests.put(None)
        assert isinstance(rpc.from_failure(event.rejected.failure), GroupConflict)


def test_a_transaction(world: World) -> None:
    named = broker_pb2.Transaction(name=world.group, number=1)
    batch = numbered_batch(7, 1, b"forged")
    with closing(rpc.open_channel(world.cluster.brokers[0].address, trust_of(world.mallory))) as channel:
        stub = broker_pb2_grpc.BrokerStub(channel)
        request = broker_pb2.AppendRequest(
            appends=[broker_pb2.Append(topic=world.topic, batch=batch, transaction=named)]
        )
        [answer] = stub.Append(iter([request]), timeout=TIMEOUT_S)
        assert isinstance(rpc.from_failure(answer.results[0].failure), AccessDenied)
        decided = staged_pb2.CommitTransactionRequest(name=world.group, decision=staged_pb2.Decision(number=1))
        with pytest.raises(grpc.RpcError) as raised:
            StagedStub(channel).CommitTransaction(decided, timeout=TIMEOUT_S)
        assert isinstance(rpc.from_rpc_error(raised.value, "broker"), AccessDenied)


def test_a_first_attempt_that_is_answered_as_repeated_is_an_error(world: World) -> None:
    with Producer(world.cluster.nameserver, credentials=world.alice) as producer:
        first = producer.send(Message(world.topic, b"first"))
        copied = [numbered_batch(first.batch.producer_id, first.batch.sequence + each, b"copy") for each in (1, 2)]
        with closing(rpc.open_channel(world.cluster.brokers[0].address, trust_of(world.alice))) as channel:
            append(broker_pb2_grpc.BrokerStub(channel), world.topic, copied)
        with pytest.raises(MinimqError, match="another batch with this producer's number"):
            producer.send(Message(world.topic, b"second"))
    assert sorted(world.bodies()) == [b"copy", b"copy", b"first"]
