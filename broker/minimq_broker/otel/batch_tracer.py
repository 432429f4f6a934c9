"""The OpenTelemetry spans of a broker. Needs `minimq[otel-broker]`, so import it only with --otel."""

from __future__ import annotations

import threading
import time

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from minimq_broker.commit.jobs import AppendJob
from minimq_common.properties import parsed_parent
from minimq_common.serving import daemon

_SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
_NOTHING = Context()
#: Maximum time that the stop of a broker waits for the collector.
_CLOSE_S = 2.0


class BatchTracer:
    """Makes spans of batches, at most `most_per_s` per second, and exports them on a separate thread.

    The variables `OTEL_*` configure the export; `OTEL_EXPORTER_OTLP_ENDPOINT` is http://localhost:4318 by default.
    """

    def __init__(self, broker_name: str, broker_id: int, most_per_s: int, exporter: SpanExporter | None = None) -> None:
        self._broker_name = broker_name
        self._most = most_per_s
        self._second, self._count = 0, 0
        own = Resource.create({"service.name": "minimq-broker", "service.instance.id": f"{broker_name}/{broker_id}"})
        resource = own.merge(OTELResourceDetector().detect())  # the variables take precedence
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("minimq-broker", daemon.version(), _SCHEMA_URL)

    def parent(self, traceparent: str) -> Context | None:
        """Return the trace context of the sender; None if the batch is not traced, or over the limit per second."""
        if not traceparent:
            return None
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._count = second, 0
        if self._count >= self._most:
            return None
        numbers = parsed_parent(traceparent)
        if numbers is None:
            return None
        self._count += 1
        trace_id, span_id, flags = numbers
        context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
        return set_span_in_context(NonRecordingSpan(context), _NOTHING)

    def make(self, parent: Context, job: AppendJob, came_at: float, ended_at: float) -> None:
        """Make the span of an answered batch, with child spans for its wait, commit and confirmation."""
        now = time.time_ns() - time.monotonic_ns()

        def begun(name: str, context: Context, kind: SpanKind, at: float) -> Span:
            return self._tracer.start_span(name, context, kind, start_time=now + round(at * 1e9))

        def ended(span: Span, at: float) -> None:
            span.end(now + round(at * 1e9))

        whole = begun(f"append {job.topic}", parent, SpanKind.SERVER, came_at)
        queue_id = job.queue_id if job.stored_queue_id < 0 else job.stored_queue_id
        whole.set_attributes(
            {
                "messaging.system": "minimq",
                "messaging.operation.name": "append",
                "messaging.destination.name": job.topic,
                "messaging.destination.partition.id": f"{self._broker_name}/{queue_id}",
                "messaging.batch.message_count": job.header.count,
                "messaging.minimq.batch.size": job.size,
            }
        )
        if job.error is not None:
            whole.set_attribute("error.type", type(job.error).__name__)
            whole.set_status(Status(StatusCode.ERROR, job.error.message))
        elif job.base_offset >= 0:
            whole.set_attribute("messaging.minimq.message.offset", job.base_offset)
        if job.times is not None and job.times.stored_at:
            steps = (
                ("wait", came_at, job.times.began_at),
                ("commit", job.times.began_at, job.times.stored_at),
                ("confirm", job.times.stored_at, ended_at),
            )
            inside = set_span_in_context(whole, _NOTHING)
            for name, from_, to in steps:
                ended(begun(name, inside, SpanKind.INTERNAL, from_), to)
        ended(whole, ended_at)

    def close(self) -> None:
        """Export the remaining spans and stop, within `_CLOSE_S` even if the collector hangs. Blocks."""
        ending = threading.Thread(target=self._provider.shutdown, name="minimq-spans", daemon=True)
        ending.start()
        ending.join(_CLOSE_S)
