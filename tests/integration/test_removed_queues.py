"""A queue is removed while producers do not know yet: messages of a key go to the remaining queues."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa
import pytest

from minimq import (
    Admin,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    TransactionalProducer,
    TransactionResolution,
    by_hash,
    errors,
)
from minimq_proto.v1 import broker_pb2
from minimq_proto.v1.broker_pb2_grpc import BrokerStub
from support.waiting import wait_until

#: Its queue is not the first one.
KEY = "customer-2"


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("plain", queues=8)
        admin.create_topic("fifo", queues=8, fifo=True)
        yield cluster


def remove_queues(cluster: LocalCluster, *topics: str) -> None:
    with grpc.insecure_channel(cluster.brokers[0].address) as channel:
        for topic in topics:
            BrokerStub(channel).UpdateTopic(
                broker_pb2.UpdateTopicRequest(topic=topic, read_queues=1, write_queues=1, force=True)
            )


def test_every_way_to_send_goes_on_while_queues_are_removed(cluster: LocalCluster) -> None:
    message, in_order = Message("plain", b"x", keys=[KEY]), Message("fifo", b"x", message_group=KEY)
    rows = pa.table({"body": [b"x"], "sharding_key": [KEY]})
    with (
        Producer(cluster.nameserver, send_timeout_s=60) as producer,
        TransactionalProducer(
            cluster.nameserver, group="g", check=lambda _: TransactionResolution.COMMIT, send_timeout_s=60
        ) as halves,
        ThreadPoolExecutor() as pool,
    ):

        def in_transaction() -> MessageQueue:
            with producer.transaction() as transaction:
                transaction.send(message, selector=by_hash())
            return transaction.receipts[0].queue

        def as_half_message() -> None:
            with halves.transaction() as half:
                half.send(in_order)

        assert producer.send(message, selector=by_hash()).queue.queue_id
        assert producer.send(in_order).queue.queue_id
        as_half_message()
        [nameserver] = cluster.nameservers
        nameserver.pause()  # routes stay as they are
        try:
            remove_queues(cluster, "plain", "fifo")
            with pytest.raises(errors.QueueNotFound):
                producer.send(message, queue=MessageQueue("plain", "broker-a", 7))
            sends = [
                pool.submit(lambda: producer.send(message, selector=by_hash()).queue),
                pool.submit(lambda: producer.send(in_order).queue),
                pool.submit(lambda: producer.send_many([message, message], selector=by_hash())[1].queue),
                pool.submit(lambda: producer.send_arrow("plain", rows)[0].queue),
                pool.submit(in_transaction),
            ]
            half = pool.submit(as_half_message)
            wait_until(lambda: producer.statistics().retries >= 4)
        finally:
            nameserver.resume()
        assert {send.result().queue_id for send in sends} == {0}
        half.result()
