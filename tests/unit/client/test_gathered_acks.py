"""Acknowledgements of many calls that go together, on a real event loop and without brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from minimq.connection.connection import Connection
from minimq.receiving.received import ReceivedBatch
from minimq.receiving.work_queues.gathered_acks import GatheredAcks
from minimq.receiving.work_queues.popped import PoppedMessage, ReceiptHandle, Receipts, receipts_of
from minimq_common.errors import Closed, DeadlineExceeded, HandleExpired, InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue

QUEUE = MessageQueue("t", "broker-a", 0)
PATIENCE_S = 60.0


class Broker:
    """Settles when it is told to; refuses some offsets."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.refused: dict[int, MiniMQError] = {}

    async def settle(self, receipts: Receipts) -> None:
        offsets = [at for spans in receipts.values() for first, end in spans for at in range(first, end)]
        self.requests.append(offsets)
        await self.may_answer.wait()
        for at in offsets:
            if at in self.refused:
                raise self.refused[at]


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection(["127.0.0.1:1"])
    yield made
    made.close()


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def acknowledge(connection: Connection, broker: Broker) -> Callable[[int], Future[None]]:
    acks = GatheredAcks(connection, broker.settle)
    return lambda offset: acks.add({(QUEUE, 1): [(offset, offset + 1)]})


def test_what_comes_while_others_are_under_way_goes_together(
    connection: Connection, broker: Broker, acknowledge: Callable[[int], Future[None]]
) -> None:
    futures = [acknowledge(0)]
    while not broker.requests:
        pass
    futures += [acknowledge(at) for at in range(1, 200)]
    connection.call_soon(broker.may_answer.set)
    for future in futures:
        future.result(PATIENCE_S)
    assert broker.requests[0] == [0]  # it waits for nobody
    assert sorted(at for request in broker.requests for at in request) == [*range(200)]
    assert len(broker.requests) < 100


def test_each_hears_what_is_true_of_its_own(
    connection: Connection, broker: Broker, acknowledge: Callable[[int], Future[None]]
) -> None:
    broker.refused = {3: HandleExpired("late", ["h"])}
    futures = [acknowledge(at) for at in range(6)]
    connection.call_soon(broker.may_answer.set)
    errors = [future.exception(PATIENCE_S) for future in futures]
    assert [type(error) for error in errors] == [type(None)] * 3 + [HandleExpired] + [type(None)] * 2


def test_nobody_waits_for_a_broker_that_has_none_of_his_messages(connection: Connection) -> None:
    requests: list[set[str]] = []
    may_answer = asyncio.Event()

    async def settle(receipts: Receipts) -> None:
        requests.append({queue.broker_name for queue, _ in receipts})
        if {"broker-b"} <= requests[-1]:
            await may_answer.wait()

    acks = GatheredAcks(connection, settle)

    def acknowledge(broker: str) -> Future[None]:
        return acks.add({(MessageQueue("t", broker, 0), 1): [(0, 1)]})

    futures = [acknowledge("broker-b")]
    while not requests:
        pass
    futures += [acknowledge("broker-b"), acknowledge("broker-b")]
    acknowledge("broker-a").result(PATIENCE_S)
    assert not any(future.done() for future in futures)
    connection.call_soon(may_answer.set)
    for future in futures:
        future.result(PATIENCE_S)
    assert all(len(brokers) == 1 for brokers in requests)


def test_without_an_answer_nobody_tries_again(
    connection: Connection, broker: Broker, acknowledge: Callable[[int], Future[None]]
) -> None:
    error = DeadlineExceeded("no answer")
    error.answered = False  # type: ignore[misc]
    broker.refused = dict.fromkeys(range(6), error)
    futures = [acknowledge(at) for at in range(6)]
    connection.call_soon(broker.may_answer.set)
    assert all(future.exception(PATIENCE_S) is error for future in futures)
    assert sorted(at for request in broker.requests for at in request) == [*range(6)]


def test_who_waits_hears_that_the_connection_was_closed(
    connection: Connection, broker: Broker, acknowledge: Callable[[int], Future[None]]
) -> None:
    futures = [acknowledge(0)]
    while not broker.requests:
        pass
    futures.append(acknowledge(1))  # it waits for others
    connection.close()
    for future in futures:
        assert isinstance(future.exception(PATIENCE_S), Closed)
    with pytest.raises(Closed):
        acknowledge(2)


def test_what_is_cancelled_in_time_is_not_acknowledged(
    connection: Connection, broker: Broker, acknowledge: Callable[[int], Future[None]]
) -> None:
    first = acknowledge(0)
    while not broker.requests:
        pass
    second, third = acknowledge(1), acknowledge(2)
    assert second.cancel()
    assert not first.cancel()
    connection.call_soon(broker.may_answer.set)
    third.result(PATIENCE_S)
    assert broker.requests == [[0], [2]]


def test_neighbors_have_one_receipt() -> None:
    class Batch:
        def __init__(self, base_offset: int) -> None:
            self.queue, self.base_offset = QUEUE, base_offset

    def message(batch: ReceivedBatch, index: int, epoch: int = 1, group: str = "g") -> PoppedMessage:
        return PoppedMessage(batch, index, b"", None, 1, epoch, group)

    one: Any = Batch(10)
    two: Any = Batch(50)
    handle = str(ReceiptHandle("g", QUEUE, 99, 2))
    messages = [message(one, at) for at in range(5)] + [message(one, 7), message(two, 8), message(one, 9, epoch=2)]
    assert receipts_of([*messages, handle], "g") == {
        (QUEUE, 1): [(10, 15), (17, 18), (58, 59)],
        (QUEUE, 2): [(99, 100), (19, 20)],
    }
    assert receipts_of(messages[0], "g") == {(QUEUE, 1): [(10, 11)]}
    for wrong in ([*messages, message(two, 9, group="other")], [*messages, 7], "no handle", b"bytes"):
        with pytest.raises(InvalidArgument):
            receipts_of(wrong, "g")  # type: ignore[arg-type]
