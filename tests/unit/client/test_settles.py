"""Acknowledgements of many calls that go together, on a real event loop and without brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from minimq.connection.connection import Connection
from minimq.receiving.work_queues.pop_stream import Answered, SettleKey
from minimq.receiving.work_queues.popped import ReceiptHandle, Span
from minimq.receiving.work_queues.settler import Settler
from minimq_common.errors import Closed, DeadlineExceeded, HandleExpired, MiniMQError
from minimq_common.model import MessageQueue
from support.waiting import wait_until

PATIENCE_S = 60.0


class Brokers:
    """Stand for the streams to brokers: they answer when they are told to, and refuse some offsets."""

    def __init__(self, connection: Connection) -> None:
        self.requests: list[tuple[str, list[int]]] = []
        self.expired: set[int] = set()
        self.error: MiniMQError | None = None
        self._connection = connection
        self._waiting: list[tuple[str, list[int], Answered]] = []
        self._answering: set[str] = set()

    async def stream_of(self, queue: MessageQueue) -> Any:
        return SimpleNamespace(settle=partial(self._settle, queue.broker_name))

    def _settle(self, name: str, _: SettleKey, spans: Sequence[Span], answered: Answered) -> None:
        offsets = [at for first, end in spans for at in range(first, end)]
        self.requests.append((name, offsets))
        self._waiting.append((name, offsets, answered))
        self._connection.call_soon(self._answer)

    def may_answer(self, *names: str) -> None:
        self._answering.update(names)
        self._connection.call_soon(self._answer)

    def _answer(self) -> None:
        for item in [item for item in self._waiting if item[0] in self._answering]:
            self._waiting.remove(item)
            item[2]([(at, at + 1) for at in item[1] if at in self.expired], self.error)


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection(["127.0.0.1:1"])
    yield made
    made.close()


@pytest.fixture
def brokers(connection: Connection) -> Brokers:
    return Brokers(connection)


def made_settler(connection: Connection, brokers: Brokers) -> Settler:
    routes = SimpleNamespace(refresh_soon=lambda _: None)
    client: Any = SimpleNamespace(connection=connection, routes=routes)
    settler = Settler(client, "g", "c", PATIENCE_S, connection.check_open)
    settler.stream_of = brokers.stream_of  # type: ignore[method-assign]
    return settler


@pytest.fixture
def acknowledge(connection: Connection, brokers: Brokers) -> Callable[..., Future[None]]:
    settler = made_settler(connection, brokers)

    def acknowledge(offset: int, name: str = "a") -> Future[None]:
        return settler.ack_soon(str(ReceiptHandle("g", MessageQueue("t", name, 0), offset, 1)))

    return acknowledge


def test_what_comes_while_others_are_under_way_goes_together(
    brokers: Brokers, acknowledge: Callable[..., Future[None]]
) -> None:
    futures = [acknowledge(0)]
    wait_until(lambda: brokers.requests, PATIENCE_S)
    futures += [acknowledge(at) for at in range(1, 200)]
    brokers.may_answer("a")
    for future in futures:
        future.result(PATIENCE_S)
    assert brokers.requests[0] == ("a", [0])  # it waits for nobody
    assert sorted(at for _, offsets in brokers.requests for at in offsets) == [*range(200)]
    assert len(brokers.requests) < 100


def test_each_hears_what_is_true_of_its_own(brokers: Brokers, acknowledge: Callable[..., Future[None]]) -> None:
    brokers.expired = {3}
    futures = [acknowledge(at) for at in range(6)]
    brokers.may_answer("a")
    errors = [future.exception(PATIENCE_S) for future in futures]
    assert [type(error) for error in errors] == [type(None)] * 3 + [HandleExpired] + [type(None)] * 2


def test_without_an_answer_nobody_tries_again(brokers: Brokers, acknowledge: Callable[..., Future[None]]) -> None:
    error = DeadlineExceeded("no answer")
    error.answered = error.retriable = False  # type: ignore[misc]
    brokers.error = error
    futures = [acknowledge(at) for at in range(6)]
    brokers.may_answer("a")
    assert all(future.exception(PATIENCE_S) is error for future in futures)
    assert sorted(at for _, offsets in brokers.requests for at in offsets) == [*range(6)]


def test_who_waits_hears_that_the_connection_was_closed(
    connection: Connection, brokers: Brokers, acknowledge: Callable[..., Future[None]]
) -> None:
    futures = [acknowledge(0)]
    wait_until(lambda: brokers.requests, PATIENCE_S)
    futures.append(acknowledge(1))  # it waits for others
    connection.close()
    for future in futures:
        assert isinstance(future.exception(PATIENCE_S), Closed)
    with pytest.raises(Closed):
        acknowledge(2)


def test_callbacks_run_on_a_thread_of_their_own(
    connection: Connection, brokers: Brokers, acknowledge: Callable[..., Future[None]]
) -> None:
    """They may block, and call the consumer."""
    brokers.may_answer("a")
    called: list[bool] = []
    acknowledge(0).add_done_callback(lambda _: called.append(connection.is_loop_thread))
    wait_until(lambda: called == [False], PATIENCE_S)
