"""The error of a send reports how many messages are stored, may be stored, and are not stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, aio, errors

MESSAGES = [Message("t", b"%d" % number) for number in range(10)]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("t", queues=1)
        yield cluster


def to_both(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """Select the first broker for even messages, the second one for odd ones."""
    return queues[int(message.body) % len(queues)]


def send(producer: Producer) -> None:
    producer.send(MESSAGES[1], selector=to_both)


def send_async(producer: Producer) -> None:
    producer.send_async(MESSAGES[1], selector=to_both).result()


def in_transaction(producer: Producer) -> None:
    with producer.transaction() as transaction:
        transaction.send(MESSAGES[1], selector=to_both)


def send_many(producer: Producer) -> None:
    producer.send_many(MESSAGES, selector=to_both)


def send_arrow(producer: Producer) -> None:
    rows = {"body": [each.body for each in MESSAGES], "queue_id": [*range(10)]}
    producer.send_arrow("t", pa.table(rows))


def send_many_by_asyncio(producer: Producer) -> None:
    async def run() -> None:
        async with aio.Producer(producer._core.client.cluster, send_timeout_s=0.5) as other:
            await other.send_many(MESSAGES, selector=to_both)

    asyncio.run(run())


#: Each way to send, and its numbers of messages for the first and the second broker.
WAYS: list[tuple[Callable[[Producer], None], int, int]] = [
    (send, 0, 1),
    (send_async, 0, 1),
    (in_transaction, 0, 1),
    (send_many, 5, 5),
    (send_arrow, 5, 5),
    (send_many_by_asyncio, 5, 5),
]


@pytest.mark.parametrize("is_paused", [True, False])
def test_the_error_counts_what_is_stored(cluster: LocalCluster, *, is_paused: bool) -> None:
    broker = cluster.brokers[1]
    with Producer(cluster.nameserver, send_timeout_s=0.5) as producer:
        producer.send_many(MESSAGES, selector=to_both)
        broker.pause() if is_paused else broker.stop()
        cluster.nameservers[0].pause()  # routes stay as they are, so that each way tries
        try:
            for way, stored, failed in WAYS:
                with pytest.raises(errors.SendFailed) as caught:
                    way(producer)
                error = caught.value
                in_doubt = failed if is_paused and way is not in_transaction else 0  # which asks before it sends
                found = error.stored, error.may_be_stored, error.not_stored
                assert found == (stored, in_doubt, failed - in_doubt), way
                assert not in_doubt or "may be stored" in str(error), way
        finally:
            cluster.nameservers[0].resume()
            if is_paused:
                broker.resume()
