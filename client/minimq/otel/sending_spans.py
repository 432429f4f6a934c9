"""Spans and metrics of sends."""

from __future__ import annotations

import logging
import threading
import time

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from minimq import __version__
from minimq.otel.conventions import (
    BATCH_COUNT,
    DESTINATION,
    ERROR_TYPE,
    INSTRUMENTATION,
    MAX_LINKS,
    MESSAGE_ID,
    OFFSET,
    PARTITION,
    SCHEMA_URL,
    Attributes,
    ClientMetrics,
    context_in,
    error_type,
    headers_of,
    operation,
    partition,
    span_in,
    with_context,
)
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.receipt import SendReceipt
from minimq_common.errors import MinimqError
from minimq_common.model import Message

log = logging.getLogger(__name__)

_SEND = operation("send", "send")


class MessageWithSpan(Message, frozen=True, gc=True):
    """A message that is being sent, with its span; an interceptor that makes a plain `Message` of it loses the span."""

    span: Span | None = None
    began: float = 0.0


def fail(span: Span, attributes: Attributes, error: BaseException) -> None:
    """Set the status of a span to an error, and the error type in `attributes`."""
    attributes[ERROR_TYPE] = error_type(error)
    text = error.message if isinstance(error, MinimqError) else str(error)
    span.set_status(Status(StatusCode.ERROR, text))


class OtelSend(SendInterceptor):
    """Makes a span for each send and each `send_many`, and puts its context into the messages.

    The span is a child of the current span of the caller. A message that already has a context, such as a copy for a
    retry, keeps it: its span is linked to it, and a child of it unless another span is current. This should be the last
    interceptor of a producer.

    Args:
        tracer_provider: makes the spans; None for the process's provider.
        meter_provider: makes the metrics; None for the process's provider.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(INSTRUMENTATION, __version__, tracer_provider, SCHEMA_URL)
        self._metrics = ClientMetrics(meter_provider)

    def before_send(self, message: Message) -> Message:
        """Start a span; return the message with its context."""
        try:
            return self._begun(message)
        except Exception:  # if the message is invalid, the producer's check has the better error
            log.debug("producer: a message has no span", exc_info=True)
            return message

    def _begun(self, message: Message) -> Message:
        carried = context_in(message.properties)
        custom = span_in(carried)
        starts_here = custom is None or trace.get_current_span().get_span_context().is_valid
        span = self._tracer.start_span(
            f"send {message.topic}",
            None if starts_here else carried,
            SpanKind.PRODUCER if custom is None else SpanKind.CLIENT,
            {**_SEND, DESTINATION: message.topic},
            [] if custom is None else [Link(custom)],
        )
        if custom is None:
            message = with_context(message, headers_of(span))
        fields = {name: getattr(message, name) for name in Message.__struct_fields__}
        return MessageWithSpan(**fields, span=span, began=time.perf_counter())

    def after_send(self, message: Message, receipt: SendReceipt | None, error: MinimqError | None) -> None:
        """End the span of a message."""
        if not isinstance(message, MessageWithSpan) or message.span is None:
            return
        span, attributes = message.span, {**_SEND, DESTINATION: message.topic}
        if receipt is not None:
            span.set_attributes({MESSAGE_ID: receipt.message_id, PARTITION: partition(receipt.queue)})
            if receipt.queue_offset >= 0:
                span.set_attribute(OFFSET, receipt.queue_offset)
        if error is not None:
            fail(span, attributes, error)
            span.set_attributes(attributes)
        span.end()
        self._metrics.sent(attributes, 1)
        self._metrics.lasted(attributes, time.perf_counter() - message.began)

    def for_many(self) -> SendInterceptor:
        """Return an interceptor that makes one span for a whole `send_many`."""
        return _OtelSendMany(self._tracer, self._metrics)


class _OtelSendMany(SendInterceptor):
    """Makes the span of one `send_many`, whose messages share its context."""

    def __init__(self, tracer: trace.Tracer, metrics: ClientMetrics) -> None:
        self._tracer, self._metrics = tracer, metrics
        self._began = time.perf_counter()
        self._span: Span | None = None
        self._headers: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._failed: dict[str, MinimqError] = {}
        self._linked: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    def before_send(self, message: Message) -> Message:
        """Return a message with the context of the span, which starts with the first message."""
        try:
            return self._in_span(message)
        except Exception:
            log.debug("producer: a message has no context", exc_info=True)
            return message

    def _in_span(self, message: Message) -> Message:
        topic = message.topic
        self._counts[topic] = self._counts.get(topic, 0) + 1
        if self._span is None:
            self._span = self._tracer.start_span(f"send {topic}", None, SpanKind.PRODUCER, _SEND)
            self._headers = headers_of(self._span)
        custom = span_in(context_in(message.properties))
        if custom is None:
            return with_context(message, self._headers) if self._headers else message
        key = custom.trace_id, custom.span_id
        if key not in self._linked and len(self._linked) < MAX_LINKS:
            self._linked.add(key)
            self._span.add_link(custom)
        return message

    def after_send(self, message: Message, receipt: SendReceipt | None, error: MinimqError | None) -> None:
        if error is not None:
            with self._lock:
                self._failed.setdefault(message.topic, error)

    def after_many(self, error: BaseException | None) -> None:
        if self._span is None:
            return
        duration_s, attributes = time.perf_counter() - self._began, {**_SEND}
        attributes[BATCH_COUNT] = sum(self._counts.values())
        if len(self._counts) == 1:
            attributes[DESTINATION] = next(iter(self._counts))
        else:
            self._span.update_name("send")
        if error is not None:
            fail(self._span, attributes, error)
        self._span.set_attributes(attributes)
        self._span.end()
        for topic, count in self._counts.items():
            of_topic = {**_SEND, DESTINATION: topic}
            if topic in self._failed:
                of_topic[ERROR_TYPE] = error_type(self._failed[topic])
            self._metrics.sent(of_topic, count)
        self._metrics.lasted(attributes, duration_s)
