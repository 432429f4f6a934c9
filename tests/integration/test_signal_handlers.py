"""Clients in signal handlers: refused while the same thread uses a client, and usable otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from types import FrameType

import pytest

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer, SendInterceptor
from minimq.errors import UsageError


@pytest.fixture
def handle() -> Iterator[Callable[[Callable[[], object]], list[str]]]:
    """Sets what a handler of SIGUSR1 does; returns the list of what became of that."""
    former = signal.getsignal(signal.SIGUSR1)

    def set_work(work: Callable[[], object]) -> list[str]:
        outcomes: list[str] = []

        def handler(number: int, frame: FrameType | None) -> None:
            try:
                work()
            except UsageError as error:
                outcomes.append(error.message)
            else:
                outcomes.append("done")

        signal.signal(signal.SIGUSR1, handler)
        return outcomes

    yield set_work
    signal.signal(signal.SIGUSR1, former)


def interrupt() -> None:
    """Have the handler run now, in the middle of what this thread does."""
    os.kill(os.getpid(), signal.SIGUSR1)


Handle = Callable[[Callable[[], object]], list[str]]


@pytest.mark.parametrize("what", ["flush", "close", "admin", "consumer"])
def test_a_handler_that_interrupts_a_call_is_refused(
    cluster: LocalCluster, topic: str, handle: Handle, what: str
) -> None:
    def selector(queues, message):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        interrupt()
        return queues[0]

    with (
        Producer(cluster.nameserver) as producer,
        Admin(cluster.nameserver) as admin,
        PullConsumer(cluster.nameserver, group=topic) as consumer,
    ):
        work: dict[str, Callable[[], object]] = {
            "flush": producer.flush,
            "close": producer.close,
            "admin": admin.list_topics,
            "consumer": lambda: consumer.poll(0),
        }
        outcomes = handle(work[what])
        assert producer.send(Message(topic, b"x"), selector=selector).queue.topic == topic
        [outcome] = outcomes
        assert outcome.startswith("a signal handler must not use a client")
        assert producer.send(Message(topic, b"y")).queue.topic == topic


@pytest.mark.parametrize("interceptors", [(), (SendInterceptor(),)], ids=["plain", "intercepted"])
def test_a_handler_may_send_in_the_middle_of_a_send(
    cluster: LocalCluster, topic: str, handle: Handle, interceptors: Sequence[SendInterceptor]
) -> None:
    def selector(queues, message):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        interrupt()
        return queues[0]

    with Producer(cluster.nameserver, interceptors=interceptors) as producer:
        for send in (producer.send, producer.send_async, producer.send_one_way):
            outcomes = handle(lambda send=send: send(Message(topic, b"of the handler")))  # type: ignore[misc]
            producer.send(Message(topic, b"interrupted"), selector=selector)
            assert outcomes == ["done"]
        producer.flush(30)
        assert producer.statistics().acknowledged == 6


def test_a_handler_may_use_a_client_that_nobody_uses(cluster: LocalCluster, topic: str, handle: Handle) -> None:
    with Producer(cluster.nameserver) as producer:
        outcomes = handle(lambda: producer.send(Message(topic, b"x")))
        interrupt()
        assert outcomes == ["done"]


def test_a_callback_is_no_handler(cluster: LocalCluster, topic: str, group: str) -> None:
    stored: list[object] = []
    with (
        Producer(cluster.nameserver) as producer,
        PullConsumer(
            cluster.nameserver,
            group=group,
            on_assigned=lambda *_: stored.append(producer.send(Message(topic, b"x")).status.name),
        ) as consumer,
    ):
        consumer.subscribe(topic)
        while not stored:
            consumer.poll(0.1)
    assert stored[0] == "SEND_OK"


@pytest.mark.parametrize("many", [False, True])
def test_a_signal_at_any_moment_hangs_and_loses_nothing(
    cluster: LocalCluster, topic: str, handle: Handle, many: bool
) -> None:
    sent = 0
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"the route is known"))

        def send() -> None:
            producer.send(Message(topic, b"of the handler"))
            signal.setitimer(signal.ITIMER_REAL, 0.0013)  # only now, or a slow machine would nest them without end

        outcomes = handle(send)
        signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGUSR1))
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        try:
            while len(outcomes) < 100:
                if many:
                    sent += len(producer.send_many(Message(topic, b"x") for _ in range(100)))
                else:
                    producer.send(Message(topic, b"x"))
                    sent += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        assert producer.statistics().acknowledged == 1 + sent + len(outcomes)
    assert set(outcomes) == {"done"}


def test_a_finalizer_that_runs_on_the_thread_of_a_client_must_not_wait_there(cluster: LocalCluster, topic: str) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"first"))
        said: SimpleQueue[str] = SimpleQueue()

        def finalize() -> None:
            for call in (lambda: producer.send(Message(topic, b"never")), producer.flush):
                try:
                    call()
                except UsageError as error:
                    said.put(error.message)
            producer.send_one_way(Message(topic, b"second"))
            said.put("done")

        producer._core.client.connection.call_soon(finalize)
        outcomes = [said.get(timeout=30.0) for _ in range(3)]
        assert [outcome.startswith("this is the thread of a client") for outcome in outcomes] == [True, True, False]
        producer.flush(30.0)
        assert producer.statistics().acknowledged == 2
