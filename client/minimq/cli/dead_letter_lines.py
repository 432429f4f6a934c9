"""Dead letters as lines of stdout."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from minimq.cli.message_output import LineOf, as_body
from minimq.operations.message_text import body_fields
from minimq.operations.printable import printable

if TYPE_CHECKING:
    from minimq.receiving.received import ReceivedMessage

#: Bytes of a body that are shown as text.
_SHOWN_BYTES = 200


def _as_text(message: ReceivedMessage) -> bytes:
    """Return the place, the reason and the beginning of the body of a dead letter; control characters as escapes."""
    from minimq.dead_letters.dead_letter import DeadLetter

    letter = DeadLetter(message)
    origin = f"{letter.origin_queue or letter.topic or '-'}"
    origin += "" if letter.origin_offset is None else f", offset {letter.origin_offset}"
    lines = [
        f"{letter.place}  {_in_utc(letter.died_at)}  {letter.reason}  tries {letter.tries}",
        f"  from {origin}, id {letter.message_id}",
    ]
    if letter.tag is not None:
        lines.append(f"  tag {letter.tag}")
    if letter.keys:
        lines.append(f"  keys {', '.join(letter.keys)}")
    lines += [f"  {name} = {value}" for name, value in sorted(letter.properties.items())]
    body = letter.body[:_SHOWN_BYTES].decode(errors="backslashreplace")
    more = f" ... {len(letter.body):,} bytes" if len(letter.body) > _SHOWN_BYTES else ""
    lines.append(f"  {body}{more}")
    return "\n".join(map(printable, lines)).encode(errors="backslashreplace")


def _as_json(message: ReceivedMessage) -> bytes:
    """Return everything as a JSON object; a body that is not UTF-8 as `body_base64`."""
    from minimq.dead_letters.dead_letter import DeadLetter

    letter = DeadLetter(message)
    origin = letter.origin_queue
    return msgspec.json.encode(
        {
            "group": letter.group,
            "place": letter.place,
            "reason": letter.reason,
            "tries": letter.tries,
            "died_at": letter.died_at,
            "topic": letter.topic,
            "broker": origin.broker_name if origin else None,
            "queue": origin.queue_id if origin else None,
            "offset": letter.origin_offset,
            "stored_at": letter.origin_stored_at,
            "message_id": letter.message_id,
            "tag": letter.tag,
            "keys": list(letter.keys),
            "properties": dict(letter.properties),
            "born_at": letter.born_at,
            **body_fields(letter.body),
        }
    )


#: The formats of lines, by their names for `--format`.
SHAPES: Mapping[str, LineOf] = {"text": _as_text, "body": as_body, "json": _as_json}


def _in_utc(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
