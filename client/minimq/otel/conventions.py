"""Names and metrics of OpenTelemetry's conventions for messaging, and the trace context in messages.

The process's propagators write and read the context, as for HTTP headers: `OTEL_PROPAGATORS` or
`opentelemetry.propagate.set_global_textmap` chooses them, W3C Trace Context and Baggage by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext
from opentelemetry.util.types import AttributeValue

from minimq.consuming.received import ReceivedMessage
from minimq_common.batch.header import MAX_METADATA
from minimq_common.errors import MinimqError
from minimq_common.model import Message, MessageQueue

#: The version of the conventions that all names here follow: those for messaging are not stable yet.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
INSTRUMENTATION = "minimq"

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
PARTITION = "messaging.destination.partition.id"
MESSAGE_ID = "messaging.message.id"
BATCH_COUNT = "messaging.batch.message_count"
GROUP = "messaging.consumer.group.name"
CLIENT_ID = "messaging.client.id"
ERROR_TYPE = "error.type"
#: Attributes outside the conventions: offset of a message in its queue, its deliveries, and how many are retried.
OFFSET = "messaging.minimq.message.offset"
DELIVERY_COUNT = "messaging.minimq.message.delivery_count"
RETRIED_COUNT = "messaging.minimq.retried.message_count"

#: The error type of a listener that raised nothing but asked for a retry.
RETRY_LATER = "RETRY_LATER"

Attributes = dict[str, AttributeValue]

#: A message with more characters of properties is sent without context, to leave room for the properties of retries.
_MAX_PROPERTIES = MAX_METADATA // 2
#: Most links of one span: the SDK's default limit.
MAX_LINKS = 128
_NOTHING = Context()


def operation(name: str, kind: str) -> Attributes:
    """Return the attributes common to all spans and metrics of an operation."""
    return {SYSTEM: "minimq", OPERATION_NAME: name, OPERATION_TYPE: kind}


def partition(queue: MessageQueue) -> str:
    """Return the name of a queue within its topic."""
    return f"{queue.broker_name}/{queue.queue_id}"


def error_type(error: BaseException) -> str:
    """Return the type of an error: the name of its class, with the module if it is not one of minimq."""
    kind = type(error)
    return kind.__qualname__ if isinstance(error, MinimqError) else f"{kind.__module__}.{kind.__qualname__}"


def metric_attributes(attributes: Mapping[str, AttributeValue]) -> Attributes:
    """Return the attributes of a span that its metrics share: only those of low cardinality."""
    return {name: attributes[name] for name in _OF_METRICS if name in attributes}


_OF_METRICS = (SYSTEM, OPERATION_NAME, OPERATION_TYPE, DESTINATION, GROUP, ERROR_TYPE)


#: Boundaries of the histograms, as in the conventions.
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class ClientMetrics:
    """Counts messages and measures durations, once per call. Takes the attributes of the span. Thread-safe."""

    def __init__(self, provider: metrics.MeterProvider | None = None) -> None:
        meter = metrics.get_meter(INSTRUMENTATION, "", provider, SCHEMA_URL)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of messages that producers have tried to send."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Number of messages that the application was given."
        )
        self._operations, self._processing = (
            meter.create_histogram(name, "s", about, explicit_bucket_boundaries_advisory=_BUCKETS_S)
            for name, about in _DURATIONS.items()
        )

    def sent(self, attributes: Attributes, count: int) -> None:
        """Count messages that a producer has tried to send."""
        self._sent.add(count, metric_attributes(attributes))

    def consumed(self, attributes: Attributes, count: int) -> None:
        """Count messages that the application has received."""
        if count:
            self._consumed.add(count, metric_attributes(attributes))

    def lasted(self, attributes: Attributes, duration_s: float) -> None:
        """Record the duration of a send, a receive or a settle."""
        self._operations.record(duration_s, metric_attributes(attributes))

    def processed(self, attributes: Attributes, duration_s: float) -> None:
        """Record the duration of the processing of messages."""
        self._processing.record(duration_s, metric_attributes(attributes))


_DURATIONS = {
    "messaging.client.operation.duration": "Duration of sends, receives and settles.",
    "messaging.process.duration": "Duration of the processing of messages.",
}


def context_in(properties: Mapping[str, str], base: Context = _NOTHING) -> Context:
    """Return the trace context and baggage in the properties of a message; `base` if there is none."""
    return propagate.extract(properties, base) if properties else base


def context_of(message: ReceivedMessage, base: Context = _NOTHING) -> Context:
    """Return the trace context in a message; `base` if there is none, or its properties are damaged."""
    try:
        return context_in(message.properties, base)
    except MinimqError:  # the application gets this error, too, when it reads the properties
        return base


def span_in(context: Context) -> SpanContext | None:
    """Return the span of a context; None if it has no valid one."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def links_to(messages: Iterable[ReceivedMessage]) -> list[Link]:
    """Return links to the contexts of messages, each context once; the SDK bounds their number."""
    links: dict[tuple[int, int], Link] = {}
    for message in messages:
        found = span_in(context_of(message))
        if found is not None:
            links.setdefault((found.trace_id, found.span_id), Link(found))
    return [*links.values()]


def headers_of(span: Span) -> dict[str, str]:
    """Return the properties that carry the context of a span and the current baggage."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return carrier


def with_context(message: Message, headers: Mapping[str, str]) -> Message:
    """Return a copy of a message with the context of a span; the message itself if it has no room."""
    properties = message.properties
    made = {**properties, **headers}
    if "tracestate" not in headers:
        made.pop("tracestate", None)  # left over from an invalid traceparent
    if sum(map(len, made)) + sum(map(len, made.values())) > _MAX_PROPERTIES:
        return message
    return msgspec.structs.replace(message, properties=made)
