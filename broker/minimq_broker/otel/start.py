"""The start of the spans of a broker, which imports OpenTelemetry only if somebody wants them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from minimq_broker.options import BrokerOptions
from minimq_broker.services.engine import BatchSpans
from minimq_common.errors import InvalidArgument


def start_spans(options: BrokerOptions, ends: AsyncExitStack) -> BatchSpans | None:
    """Return what makes the spans of a broker, and is to be ended by `ends`; None if there are to be none."""
    if not options.otel:
        return None
    try:
        from minimq_broker.otel.batch_tracer import BatchTracer  # an extra
    except ImportError as error:
        raise InvalidArgument(
            f"--otel needs a library that is not installed: pip install 'minimq[otel-broker]' ({error})"
        ) from None
    try:
        tracer = BatchTracer(options.name, options.broker_id, options.otel_batches)
    except Exception as error:  # of the variables, in ways of its own
        raise InvalidArgument(f"--otel cannot begin, a variable OTEL_* is wrong: {error}") from error
    ends.push_async_callback(asyncio.to_thread, tracer.close)
    return tracer
