"""One message for people to read, and as a row of a table."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from minimq.operations.views import Row
from minimq.operations.words import printable

if TYPE_CHECKING:
    from minimq.operations.delayed import DelayedMessages
    from minimq.operations.message_trace import GroupTrace, MessageTrace
    from minimq.receiving.received import ReceivedMessage

#: Bytes of a body that are shown in a line.
_SHOWN_BYTES = 200


def message_row(message: ReceivedMessage, *, body: bool) -> Row:
    """Return everything about a message, by its keys in JSON; the body only if asked for."""
    return {
        "address": f"{message.queue}@{message.queue_offset}",
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "message_group": message.message_group,
        "properties": dict(message.properties),
        "born_at": message.born_at,
        "stored_at": message.stored_at,
        **due_field(message),
        "bytes": len(message.body),
        **({"is_tombstone": True} if message.is_tombstone else {}),
        **(body_fields(message.body) if body else {}),
    }


def message_lines(message: ReceivedMessage) -> Iterator[str]:
    """Yield a message in lines: what is known of it, an empty line, and the body. Control characters are escaped."""
    yield f"address     {message.queue}@{message.queue_offset}"
    yield f"id          {message.message_id}"
    yield f"stored      {message.stored_at.isoformat()}"
    yield f"born        {message.born_at.isoformat()}"
    if message.due_at is not None:
        yield f"due         {message.due_at.isoformat()}"
    if message.tag is not None:
        yield printable(f"tag         {message.tag}")
    for key in message.keys:
        yield printable(f"key         {key}")
    if message.message_group is not None:
        yield printable(f"group       {message.message_group}")
    for name, value in message.properties.items():
        yield printable(f"property    {name}={value}")
    yield f"body        {len(message.body):,} bytes"
    yield ""
    yield from map(printable, message.body.decode(errors="backslashreplace").split("\n"))


def as_line(message: ReceivedMessage) -> bytes:
    """Return a message in one line: store time, address, tag, keys and the beginning of the body, with escapes."""
    body = message.body[:_SHOWN_BYTES].decode(errors="backslashreplace")
    if len(message.body) > _SHOWN_BYTES:
        body += f"... ({len(message.body):,} bytes)"
    about = [
        f"{message.stored_at.astimezone(UTC):%H:%M:%S.%f}"[:-3],
        f"{message.queue}@{message.queue_offset}",
        *([f"tag={message.tag}"] if message.tag is not None else []),
        *(f"key={key}" for key in message.keys),
        body,
    ]
    return printable("  ".join(about)).encode(errors="backslashreplace")


def trace_row(trace: MessageTrace) -> Row:
    """Return the fate of a message, by its keys in JSON."""
    stored, half = trace.message, trace.half
    return {
        "message_id": trace.message_id,
        "address": str(trace.address) if trace.address else None,
        "stored_at": stored.stored_at if stored else None,
        "born_at": stored.born_at if stored else None,
        "groups": [_group_row(each) for each in trace.groups],
        "due": _due_row(trace.due),
        "recalled": _due_row(trace.recalled),
        "half": None
        if half is None
        else {
            "producer_group": half.producer_group,
            "number": half.number,
            "checks": half.checks,
            "undecided": half.is_undecided,
        },
        "complete": trace.is_complete,
    }


def _due_row(due: DelayedMessages | None) -> Row | None:
    return None if due is None else {"queue": str(due.queue), "due_at": due.due_at, "handle": due.recall_handle}


def _group_row(trace: GroupTrace) -> Row:
    return {
        "group": trace.group,
        "state": trace.state.value,
        "client_id": trace.client_id,
        "tries": trace.tries,
        "until": trace.until,
        "copy": str(trace.copy) if trace.copy else None,
    }


def trace_lines(trace: MessageTrace) -> Iterator[str]:
    """Yield the fate of a message in lines."""
    yield f"id          {trace.message_id}"
    if trace.message is not None:
        yield f"address     {trace.address}"
        yield f"stored      {trace.message.stored_at.isoformat()}"
        yield f"born        {trace.message.born_at.isoformat()}"
    if trace.due is not None:
        recall = f", recall handle {trace.due.recall_handle}" if trace.due.recall_handle else ""
        yield f"delayed     due at {trace.due.due_at.isoformat()}, for queue {trace.due.queue}{recall}"
    if trace.recalled is not None:
        yield f"recalled    was due at {trace.recalled.due_at.isoformat()}, for queue {trace.recalled.queue}"
    if trace.half is not None:
        asked = "undecided: decide it by hand" if trace.half.is_undecided else f"checked {trace.half.checks} times"
        yield f"half        transaction {trace.half.number} of {trace.half.producer_group}, {asked}"
    for each in trace.groups:
        yield printable(f"group       {each.group}: {_said(each)}")
    if trace.message is not None and not trace.groups:
        yield "group       none has begun to read the topic"


def _said(trace: GroupTrace) -> str:
    """Return what a group has done, in words."""
    words = [trace.state.value]
    if trace.client_id:
        words.append(f"{'with' if trace.until else 'its queue is read by'} {trace.client_id}")
    if trace.tries:
        words.append(f"try {trace.tries}")
    if trace.until:
        words.append(f"{'until' if trace.client_id else 'again from'} {_time(trace.until)}")
    if trace.copy:
        words.append(f"stored as {trace.copy}")
    return ", ".join(words)


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def due_field(message: ReceivedMessage) -> dict[str, datetime]:
    """Return the field of a JSON object that says when a delayed message was due; no field for any other message."""
    return {} if message.due_at is None else {"due_at": message.due_at}


def body_fields(body: bytes) -> dict[str, str]:
    """Return the field of a JSON object that has a body."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
