"""Spans of what you do with messages that you poll or receive."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from opentelemetry import context as current
from opentelemetry import metrics, trace
from opentelemetry.trace import Span

from minimq import __version__
from minimq.otel.conventions import ERROR_TYPE, INSTRUMENTATION, SCHEMA_URL, ClientMetrics
from minimq.otel.receiving_spans import attributes_of, start_processing
from minimq.otel.sending_spans import fail
from minimq.receiving.interceptor import ConsumerCall
from minimq.receiving.received import ReceivedMessage


@contextmanager
def processing(
    messages: ReceivedMessage | Sequence[ReceivedMessage],
    *,
    group: str = "",
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Iterator[Span]:
    """Make the span of a block that processes messages which `poll` or `receive` has returned.

        for message in consumer.receive():
            with processing(message, group=consumer.group):
                ...
                consumer.ack(message)

    That of one message is a child of the message's context, and the block has its baggage, unless another span is
    current; each has links. A listener
    needs none: its calls have spans.

    Args:
        messages: one or several.
        group: the consumer group.
        tracer_provider: makes the span; None for that of the process.
        meter_provider: counts; None for that of the process.
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
