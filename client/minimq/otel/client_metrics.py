"""The metrics of OpenTelemetry's conventions for clients of messaging."""

from __future__ import annotations

from opentelemetry import metrics

from minimq.otel.conventions import INSTRUMENTATION, SCHEMA_URL, Attributes, metric_attributes

#: Of the histograms, in seconds: those of the conventions.
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class ClientMetrics:
    """Counts messages, and measures calls, once for each call. Thread-safe."""

    def __init__(self, provider: metrics.MeterProvider | None = None) -> None:
        meter = metrics.get_meter(INSTRUMENTATION, "", provider, SCHEMA_URL)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of messages that producers have tried to send."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Number of messages that the application was given."
        )
        self._operations = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sends, receives and settles.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._processing = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of the processing of messages.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )

    def sent(self, attributes: Attributes, count: int) -> None:
        """Count messages that somebody has tried to send; they have the attributes of their span, as all here."""
        self._sent.add(count, metric_attributes(attributes))

    def consumed(self, attributes: Attributes, count: int) -> None:
        """Count messages that the application was given."""
        if count:
            self._consumed.add(count, metric_attributes(attributes))

    def lasted(self, attributes: Attributes, duration_s: float) -> None:
        """Measure a send, a call that has returned messages, or one that has settled some."""
        self._operations.record(duration_s, metric_attributes(attributes))

    def processed(self, attributes: Attributes, duration_s: float) -> None:
        """Measure the processing of messages."""
        self._processing.record(duration_s, metric_attributes(attributes))
