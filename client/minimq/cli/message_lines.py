"""One message for people to read, and as a row of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from minimq.cli.message_output import body_fields
from minimq.cli.printable import printable
from minimq.cli.table import Row

if TYPE_CHECKING:
    from minimq.receiving.received import ReceivedMessage


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
        "bytes": len(message.body),
        **(body_fields(message.body) if body else {}),
    }


def message_lines(message: ReceivedMessage) -> Iterator[str]:
    """Yield a message in lines: what is known of it, an empty line, and the body. Control characters are escaped."""
    yield f"address     {message.queue}@{message.queue_offset}"
    yield f"id          {message.message_id}"
    yield f"stored      {message.stored_at.isoformat()}"
    yield f"born        {message.born_at.isoformat()}"
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
