"""Spans and metrics by OpenTelemetry, of messages on their way from producers to consumers; see docs/tracing.md.

The only part of the client that imports `opentelemetry`: `minimq[otel]` brings its API, an application its SDK.
"""

from __future__ import annotations

from minimq.otel.receiving_spans import OtelReceive, processing
from minimq.otel.sending_spans import OtelSend

__all__ = ["OtelReceive", "OtelSend", "processing"]
