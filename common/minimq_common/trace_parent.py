"""The property by which a message carries the context of its trace, as W3C Trace Context has it; no spans here."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Names of the two properties, and of the headers that they are in HTTP.
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
#: Characters of a traceparent in the only version that there is.
PARENT_CHARACTERS = 55

#: The last digits of flags that say so.
_RECORDED = "13579bdf"
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def recorded_parent(properties: Mapping[str, object]) -> str:
    """Return the context in the properties of a message if its trace is recorded; empty otherwise.

    A look at each batch that is sent: so it is only as thorough as a broker needs, which looks closer.
    """
    parent = properties.get(TRACEPARENT)
    if isinstance(parent, str) and len(parent) == PARENT_CHARACTERS and parent.isascii() and parent[-1] in _RECORDED:
        return parent
    return ""


def parsed_parent(text: str) -> tuple[int, int, int] | None:
    """Return the numbers of the trace and of the span, and the flags; None if a text is no context."""
    found = _PARENT.fullmatch(text)
    if found is None:
        return None
    trace_id, span_id, flags = (int(number, 16) for number in found.groups())
    return (trace_id, span_id, flags) if trace_id and span_id else None
