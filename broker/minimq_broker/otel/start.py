"""Starts the spans of a broker. Imports OpenTelemetry only with --otel."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from minimq_broker.calls.engine import BatchSpans
from minimq_broker.options import BrokerOptions
from minimq_common.errors import InvalidArgument


def start_spans(options: BrokerOptions, ends: AsyncExitStack) -> BatchSpans | None:
    """Return the tracer of a broker, and register its end with `ends`; None without --otel."""
    if not options.otel:
        return None
    try:
        from minimq_broker.otel.batch_tracer import BatchTracer  # needs an extra
    except ImportError as error:
        raise InvalidArgument(
            f"--otel needs a library that is not installed: pip install 'minimq[otel-broker]' ({error})"
        ) from None
    try:
        tracer = BatchTracer(options.name, options.broker_id, options.otel_batches)
    except Exception as error:  # OpenTelemetry raises various errors for invalid variables
        raise InvalidArgument(f"--otel cannot begin, a variable OTEL_* is wrong: {error}") from error
    ends.push_async_callback(asyncio.to_thread, tracer.close)
    return tracer
