"""OpenTelemetry spans and metrics of messages that are sent, received and processed; see docs/tracing.md.

The only part of the client that imports `opentelemetry`: `minimq[otel]` installs its API, the application its SDK.
"""

from __future__ import annotations

from minimq.otel.receiving_spans import OtelReceive, processing
from minimq.otel.sending_spans import OtelSend

__all__ = ["OtelReceive", "OtelSend", "processing"]
