"""Messages as rows and as lines."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from minimq.admin.texts import printable, shown_body
from minimq.admin.views import Row

if TYPE_CHECKING:
    from minimq.consuming.received import ReceivedMessage
    from minimq_common.model import MessageQueue


def store_order(message: ReceivedMessage) -> tuple[int, MessageQueue, int]:
    """Return the sort key for the order of store times."""
    return message.batch.stored_ms_of(message.index), message.queue, message.queue_offset


def message_row(message: ReceivedMessage, *, body: bool) -> Row:
    """Return all fields of a message by JSON key; the body only if `body` is set."""
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
        **({"due_at": message.due_at} if message.due_at is not None else {}),
        "bytes": len(message.body),
        **({"is_tombstone": True} if message.is_tombstone else {}),
        **(body_fields(message.body) if body else {}),
    }


def message_lines(message: ReceivedMessage) -> Iterator[str]:
    """Yield a line for each field, an empty line, and the body. Control characters are escaped."""
    yield from field_lines(message_row(message, body=False))
    yield ""
    yield from map(printable, message.body.decode(errors="backslashreplace").split("\n"))


def field_lines(row: Row) -> Iterator[str]:
    """Yield a line for each field that has a value. Control characters are escaped."""
    return (printable(f"{each['field']:<20}{each['value']}") for each in fields_of(row))


def fields_of(row: Row, prefix: str = "") -> Iterator[dict[str, str]]:
    """Yield a row for each field that has a value; fields of objects follow their names."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from fields_of(value, f"{name} ")
        elif value not in (None, []):
            text = value.isoformat() if isinstance(value, datetime) else value
            yield {"field": prefix + name, "value": ", ".join(text) if isinstance(text, list) else str(text)}


def as_line(message: ReceivedMessage) -> bytes:
    """Return a line: store time, address, tag, keys and the start of the body. Control characters are escaped."""
    about = [
        f"{message.stored_at.astimezone(UTC):%H:%M:%S.%f}"[:-3],
        f"{message.queue}@{message.queue_offset}",
        *([f"tag={message.tag}"] if message.tag is not None else []),
        *(f"key={key}" for key in message.keys),
        shown_body(message.body),
    ]
    return printable("  ".join(about)).encode(errors="backslashreplace")


def body_fields(body: bytes) -> dict[str, str]:
    """Return the JSON field with the body: as text, or in base64 if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
