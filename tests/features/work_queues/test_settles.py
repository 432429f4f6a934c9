"""Acknowledgements that go together, and how they end, on a real event loop and without brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from minimq.connection.connection import Connection
from minimq.features.work_queues.pop_stream import Answered, SettleKey
from minimq.features.work_queues.settler import DONE, Settler
from minimq.features.work_queues.work_queue_message import ReceiptHandle, Span
from minimq_common.errors import Closed, HandleExpired
from minimq_common.model import MessageQueue
from support.waiting import wait_until

TIMEOUT_S = 60.0


class Brokers:
    """Stand for the streams to brokers: they answer when they are told to, and reject some offsets."""

    def __init__(self, connection: Connection) -> None:
        self.requests: list[tuple[str, list[int]]] = []
        self.expired: set[int] = set()
        self._connection = connection
        self._waiting: list[tuple[str, list[int], Answered]] = []
        self._answering: set[str] = set()

    def known_stream(self, queue: MessageQueue) -> Any:
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
            item[2]([(at, at + 1) for at in item[1] if at in self.expired], None)


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
    settler = Settler(client, "g", "c", TIMEOUT_S, connection.check_open)
    settler.known_stream = brokers.known_stream  # type: ignore[method-assign]
    return settler


@pytest.fixture
def acknowledge(connection: Connection, brokers: Brokers) -> Callable[..., Future[None]]:
    settler = made_settler(connection, brokers)

    def acknowledge(offset: int, name: str = "a") -> Future[None]:
        return settler.settle_soon(str(ReceiptHandle("g", MessageQueue("t", name, 0), offset, 1)), DONE)

    return acknowledge


def test_each_hears_what_is_true_of_its_own(brokers: Brokers, acknowledge: Callable[..., Future[None]]) -> None:
    brokers.expired = {3}
    futures = [acknowledge(at) for at in range(6)]
    brokers.may_answer("a")
    errors = [future.exception(TIMEOUT_S) for future in futures]
    assert [type(error) for error in errors] == [type(None)] * 3 + [HandleExpired] + [type(None)] * 2


def test_nobody_waits_for_a_broker_that_has_none_of_his_messages(
    brokers: Brokers, acknowledge: Callable[..., Future[None]]
) -> None:
    futures = [acknowledge(0, "b")]
    wait_until(lambda: brokers.requests, TIMEOUT_S)
    futures += [acknowledge(1, "b"), acknowledge(2, "b")]
    brokers.may_answer("a")
    acknowledge(3, "a").result(TIMEOUT_S)
    assert not any(future.done() for future in futures)
    brokers.may_answer("b")
    for future in futures:
        future.result(TIMEOUT_S)


def test_who_waits_hears_that_the_connection_was_closed(
    connection: Connection, brokers: Brokers, acknowledge: Callable[..., Future[None]]
) -> None:
    futures = [acknowledge(0)]
    wait_until(lambda: brokers.requests, TIMEOUT_S)
    futures.append(acknowledge(1))  # it waits for others
    connection.close()
    for future in futures:
        assert isinstance(future.exception(TIMEOUT_S), Closed)
    with pytest.raises(Closed):
        acknowledge(2)


def test_an_interrupted_acknowledgement_holds_up_no_later_one(
    monkeypatch: pytest.MonkeyPatch, connection: Connection, brokers: Brokers, acknowledge: Callable[..., Future[None]]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(connection, "call_soon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            acknowledge(0)
    brokers.may_answer("a")
    acknowledge(1).result(TIMEOUT_S)


def test_callbacks_run_on_a_thread_of_their_own(
    connection: Connection, brokers: Brokers, acknowledge: Callable[..., Future[None]]
) -> None:
    """They may block, and call the consumer."""
    brokers.may_answer("a")
    called: list[bool] = []
    acknowledge(0).add_done_callback(lambda _: called.append(connection.is_loop_thread))
    wait_until(lambda: called == [False], TIMEOUT_S)
