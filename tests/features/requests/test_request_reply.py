"""Requests and replies over real servers: each request has one reply, or an error that says why it has none."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PullConsumer, ReceivedMessage, Reply
from minimq.errors import Closed, DeadlineExceeded, InvalidArgument, MessageTooLarge, RequestFailed, TopicNotFound
from minimq.features.listeners.push_consumer import Mode
from support.replying import answer_to, echo, service
from support.waiting import wait_until

TIMEOUT_S = 30.0
#: Of requests that nobody answers.
SHORT_S = 2.5


def test_bodies_may_be_empty_or_as_large_as_those_of_messages(
    cluster: LocalCluster, producer: Producer, topic: str
) -> None:
    sizes = {b"empty": 0, b"large": 4 << 20, b"too large": (4 << 20) + (1 << 19)}
    with service(cluster.nameserver, topic, lambda messages: Reply(bytes(sizes[messages[0].body]))):
        assert producer.request(Message(topic, b"empty"), timeout=TIMEOUT_S) == Reply(b"")
        assert len(producer.request(Message(topic, b"large"), timeout=TIMEOUT_S).body) == 4 << 20
        with pytest.raises(DeadlineExceeded):
            producer.request(Message(topic, b"too large"), timeout=SHORT_S)
        assert producer.request(Message(topic, b"empty"), timeout=TIMEOUT_S) == Reply(b"")


# ---- no reply, and several ----------------------------------------------------------------------


def test_a_request_that_nobody_answers_ends_at_its_deadline_and_says_where_it_is(
    producer: Producer, topic: str
) -> None:
    with pytest.raises(DeadlineExceeded, match=rf"within 2.5 s: it is stored in queue {topic}/.* at offset 0"):
        producer.request(Message(topic, b"x"), timeout=SHORT_S)
    future = producer.request_async(Message(topic, b"x"), timeout=SHORT_S)
    with pytest.raises(DeadlineExceeded, match="has no reply yet"):
        future.result(TIMEOUT_S)
    with pytest.raises(TopicNotFound):
        producer.request(Message(f"{topic}-none", b"x"), timeout=SHORT_S)


def test_a_service_that_reports_an_error_is_heard(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    def listener(_: list[ReceivedMessage]) -> Reply:
        return Reply(b"details", {"status": "404"}, error="no such flight")

    with (
        service(cluster.nameserver, topic, listener),
        pytest.raises(RequestFailed, match=r"^no such flight$") as raised,
    ):
        producer.request(Message(topic, b"x"), timeout=TIMEOUT_S)
    assert (raised.value.body, raised.value.properties) == (b"details", {"status": "404"})


@pytest.mark.parametrize("mode", ["work_queue", "queues"])
def test_a_listener_that_fails_is_silent_until_its_next_try(
    cluster: LocalCluster, producer: Producer, topic: str, mode: Mode
) -> None:
    deliveries: list[int] = []

    def listener(messages: list[ReceivedMessage]) -> Reply:
        deliveries.append(messages[0].delivery_count)
        if len(deliveries) < 3:
            raise ValueError("not yet")
        return Reply(b"at last")

    options: dict[str, Any] = {"retry_delays_s": (0.05,), "batch_size": 1}
    with service(cluster.nameserver, topic, listener, mode=mode, **options):
        assert producer.request(Message(topic, b"x"), timeout=TIMEOUT_S).body == b"at last"
    assert deliveries == [1, 2, 3]


def test_a_list_of_results_answers_some_messages_and_retries_others(
    cluster: LocalCluster, producer: Producer, topic: str
) -> None:
    seen: list[bytes] = []

    def listener(messages: list[ReceivedMessage]) -> list[Reply | ConsumeResult]:
        results: list[Reply | ConsumeResult] = []
        for message in messages:
            is_first = message.body not in seen
            seen.append(message.body)
            fails = is_first and int(message.body) % 3 == 0
            results.append(ConsumeResult.RETRY_LATER if fails else Reply(answer_to(message.body)))
        return results

    with service(cluster.nameserver, topic, listener, batch_size=32, retry_delays_s=(0.05,)):
        futures = [producer.request_async(Message(topic, b"%d" % number), timeout=TIMEOUT_S) for number in range(30)]
        assert [future.result().body for future in futures] == [answer_to(b"%d" % number) for number in range(30)]
    assert len(seen) == 40


def test_a_reply_to_a_message_that_is_no_request_goes_nowhere(
    cluster: LocalCluster, producer: Producer, topic: str
) -> None:
    done = threading.Semaphore(0)

    def listener(messages: list[ReceivedMessage]) -> list[Reply]:
        done.release(len(messages))
        return echo(messages)

    rest = f"{'0' * 16}/{'0' * 24}/9999"
    hostile = ["", "/////", f"{topic}/broker-a/0/{rest}", f"%REPLY%/none/0/{rest}", f"%REPLY%/broker-a/9999/{rest}"]
    with service(cluster.nameserver, topic, listener):
        producer.send(Message(topic, b"x"))
        for value in hostile:
            producer.send(Message(topic, b"x", properties={"REPLY_TO": value}))
        for _ in range(len(hostile) + 1):
            assert done.acquire(timeout=TIMEOUT_S)
        assert producer.request(Message(topic, b"y"), timeout=TIMEOUT_S).body == answer_to(b"y")


# ---- who replies by itself ----------------------------------------------------------------------


def test_a_pull_consumer_replies_by_a_producer_and_of_two_replies_the_first_counts(
    cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    with PullConsumer(cluster.nameserver, group=group) as consumer, Producer(cluster.nameserver) as replier:
        consumer.subscribe(topic)
        future = producer.request_async(Message(topic, b"x"), timeout=TIMEOUT_S)
        [request] = wait_until(lambda: consumer.poll(timeout=1.0), TIMEOUT_S)
        replier.reply(request, Reply(b"one"))
        replier.reply(request, Reply(b"two"))
        assert future.result(TIMEOUT_S).body == b"one"
        replier.flush(TIMEOUT_S)
        wait_until(lambda: producer._requester.late_replies == 1, what="the second reply has come")


def test_what_is_no_reply_and_what_is_no_request_is_rejected(
    cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    with PullConsumer(cluster.nameserver, group=group) as consumer:
        consumer.subscribe(topic)
        producer.send(Message(topic, b"x"))
        [message] = wait_until(lambda: consumer.poll(timeout=1.0), TIMEOUT_S)
        with pytest.raises(InvalidArgument, match="it is not a request"):
            producer.reply(message, Reply(b""))
        with pytest.raises(InvalidArgument, match="the reply is a bytes"):
            producer.reply(message, b"")  # type: ignore[arg-type]
        with pytest.raises(MessageTooLarge):
            producer.reply(message, Reply(bytes((4 << 20) + 1)))
    for wrong, timeout, hint in (
        (Message(topic, b"x", properties={"REPLY_TO": "me"}), 1.0, "set by the request"),
        (Message(topic, b"x", deliver_after_s=10), 1.0, "delivered at once"),
        (Message(topic, b"x"), 0.0, "timeout"),
        (Message(topic, b"x"), 100_000.0, "timeout"),
    ):
        with pytest.raises(InvalidArgument, match=hint):
            producer.request(wrong, timeout=timeout)
    assert not len(producer._requester.open)


def test_requests_are_answered_again_after_the_topic_of_replies_was_deleted(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as single, Admin(single.nameserver) as admin:
        admin.create_topic("t", queues=1)
        with service(single.nameserver, "t"), Producer(single.nameserver) as producer:
            assert producer.request(Message("t", b"x"), timeout=TIMEOUT_S).body == answer_to(b"x")
            admin.delete_topic("%REPLY%")

            def is_answered() -> bool:
                with suppress(DeadlineExceeded, TopicNotFound):
                    return producer.request(Message("t", b"y"), timeout=SHORT_S).body == answer_to(b"y")
                return False

            wait_until(is_answered, TIMEOUT_S, what="replies have a topic again")


def test_replies_come_over_any_broker_and_expire(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as own, Admin(own.nameserver) as admin, ExitStack() as clients:
        admin.create_topic("t", queues=1, brokers=["broker-a"])
        clients.enter_context(service(own.nameserver, "t"))
        homes: set[str] = set()
        for number in range(100):
            producer = clients.enter_context(Producer(own.nameserver))
            assert producer.request(Message("t", b"%d" % number), timeout=TIMEOUT_S).body == answer_to(b"%d" % number)
            assert producer._requester.home is not None
            homes.add(producer._requester.home.queue.broker_name)
            if len(homes) == 2:
                break
        assert homes == {"broker-a", "broker-b"}
        admin.update_topic("%REPLY%", retention_s=1)

        def are_gone() -> bool:
            return all(queue.min_offset == queue.max_offset for queue in admin.describe_topic("%REPLY%").queues)

        wait_until(are_gone, TIMEOUT_S, what="replies expire")


# ---- the end ------------------------------------------------------------------------------------


def test_requests_that_are_open_when_their_producer_closes_end_with_closed(cluster: LocalCluster, topic: str) -> None:
    producer = Producer(cluster.nameserver)
    futures = [producer.request_async(Message(topic, b"x"), timeout=60) for _ in range(10)]
    producer.close()
    for future in futures:
        with pytest.raises(Closed, match="before the reply came"):
            future.result(TIMEOUT_S)
    with pytest.raises(Closed):
        producer.request(Message(topic, b"x"))


def test_ctrl_c_ends_a_request_and_leaves_nothing_behind(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    requests = producer._requester.open

    def interrupt() -> None:
        wait_until(lambda: len(requests) == 1, TIMEOUT_S)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        producer.request(Message(topic, b"x"), timeout=60)
    thread.join()
    assert not len(requests)
    with service(cluster.nameserver, topic):
        assert producer.request(Message(topic, b"y"), timeout=TIMEOUT_S).body == answer_to(b"y")
