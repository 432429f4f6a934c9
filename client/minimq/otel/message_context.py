"""The context of a trace in the properties of a message, as the W3C's Trace Context has it in headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from minimq.receiving.received import ReceivedMessage
from minimq_common.batch import MAX_METADATA
from minimq_common.errors import MiniMQError
from minimq_common.model import Message
from minimq_common.trace_parent import TRACEPARENT, TRACESTATE

#: Longer values are ignored. A traceparent has 55 characters, and may get more in a later version.
_MOST_PARENT = 128
_MOST_STATE = 512
_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?")
_MEMBER = r"[a-z0-9][a-z0-9_\-*/@]*=[!-+\-.-<>-~]+"
_STATE = re.compile(rf"{_MEMBER}(?:,{_MEMBER})*")
#: A message with more characters of properties is sent as it is: copies for another try get further ones.
_MOST_PROPERTIES = MAX_METADATA // 2
#: Most links of one span: what a collector keeps by default.
MOST_LINKS = 128

_propagator = TraceContextTextMapPropagator()
_NOTHING = Context()


def context_in(properties: Mapping[str, str]) -> SpanContext | None:
    """Return the context in the properties of a message, of whoever created it; None without a valid one."""
    parent = properties.get(TRACEPARENT)
    if parent is None or len(parent) > _MOST_PARENT or not _PARENT.fullmatch(parent):
        return None
    carrier = {TRACEPARENT: parent}
    state = properties.get(TRACESTATE)
    if state and len(state) <= _MOST_STATE and _STATE.fullmatch(state):
        carrier[TRACESTATE] = state
    found = trace.get_current_span(_propagator.extract(carrier, _NOTHING)).get_span_context()
    return found if found.is_valid else None


def context_of(message: ReceivedMessage) -> SpanContext | None:
    """Return the context in a message; None also if its properties are damaged, which whoever reads them hears of."""
    try:
        return context_in(message.properties)
    except MiniMQError:
        return None


def parent_of(context: SpanContext) -> Context:
    """Return the context of a span that is to be the child of one in another process."""
    return trace.set_span_in_context(trace.NonRecordingSpan(context), _NOTHING)


def links_to(messages: Iterable[ReceivedMessage]) -> list[Link]:
    """Return a link to the context of each message, at most `MOST_LINKS`, and one for those that share theirs."""
    links: dict[tuple[int, int], Link] = {}
    for message in messages:
        found = context_of(message)
        if found is not None:
            links.setdefault((found.trace_id, found.span_id), Link(found))
            if len(links) == MOST_LINKS:
                break
    return [*links.values()]


def headers_of(span: Span) -> dict[str, str]:
    """Return the properties that carry the context of a span; none if there is no SDK that makes spans."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span, _NOTHING))
    if len(carrier.get(TRACESTATE, "")) > _MOST_STATE:
        del carrier[TRACESTATE]
    return carrier


def with_context(message: Message, headers: Mapping[str, str]) -> Message:
    """Return a message with the context of a span; the same if it has no room for that."""
    properties = message.properties
    if not properties:
        return msgspec.structs.replace(message, properties=headers)
    made = {**properties, **headers}
    if TRACESTATE not in headers:
        made.pop(TRACESTATE, None)  # of a traceparent that was not valid
    if sum(map(len, made)) + sum(map(len, made.values())) > _MOST_PROPERTIES:
        return message
    return msgspec.structs.replace(message, properties=made)
