"""Spans and metrics of messages that consumers receive, process and settle, and of your own processing loops."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from opentelemetry import context as current
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

from minimq import __version__
from minimq.consuming.interceptor import ConsumerCall, ReceiveInterceptor
from minimq.consuming.received import ReceivedMessage
from minimq.otel.conventions import (
    BATCH_COUNT,
    CLIENT_ID,
    DELIVERY_COUNT,
    DESTINATION,
    ERROR_TYPE,
    GROUP,
    INSTRUMENTATION,
    MESSAGE_ID,
    OFFSET,
    PARTITION,
    RETRIED_COUNT,
    RETRY_LATER,
    SCHEMA_URL,
    Attributes,
    ClientMetrics,
    context_of,
    links_to,
    operation,
    partition,
)
from minimq.otel.sending_spans import fail
from minimq_common.errors import Closed, MinimqError

#: The operations whose messages all come from one queue.
_OF_ONE_QUEUE = ("receive", "process")


class OtelReceive(ReceiveInterceptor):
    """Makes spans when a consumer receives, processes and settles messages, with a link to the context of each message.

    If a listener processes a single message, the span is a child of the message's context, and the listener runs with
    its baggage, unless another span is current: so a message, its retries and the messages that it causes are one
    trace. Spans of several messages only have links. A call that returns no messages has no span.

    Args:
        tracer_provider: makes the spans; None for the process's provider.
        meter_provider: makes the metrics; None for the process's provider.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(INSTRUMENTATION, __version__, tracer_provider, SCHEMA_URL)
        self._metrics = ClientMetrics(meter_provider)

    @contextmanager
    def receive(self, call: ConsumerCall) -> Iterator[None]:
        """Make the span of a receive that returned messages or failed."""
        began_ns, began = time.time_ns(), time.perf_counter()
        yield
        failed = isinstance(call.error, MinimqError) and not isinstance(call.error, Closed)
        if not call.messages and not failed:
            return
        attributes = attributes_of(call, "receive")
        span = self._tracer.start_span(
            span_name(call), None, SpanKind.CLIENT, attributes, links_to(call.messages), began_ns
        )
        self._end(span, call, attributes)
        self._metrics.consumed(attributes, call.count)
        self._metrics.lasted(attributes, time.perf_counter() - began)

    @contextmanager
    def process(self, call: ConsumerCall) -> Iterator[None]:
        """Make the span of a call of the listener, and make it current there."""
        began, attributes = time.perf_counter(), attributes_of(call, "process")
        span, context = start_processing(self._tracer, call, attributes)
        token = current.attach(context)
        yield
        current.detach(token)
        if call.failed and call.error is None:
            attributes[ERROR_TYPE] = RETRY_LATER
            span.set_status(Status(StatusCode.ERROR, call.reason))
        if call.failed and call.count > 1:
            span.set_attribute(RETRIED_COUNT, len(call.failed))
        self._end(span, call, attributes)
        self._metrics.consumed(attributes, call.count)
        self._metrics.processed(attributes, time.perf_counter() - began)

    @contextmanager
    def settle(self, call: ConsumerCall) -> Iterator[None]:
        """Make the span of a call that settles messages."""
        began, attributes = time.perf_counter(), attributes_of(call, "settle")
        span = self._tracer.start_span(span_name(call), None, SpanKind.CLIENT, attributes, links_to(call.messages))
        yield
        self._end(span, call, attributes)
        self._metrics.lasted(attributes, time.perf_counter() - began)

    def _end(self, span: Span, call: ConsumerCall, attributes: Attributes) -> None:
        if call.error is not None:
            if call.operation == "process":
                span.record_exception(call.error)
            fail(span, attributes, call.error)
        if ERROR_TYPE in attributes:
            span.set_attribute(ERROR_TYPE, attributes[ERROR_TYPE])
        span.end()


def start_processing(tracer: trace.Tracer, call: ConsumerCall, attributes: Attributes) -> tuple[Span, Context]:
    """Return a span for processing messages, and the context to process them in; see `OtelReceive`."""
    context = current.get_current()
    if call.count == 1 and call.messages and not trace.get_current_span().get_span_context().is_valid:
        context = context_of(call.messages[0], context)
    span = tracer.start_span(span_name(call), context, SpanKind.CONSUMER, attributes, links_to(call.messages))
    return span, trace.set_span_in_context(span, context)


def span_name(call: ConsumerCall) -> str:
    """Return the name of a span: the operation, and the topic if all messages have the same."""
    topic = _topic(call)
    return f"{call.operation} {topic}" if topic else call.operation


def attributes_of(call: ConsumerCall, kind: str) -> Attributes:
    """Return the attributes of a span at its start."""
    attributes = operation(call.operation, kind)
    if call.group:
        attributes[GROUP] = call.group
    attributes[CLIENT_ID] = call.client_id
    if topic := _topic(call):
        attributes[DESTINATION] = topic
    if len(call.messages) == call.count == 1:
        attributes |= _attributes_of_one(call.messages[0])
    else:
        attributes[BATCH_COUNT] = call.count
        if call.operation in _OF_ONE_QUEUE and call.messages:
            attributes[PARTITION] = partition(call.messages[0].queue)
    return attributes


def _attributes_of_one(message: ReceivedMessage) -> Attributes:
    made: Attributes = {MESSAGE_ID: message.message_id, DELIVERY_COUNT: message.delivery_count}
    if message.queue.topic == message.topic:  # not the retry topic of a group
        made[PARTITION], made[OFFSET] = partition(message.queue), message.queue_offset
    return made


def _topic(call: ConsumerCall) -> str:
    if not call.messages:
        return ""
    topic = call.messages[0].topic  # the same for all messages, except in a settle
    is_one = call.operation in _OF_ONE_QUEUE or all(message.topic == topic for message in call.messages)
    return topic if is_one else ""


@contextmanager
def processing(
    messages: ReceivedMessage | Sequence[ReceivedMessage],
    *,
    group: str = "",
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Iterator[Span]:
    """Make the span of a block that processes messages from `poll` or `receive`.

        for message in consumer.receive():
            with processing(message, group=consumer.group):
                ...
                consumer.ack(message)

    The span has a link to the context of each message. For a single message it is a child of that context, and the
    block runs with its baggage, unless another span is current. Not needed in a listener, whose calls have spans.

    Args:
        messages: one or several.
        group: the consumer group.
        tracer_provider: makes the span; None for the process's provider.
        meter_provider: makes the metrics; None for the process's provider.
    """
    given = [messages] if isinstance(messages, ReceivedMessage) else [*messages]
    call = ConsumerCall("process", group, "", given, len(given))
    attributes = attributes_of(call, "process")
    began = time.perf_counter()
    tracer = trace.get_tracer(INSTRUMENTATION, __version__, tracer_provider, SCHEMA_URL)
    span, context = start_processing(tracer, call, attributes)
    token = current.attach(context)
    try:
        with trace.use_span(span, end_on_exit=True, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                fail(span, attributes, error)
                span.set_attribute(ERROR_TYPE, attributes[ERROR_TYPE])
                raise
    finally:
        current.detach(token)
        _metrics(meter_provider or metrics.get_meter_provider()).processed(attributes, time.perf_counter() - began)


@lru_cache(maxsize=1)
def _metrics(provider: metrics.MeterProvider) -> ClientMetrics:
    return ClientMetrics(provider)
