"""The context of a trace in the properties of a message, written and read by the propagators of the process.

`OTEL_PROPAGATORS` or `opentelemetry.propagate.set_global_textmap` chooses them, as for the headers of HTTP: W3C Trace
Context and Baggage by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext

from minimq.receiving.received import ReceivedMessage
from minimq_common.batch.header import MAX_METADATA
from minimq_common.errors import MiniMQError
from minimq_common.model import Message
from minimq_common.properties import TRACESTATE

#: A message with more characters of properties is sent as it is: copies for another try get further ones.
_MOST_PROPERTIES = MAX_METADATA // 2
#: Most links of one span: what a collector keeps by default.
MOST_LINKS = 128

_NOTHING = Context()


def context_in(properties: Mapping[str, str], base: Context = _NOTHING) -> Context:
    """Return the context in the properties of a message, with its baggage; `base` if there is none."""
    return propagate.extract(properties, base) if properties else base


def context_of(message: ReceivedMessage, base: Context = _NOTHING) -> Context:
    """Return the context in a message; `base` also if its properties are damaged, which their reader is told."""
    try:
        return context_in(message.properties, base)
    except MiniMQError:
        return base


def span_in(context: Context) -> SpanContext | None:
    """Return the span of a context; None without a valid one."""
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None


def links_to(messages: Iterable[ReceivedMessage]) -> list[Link]:
    """Return a link to the context of each message, at most `MOST_LINKS`, and one for those that share theirs."""
    links: dict[tuple[int, int], Link] = {}
    for message in messages:
        found = span_in(context_of(message))
        if found is not None:
            links.setdefault((found.trace_id, found.span_id), Link(found))
            if len(links) == MOST_LINKS:
                break
    return [*links.values()]


def headers_of(span: Span) -> dict[str, str]:
    """Return the properties that carry the context of a span, and the current baggage."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return carrier


def with_context(message: Message, headers: Mapping[str, str]) -> Message:
    """Return a message with the context of a span; the same if it has no room for that."""
    properties = message.properties
    made = {**properties, **headers}
    if TRACESTATE not in headers:
        made.pop(TRACESTATE, None)  # of a traceparent that was not valid
    if sum(map(len, made)) + sum(map(len, made.values())) > _MOST_PROPERTIES:
        return message
    return msgspec.structs.replace(message, properties=made)
