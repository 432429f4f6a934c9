"""One message: all that it has, and its body as text, as JSON or in digits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from minimq import MessageQueue, ReceivedMessage
from minimq.operations.message_trace import GroupTrace
from minimq.operations.places import MessageAddress
from minimq_common.errors import CorruptBatch, InvalidArgument
from minimq_common.names import check_broker, check_topic
from minimq_console.body_text import SHOWN_BYTES, WAYS, shown, visible
from minimq_console.message_row import MessageRow, row_of
from minimq_console.page import Page, PageData, Visit
from minimq_console.parameters import Parameters

_MOST_OFFSET = (1 << 63) - 1
_MOST_QUEUE_ID = 100_000


class Fate(msgspec.Struct, frozen=True):
    """The fate of a message in one group."""

    group: str
    #: "waiting", "read", "in flight", "returned", "settled", "retrying", "dead" or "dead, settled".
    state: str
    #: The consumer that has it, or that reads its queue; None without one.
    client_id: str | None
    tries: int
    #: Until when it is in flight, or from when on it is delivered again; None if there is no such time.
    until: datetime | None


class MessagePage(PageData, frozen=True, kw_only=True):
    """One message."""

    message: MessageRow
    born_at: datetime
    #: When it was due, if it was delayed.
    due_at: datetime | None
    message_group: str | None
    properties: Mapping[str, str]
    #: "text", "json" or "hex": how its body is shown.
    way: str
    body: str
    is_cut: bool
    #: The schema by which the body was decoded; empty if it was not.
    schema: str
    #: What groups have done with it; None if that was not asked for.
    fates: tuple[Fate, ...] | None

    @property
    def stays(self) -> bool:
        """True: a message stays as it is."""
        return True


def gather(visit: Visit) -> MessagePage:
    """Return the message at the address, and what groups have done with it if that is asked for."""
    way, traced = visit.parameters.choice("show", WAYS, "auto"), visit.parameters.flag("trace")
    admin = visit.observer.admin
    message = visit.ask("the message", lambda: admin.message_at(address_of(visit.parameters))).required()
    trace = None
    if traced:
        address = MessageAddress(message.queue, message.queue_offset)
        trace = visit.ask("the trace", lambda: admin.trace_message(address)).or_else(None)
    row = row_of(message)
    properties, message_group = _properties(message)
    decoded = None
    if way == "auto" and visit.decode is not None and len(message.body) <= SHOWN_BYTES:
        decoded = visit.ask("the body", lambda: visit.decode and visit.decode(message)).or_else(None)
    chosen, text = shown(message.body if decoded is None else decoded.json, way)
    return MessagePage(
        message=row,
        born_at=message.born_at,
        due_at=message.due_at,
        message_group=message_group,
        properties=properties,
        way=chosen,
        body=text,
        is_cut=len(message.body) > SHOWN_BYTES,
        schema="" if decoded is None else decoded.schema,
        fates=None if trace is None else tuple(_fate(each) for each in trace.groups),
        missing=visit.missing,
    )


def address_of(parameters: Parameters) -> MessageAddress:
    """Return the address of the message that a path names. Raises `InvalidArgument`."""
    numbers = []
    for name, most in (("queue_id", _MOST_QUEUE_ID), ("offset", _MOST_OFFSET)):
        text = parameters.name(name)
        if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= most):
            raise InvalidArgument(f"{name} in the path is {text[:60]!r}: it must be 0 to {most}")
        numbers.append(int(text))
    queue = MessageQueue(check_topic(parameters.name("topic")), check_broker(parameters.name("broker")), numbers[0])
    return MessageAddress(queue, numbers[1])


def _properties(message: ReceivedMessage) -> tuple[Mapping[str, str], str | None]:
    try:
        return {visible(name): visible(value) for name, value in message.properties.items()}, message.message_group
    except CorruptBatch:
        return {}, None


def _fate(trace: GroupTrace) -> Fate:
    return Fate(trace.group, trace.state.value, trace.client_id, trace.tries, trace.until)


PATH = "/topics/{topic}/messages/{broker}/{queue_id}/{offset}"
PAGE = Page(path=PATH, template="message.html", gather=gather, title="Message", live_s=None)
