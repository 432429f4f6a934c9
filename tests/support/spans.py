"""Spans and metrics of OpenTelemetry that are kept in memory, for tests that look at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from minimq.otel.instrumentor import MinimqInstrumentor


class Telemetry:
    """The spans that have ended, and the metrics.

    Attributes:
        tracers: makes the spans.
        meters: makes the metrics.
    """

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    @contextmanager
    def instrumented(self) -> Iterator[None]:
        """Give clients that are made within the block their spans."""
        instrumentor = MinimqInstrumentor()
        instrumentor.instrument(tracer_provider=self.tracers, meter_provider=self.meters)
        try:
            yield
        finally:
            instrumentor.uninstrument()

    def close(self) -> None:
        """End its threads."""
        self.tracers.shutdown()
        self.meters.shutdown()

    @property
    def spans(self) -> list[ReadableSpan]:
        """All of them, by the time of their beginning."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]

    def points(self, name: str) -> list[Any]:
        """Return what a metric has, by its attributes."""
        data = self._reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        return [point for metric in found if metric.name == name for point in metric.data.data_points]


def trace_of(span: ReadableSpan) -> int:
    """Return the id of the trace of a span."""
    assert span.context is not None
    number: int = span.context.trace_id
    return number


def parent_of(span: ReadableSpan) -> int | None:
    """Return the id of the span whose child this one is."""
    return span.parent.span_id if span.parent is not None else None


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})
