"""Messages that a listener does not consume: they come again after growing waits, and end as dead letters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from minimq import (
    Admin,
    ConsumeResult,
    LocalCluster,
    Message,
    Permission,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from minimq.features.listeners import leased_source
from minimq_common.names import dead_letter_topic, retry_topic
from support.listening import Listener
from support.waiting import wait_until

TIMEOUT_S = 40.0
#: So many waits as there are by default, but short ones.
SHORT_S = tuple(0.02 * number for number in range(1, 17))


def fail_on(body: bytes, attempts: int = 1_000_000) -> Listener:
    """Return a listener that does not consume one message, the first so many times."""

    def answer(message: ReceivedMessage, times: int) -> ConsumeResult:
        return ConsumeResult.RETRY_LATER if message.body == body and times <= attempts else ConsumeResult.SUCCESS

    return Listener(answer)


def read_dead_letters(cluster: LocalCluster, group: str, count: int) -> list[ReceivedMessage]:
    topic = dead_letter_topic(group)
    with PullConsumer(cluster.nameserver, group=f"{group}-dead") as consumer:
        wait_until(lambda: topic in _topics(cluster), TIMEOUT_S, what="there are dead letters")
        consumer.subscribe(topic)
        found: list[ReceivedMessage] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.poll(0.2)
        return found


def _topics(cluster: LocalCluster) -> list[str]:
    with Admin(cluster.nameserver) as admin:
        return admin.list_topics()


def test_a_message_comes_again_after_growing_waits(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str, group: str
) -> None:
    delays_s = (0.2, 0.6, 1.2)
    listener = fail_on(b"bad", attempts=3)
    with PushConsumer(cluster.nameserver, group=group, retry_delays_s=delays_s) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        sent = producer.send(
            Message(topic, b"bad", tag="t", keys=["k1", "k2"], properties={"a": "1", "RETRY_TOPIC": "x"})
        )
        wait_until(lambda: listener.calls[b"bad"] == 4, TIMEOUT_S)
    waits = [later - earlier for earlier, later in pairwise(listener.times_of(b"bad"))]
    for wait, delay in zip(waits, delays_s, strict=True):
        assert wait >= delay - 0.01
    assert listener.delivery_counts_of(b"bad") == [1, 2, 3, 4]
    first, *again = [given.message for given in listener.given]
    for message in again:
        assert message.topic == topic
        assert message.queue.topic == retry_topic(group)
        assert (message.tag, message.keys) == ("t", ("k1", "k2"))
        assert message.properties == {"a": "1", "RETRY_TOPIC": "x"}
        assert message.message_id == first.message_id == sent.message_id
        assert message.born_at == first.born_at
    assert admin.committed_offsets(group, topic)[sent.queue] == 1
    assert sum(admin.committed_offsets(group, retry_topic(group)).values()) == 3
    assert [queue.queue.queue_id for queue in admin.describe_topic(retry_topic(group)).queues] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("how", ["retry", "exception", pytest.param("nonsense", marks=pytest.mark.long)])
def test_after_all_tries_a_message_is_a_dead_letter_with_all_it_had(
    cluster: LocalCluster, producer: Producer, topic: str, group: str, how: str
) -> None:
    def answer(message: ReceivedMessage, _: int) -> ConsumeResult:
        if how == "exception":
            raise RuntimeError("as told")
        return ConsumeResult.RETRY_LATER if how == "retry" else None  # type: ignore[return-value]

    listener = Listener(answer)
    with PushConsumer(cluster.nameserver, group=group, retry_delays_s=SHORT_S) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        sent = producer.send(Message(topic, b"bad", tag="t", keys=["k"], properties={"a": "1"}))
        [dead] = read_dead_letters(cluster, group, 1)
    assert listener.delivery_counts_of(b"bad") == list(range(1, 17))
    assert (dead.body, dead.tag, dead.keys) == (b"bad", "t", ("k",))
    properties = dict(dead.properties)
    first = listener.given[0].message
    assert int(properties.pop("ORIGIN_BORN")) == round(first.born_at.timestamp() * 1000)
    assert int(properties.pop("ORIGIN_STORED")) == round(first.stored_at.timestamp() * 1000)
    reasons = {"retry": "answered RETRY_LATER", "exception": "raised RuntimeError", "nonsense": "gave no valid answer"}
    assert properties == {
        "a": "1",
        "RETRY_TOPIC": topic,
        "ORIGIN_MESSAGE_ID": sent.message_id,
        "ORIGIN_QUEUE": str(sent.queue),
        "ORIGIN_OFFSET": "0",
        "DELIVERY_COUNT": "16",
        "CONSUMER_GROUP": group,
        "DEAD_LETTER_REASON": f"listener {reasons[how]}",
    }


def test_messages_that_wait_do_not_hold_a_queue_that_others_shall_have(
    cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    listener = fail_on(b"bad")
    with ExitStack() as stack:
        consumers = []
        for number in range(2):
            consumer = stack.enter_context(
                PushConsumer(cluster.nameserver, group=group, retry_delays_s=(60, 120), revoke_timeout_s=1000)
            )
            consumer.subscribe(topic)
            consumer.start(listener)
            consumers.append(consumer)
            if number == 0:
                producer.send_many([Message(topic, b"bad")] * 100)
                wait_until(lambda: listener.calls[b"bad"] == 100, TIMEOUT_S)
                wait_until(lambda: len(consumers[0].assignment) == 8 + 4, TIMEOUT_S, what="it has the retry queues")
        wait_until(lambda: [len(item.assignment) for item in consumers] == [6, 6], TIMEOUT_S, what="they share")
    assert listener.calls[b"bad"] == 100


def test_a_hanging_call_is_told_and_its_messages_are_tried_again(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def answer(message: ReceivedMessage, times: int) -> ConsumeResult:
        if message.body == b"hangs" and times == 1:
            go_on.wait(TIMEOUT_S)
        return ConsumeResult.SUCCESS

    listener = Listener(answer)
    with PushConsumer(
        cluster.nameserver, group=group, threads=2, consume_timeout_s=0.3, retry_delays_s=(0.1,)
    ) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        sent = producer.send(Message(topic, b"hangs"))
        wait_until(lambda: listener.calls[b"hangs"] == 2, TIMEOUT_S)
        wait_until(lambda: not consumer._runner.in_flight, TIMEOUT_S)
        go_on.set()
    assert listener.delivery_counts_of(b"hangs") == [1, 2]
    told = [record.getMessage() for record in caplog.records if "has not returned" in record.getMessage()]
    assert len(told) == 1
    assert f"queue={sent.queue} offset=0" in told[0]
    assert admin.committed_offsets(group, topic)[sent.queue] == 1


# ---- faults -------------------------------------------------------------------------------------

CONSUMER = """
import os, signal, sys, time
from minimq import ConsumeResult, PushConsumer
nameserver, group, topic, moment = sys.argv[1:]
def listen(messages):
    if moment == "before":
        print(messages[0].body.decode(), flush=True)
        time.sleep(60)
    return ConsumeResult.RETRY_LATER
consumer = PushConsumer(nameserver, group=group, threads=4, batch_size=5, retry_delays_s=(0.3,), commit_interval_s=0.01)
send = consumer._reader._sender._send
def killed(failed, sent):
    send(failed[: len(failed) // 2], sent)
    print("half", flush=True)
    time.sleep(60)
if moment == "between":
    consumer._reader._sender._send = killed
consumer.subscribe(topic)
consumer.start(listen)
time.sleep(60)
"""


@pytest.mark.fault
@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.long), "between"])
def test_a_consumer_that_is_killed_while_it_fails_loses_nothing(
    cluster: LocalCluster, producer: Producer, topic: str, group: str, moment: str
) -> None:
    """Killed before the listener has answered, or when half of what failed was sent to the retry topic."""
    sent = {b"%d" % number for number in range(100)}
    producer.send_many(Message(topic, body) for body in sorted(sent))
    process = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, cluster.nameserver, group, topic, moment],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()
    listener = Listener()
    with PushConsumer(cluster.nameserver, group=group, retry_delays_s=(0.3,)) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        wait_until(lambda: set(listener.calls) == sent, TIMEOUT_S, what="all is consumed")


EXITING = """
import sys, threading, time
from minimq import ConsumeResult, PushConsumer
def listen(messages):
    print("called", flush=True)
    sys.stdin.readline()
    return ConsumeResult.RETRY_LATER
consumer = PushConsumer(sys.argv[1], group="g", request_timeout_s=600.0)
consumer.subscribe("t")
consumer.start(listen)
while consumer._reader._sender._round is None:
    time.sleep(0.01)
print([each.name for each in threading.enumerate() if each.name.startswith("asyncio_")], flush=True)
"""


@pytest.mark.fault
def test_the_exit_of_a_program_does_not_wait_for_copies(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("t", queues=1)
        with Producer(cluster.nameserver) as producer:
            producer.send(Message("t", b"x"))
        with subprocess.Popen(
            [sys.executable, "-c", EXITING, cluster.nameserver],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "called\n"
                broker = cluster.brokers[0].pid
                assert broker is not None
                os.kill(broker, signal.SIGSTOP)
                try:
                    process.stdin.write("go on\n")
                    process.stdin.flush()
                    assert process.stdout.readline() == "[]\n"
                    assert process.wait(TIMEOUT_S) == 0
                finally:
                    os.kill(broker, signal.SIGCONT)
            finally:
                process.kill()


@pytest.mark.fault
def test_while_copies_cannot_be_sent_messages_stay_in_flight_and_are_tried_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both brokers take nothing for a while; the message is tried again without them, and later through them."""
    monkeypatch.setattr(leased_source, "RETRY_SEND_DELAY_S", 0.1)
    listener = fail_on(b"bad", attempts=4)
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("t", queues=2)
        with PushConsumer(cluster.nameserver, group="g", retry_delays_s=(0.1,), request_timeout_s=1.0) as consumer:
            with Producer(cluster.nameserver) as producer:
                sent = producer.send(Message("t", b"bad"))
            for broker in cluster.brokers:
                admin.set_broker_permission(broker.name, Permission.READ)
            consumer.subscribe("t")
            consumer.start(listener)
            wait_until(lambda: listener.calls[b"bad"] >= 3, TIMEOUT_S)
            assert not sum(admin.committed_offsets("g", "t").values())
            for broker in cluster.brokers:
                admin.set_broker_permission(broker.name, Permission.READ_WRITE)
            wait_until(lambda: listener.calls[b"bad"] == 5, TIMEOUT_S)
        assert listener.delivery_counts_of(b"bad") == [1, 2, 3, 4, 5]
        assert admin.committed_offsets("g", "t")[sent.queue] == 1


@pytest.mark.fault
def test_copies_go_to_a_broker_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased_source, "RETRY_SEND_DELAY_S", 0.2)
    listener = Listener(lambda message, times: ConsumeResult.RETRY_LATER if times == 1 else ConsumeResult.SUCCESS)
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        held = threading.Event()

        def listen(messages: list[ReceivedMessage]) -> object:
            held.wait(TIMEOUT_S)
            return listener(messages)

        with PushConsumer(cluster.nameserver, group="g", retry_delays_s=(0.1,), request_timeout_s=1.0) as consumer:
            with Producer(cluster.nameserver) as producer:
                sent = producer.send(Message("t", b"bad"))
            consumer.subscribe("t")
            consumer.start(listen)  # type: ignore[arg-type]
            wait_until(lambda: len(consumer._runner.in_flight) == 1, TIMEOUT_S)
            next(broker for broker in cluster.brokers if broker.name == sent.queue.broker_name).kill()
            held.set()
            wait_until(lambda: listener.calls[b"bad"] == 2, TIMEOUT_S)
        assert listener.given[-1].message.queue.broker_name != sent.queue.broker_name
