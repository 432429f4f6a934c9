"""Spans and metrics of OpenTelemetry, of clients of a real broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.b3 import B3MultiFormat, B3SingleFormat
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from minimq import (
    Admin,
    ConsumeResult,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Reply,
    WorkQueueConsumer,
    aio,
)
from minimq.errors import InvalidArgument
from minimq.features.half_messages.resolutions import TransactionResolution
from minimq.otel import processing
from support.command import environment
from support.spans import Telemetry, attributes_of, parent_of, trace_of
from support.waiting import wait_until

TIMEOUT_S = 30.0


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    with made.instrumented():
        yield made
    made.close()


def test_a_message_its_tries_its_dead_letter_and_its_resend_are_one_trace(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str], telemetry: Telemetry
) -> None:
    group, done, is_mended = new_name(), threading.Event(), threading.Event()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        if not is_mended.is_set():
            raise OSError("the printer is out of paper")
        done.set()
        return ConsumeResult.SUCCESS

    with (
        PushConsumer(cluster.nameserver, group=group, max_deliveries=2, retry_delays_s=(0.01,)) as consumer,
        Admin(cluster.nameserver) as admin,
    ):
        consumer.subscribe(topic)
        with Producer(cluster.nameserver) as producer:
            receipt = producer.send(Message(topic, b"paper"))
        consumer.start(listener)
        wait_until(lambda: bool(telemetry.named(f"send %DLQ%{group}")), TIMEOUT_S)
        is_mended.set()
        admin.resend_dead_letters(group)
        assert done.wait(TIMEOUT_S)

    # A dead letter that is resent to another broker has a span of its own.
    [sent] = [span for span in telemetry.named(f"send {topic}") if not span.links]
    processed = telemetry.named(f"process {topic}")
    [retried], [buried] = telemetry.named(f"send %RETRY%{group}"), telemetry.named(f"send %DLQ%{group}")
    assert sent.context is not None
    assert len(processed) == 3
    for span in (*processed, retried, buried):
        assert trace_of(span) == trace_of(sent)
        assert parent_of(span) == sent.context.span_id
        assert [link.context.span_id for link in span.links] == [sent.context.span_id]
    assert [span.kind for span in (sent, processed[0], retried)] == [
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.CLIENT,
    ]
    assert [span.status.status_code for span in processed] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert [span.attributes and span.attributes.get("error.type") for span in processed] == [
        "builtins.OSError",
        "builtins.OSError",
        None,
    ]
    assert [
        span.attributes and span.attributes["messaging.minimq.message.delivery_count"] for span in processed[:2]
    ] == [1, 2]
    assert attributes_of(sent) == {
        "messaging.system": "minimq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": f"{receipt.queue.broker_name}/{receipt.queue.queue_id}",
        "messaging.message.id": receipt.message_id,
        "messaging.minimq.message.offset": receipt.queue_offset,
    }
    first = attributes_of(processed[0])
    assert first.pop("messaging.client.id") == consumer.client_id
    assert first == attributes_of(sent) | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": group,
        "messaging.minimq.message.delivery_count": 1,
        "error.type": "builtins.OSError",
    }


def test_a_request_and_what_its_listener_sends_are_one_trace(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str], telemetry: Telemetry
) -> None:
    other = new_name()
    with Admin(cluster.nameserver) as admin:
        admin.create_topic(other, queues=1)
    with Producer(cluster.nameserver) as producer:

        def listener(messages: list[ReceivedMessage]) -> Reply:
            producer.send(Message(other, b"log"))
            return Reply(messages[0].body.upper())

        with PushConsumer(cluster.nameserver, group=new_name(), batch_size=1) as consumer:
            consumer.subscribe(topic)
            consumer.start(listener)
            with telemetry.tracers.get_tracer("shop").start_as_current_span("order") as order:
                assert producer.request(Message(topic, b"hello"), timeout=TIMEOUT_S).body == b"HELLO"
            wait_until(lambda: bool(telemetry.named(f"process {topic}")), TIMEOUT_S)
    [asked], [processed], [noted] = (
        telemetry.named(name) for name in (f"send {topic}", f"process {topic}", f"send {other}")
    )
    assert asked.context is not None
    assert processed.context is not None
    assert parent_of(asked) == order.get_span_context().span_id
    assert parent_of(processed) == asked.context.span_id
    assert parent_of(noted) == processed.context.span_id
    assert trace_of(noted) == order.get_span_context().trace_id


def test_many_messages_have_one_span_and_those_who_get_them_links(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str], telemetry: Telemetry
) -> None:
    group = new_name()
    with Producer(cluster.nameserver) as producer:
        producer.send_many(Message(topic, b"%d" % number, properties={"n": str(number)}) for number in range(300))
        producer.send(Message(topic, b"last"))
        with pytest.raises(InvalidArgument):
            producer.send_many([Message(topic, b"good"), Message(topic, b"bad", tag="a" * 256)])
    found: list[ReceivedMessage] = []
    with PullConsumer(cluster.nameserver, group=group) as consumer:
        consumer.subscribe(topic)

        def has_all() -> bool:
            found.extend(consumer.poll(1.0))
            return len(found) >= 301

        wait_until(has_all, TIMEOUT_S)
    many, one, bad = (span for span in telemetry.named(f"send {topic}"))
    assert many.context is not None
    assert one.context is not None
    assert attributes_of(many)["messaging.batch.message_count"] == 300
    assert "messaging.batch.message_count" not in attributes_of(one)
    assert attributes_of(bad)["error.type"] == "InvalidArgument"
    assert bad.status.status_code is StatusCode.ERROR
    received = telemetry.named(f"receive {topic}")
    assert sum(map(count_of, received)) == 301
    linked = {link.context.span_id for span in received for link in span.links}
    assert linked == {many.context.span_id, one.context.span_id}
    assert all(span.kind is SpanKind.CLIENT and span.parent is None for span in received)
    assert found[0].properties.keys() >= {"n", "traceparent"} or found[0].body == b"last"

    [sent] = [
        point
        for point in telemetry.points("messaging.client.sent.messages")
        if dict(point.attributes).get("messaging.destination.name") == topic
        and "error.type" not in dict(point.attributes)
    ]
    assert sent.value == 301
    consumed = telemetry.points("messaging.client.consumed.messages")
    assert sum(point.value for point in consumed) == 301
    assert {dict(point.attributes)["messaging.consumer.group.name"] for point in consumed} == {group}
    durations = telemetry.points("messaging.client.operation.duration")
    assert {dict(point.attributes)["messaging.operation.name"] for point in durations} == {"send", "receive"}
    assert durations[0].explicit_bounds[0] == 0.005


def test_a_work_queue_and_what_the_application_does_with_a_message(
    cluster: LocalCluster,
    topic: str,
    new_name: Callable[[], str],
    telemetry: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"1"))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", telemetry.tracers)  # which can be set once only in a process
    with WorkQueueConsumer(cluster.nameserver, group=new_name()) as consumer:
        consumer.subscribe(topic)
        [message] = consumer.receive(timeout=TIMEOUT_S)

        def work() -> None:
            with processing(message, group=consumer.group):
                consumer.extend(message)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        consumer.ack(message.handle)
    [sent], [received], [processed], [extended], [settled] = (
        telemetry.named(name)
        for name in (f"send {topic}", f"receive {topic}", f"process {topic}", f"extend {topic}", "ack")
    )
    assert processed.context is not None
    assert trace_of(processed) == trace_of(extended) == trace_of(sent) != trace_of(received)
    assert parent_of(extended) == processed.context.span_id
    assert attributes_of(processed)["error.type"] == "builtins.ZeroDivisionError"
    assert [link.context.trace_id for link in received.links] == [trace_of(sent)]
    assert attributes_of(settled)["messaging.operation.type"] == "settle"


def test_many_messages_with_contexts_of_others_are_linked_and_links_are_bounded(
    cluster: LocalCluster,
    topic: str,
    new_name: Callable[[], str],
    telemetry: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts = [f"00-0af7651916cd43dd8448eb211c80319c-{number:016x}-01" for number in range(1, 201)]
    with Producer(cluster.nameserver) as producer, WorkQueueConsumer(cluster.nameserver, group=new_name()) as consumer:
        consumer.subscribe(topic)
        producer.send_many(
            [Message(topic, b"x", properties={"traceparent": context}) for context in contexts],
            queue=MessageQueue(topic, "broker-a", 0),
        )
        messages = list[ReceivedMessage]()
        while len(messages) < len(contexts):
            messages += consumer.receive(200, timeout=TIMEOUT_S)
    assert {message.properties["traceparent"] for message in messages} == set(contexts)
    found = telemetry.named(f"send {topic}")
    assert len(found) == 1, [(each.name, dict(each.attributes or {}), each.links, each.kind) for each in found]
    [sent] = found
    assert len(sent.links) == 128
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", telemetry.tracers)  # which can be set once only in a process
    with processing(messages):
        pass
    [processed] = telemetry.named(f"process {topic}")
    assert len({link.context.span_id for link in processed.links}) == 128


def test_a_message_that_is_not_even_handed_in_has_a_span_with_the_error(
    cluster: LocalCluster, telemetry: Telemetry
) -> None:
    with Producer(cluster.nameserver) as producer, pytest.raises(InvalidArgument):
        producer.send(Message("no topic", b"1"))
    [span] = telemetry.named("send no topic")
    assert attributes_of(span)["error.type"] == "InvalidArgument"


def test_asyncio(cluster: LocalCluster, topic: str, new_name: Callable[[], str], telemetry: Telemetry) -> None:
    inside: list[int] = []

    async def run() -> None:
        done = asyncio.Event()

        async def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
            await asyncio.sleep(0)
            inside.append(trace.get_current_span().get_span_context().trace_id)
            if len(inside) == 5:
                done.set()
            return ConsumeResult.SUCCESS

        async with (
            aio.Producer(cluster.nameserver) as producer,
            aio.PushConsumer(cluster.nameserver, group=new_name(), mode="work_queue") as consumer,
            aio.TransactionalProducer(
                cluster.nameserver, group=new_name(), check=lambda _: TransactionResolution.ROLLBACK
            ) as checked,
        ):
            consumer.subscribe(topic)
            await consumer.start(listener)
            await asyncio.gather(*(producer.send(Message(topic, b"%d" % number)) for number in range(3)))
            async with producer.transaction() as tx:
                tx.send(Message(topic, b"4"))
            async with checked.transaction() as half:
                await half.send(Message(topic, b"5"))
            await asyncio.wait_for(done.wait(), TIMEOUT_S)

    asyncio.run(run())
    sent = {trace_of(span) for span in telemetry.named(f"send {topic}")}
    assert len(sent) == 5
    assert {trace_of(span) for span in telemetry.named(f"process {topic}")} == sent == set(inside)


GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("state", ["a=b,c=d", "no pairs", "x=" + "y" * 30_000, "\u00e4=\u00f6"])
def test_the_context_of_whoever_made_a_message_is_kept(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str], telemetry: Telemetry, state: str
) -> None:
    received = through(cluster, new_name(), Message(topic, b"1", properties={"traceparent": GOOD, "tracestate": state}))
    assert received.properties == {"traceparent": GOOD, "tracestate": state}
    [span] = telemetry.named(f"send {topic}")
    assert span.kind is SpanKind.CLIENT
    assert f"{trace_of(span):032x}" == GOOD[3:35]
    assert [link.context.trace_state.to_header() for link in span.links] == [state if state == "a=b,c=d" else ""]


@pytest.mark.parametrize(
    "propagator", [B3SingleFormat(), B3MultiFormat(), propagate.get_global_textmap()], ids=["b3", "b3multi", "default"]
)
def test_the_propagators_of_the_process_write_and_read_the_context(
    cluster: LocalCluster,
    topic: str,
    new_name: Callable[[], str],
    telemetry: Telemetry,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    propagator: TextMapPropagator,
) -> None:
    former = propagate.get_global_textmap()
    request.addfinalizer(lambda: propagate.set_global_textmap(former))
    propagate.set_global_textmap(propagator)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", telemetry.tracers)  # which can be set once only in a process
    heard = list[tuple[set[str], object]]()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        heard.append((set(messages[0].properties), baggage.get_baggage("tenant")))
        return ConsumeResult.SUCCESS

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        received = through(cluster, new_name(), Message(topic, b"1"))
    finally:
        context.detach(token)
    with processing(received):
        tenant = baggage.get_baggage("tenant")
    with PushConsumer(cluster.nameserver, group=new_name()) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        wait_until(lambda: heard, timeout=TIMEOUT_S)
    found = telemetry.named(f"send {topic}")
    assert len(found) == 1, [(each.name, dict(each.attributes or {}), each.links, each.kind) for each in found]
    [sent] = found
    processed = telemetry.named(f"process {topic}")
    wanted = "acme" if "baggage" in propagator.fields else None
    assert heard == [(propagator.fields - {"tracestate"}, wanted)]
    assert tenant == wanted
    assert [parent_of(span) for span in processed] == [sent.context and sent.context.span_id] * 2
    assert baggage.get_baggage("tenant") is None


def count_of(span: ReadableSpan) -> int:
    count = attributes_of(span).get("messaging.batch.message_count", 1)
    assert isinstance(count, int)
    return count


def through(cluster: LocalCluster, group: str, message: Message) -> ReceivedMessage:
    with Producer(cluster.nameserver) as producer, WorkQueueConsumer(cluster.nameserver, group=group) as consumer:
        producer.send(message)
        consumer.subscribe(message.topic)
        [received] = consumer.receive(timeout=TIMEOUT_S)
        return received


def test_the_command_that_instruments_a_program_finds_minimq(cluster: LocalCluster, topic: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from minimq import Message, Producer, WorkQueueConsumer\n"
        "address, topic = sys.argv[1:]\n"
        "with Producer(address) as producer, WorkQueueConsumer(address, group='instrumented') as consumer:\n"
        "    producer.send(Message(topic, b'1'))\n"
        "    consumer.subscribe(topic)\n"
        "    consumer.ack(consumer.receive(timeout=30))\n"
    )
    variables = environment(
        OTEL_TRACES_EXPORTER="console",
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
        OTEL_SERVICE_NAME="shop",
    )
    command = Path(sys.executable).with_name("opentelemetry-instrument")
    done = subprocess.run(
        [command, sys.executable, program, cluster.nameserver, topic],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("send", "receive", "ack"):
        assert f'"name": "{name} {topic}"' in done.stdout
    assert '"service.name": "shop"' in done.stdout
