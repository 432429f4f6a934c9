"""Input formats of `minimq produce`: bodies, JSON objects with fields, or whole messages in JSON."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, get_type_hints

import msgspec
from msgspec.structs import replace

from minimq.admin.texts import listing
from minimq.admin.values import any_moment
from minimq.features.delayed.due_times import due_time
from minimq_common.errors import InvalidArgument
from minimq_common.model import FIELDS, Message, MessageFields

#: Maximum number of JSON bytes for one byte of a body: a control character takes six.
MAX_ESCAPE: Final = 6

#: Some editors write it at the beginning of a file.
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


#: The types of fields in JSON that differ from those of `Message`.
_TYPES: Final[Mapping[str, Any]] = {"texts": list[str], "properties": dict[str, str], "time": str | float | None}
_HINTS: Final = get_type_hints(MessageFields)
#: A message as `minimq consume --output jsonl` writes it; the fields that only brokers set are ignored.
_Line: Final[Any] = msgspec.defstruct(
    "_Line",
    [
        ("body", str | None, None),
        ("body_base64", str | None, None),
        ("is_tombstone", bool, False),
        *((name, _TYPES.get(each.kind, _HINTS[name]) | None, None) for name, each in FIELDS.items()),
        *((name, Any, None) for name in ("address", "topic", "broker", "queue", "offset", "message_id", "born_at")),
        *((name, Any, None) for name in ("stored_at", "due_at", "bytes")),
    ],
    forbid_unknown_fields=True,
)


@dataclass(frozen=True, slots=True)
class LineFormat:
    #: Defaults of all messages, which lines may override; its body is not used.
    common: Message
    _: KW_ONLY
    #: Names of the JSON fields with the key, the tag and the message group.
    key_field: str | None = None
    tag_field: str | None = None
    group_field: str | None = None
    #: Lines are whole messages in JSON.
    is_json: bool = False

    @property
    def is_decoded(self) -> bool:
        """True if lines are JSON, whole messages or objects with fields."""
        return self.is_json or any(name is not None for name in (self.key_field, self.tag_field, self.group_field))

    def messages(self, lines: Sequence[bytes], first: int) -> list[tuple[int, Message]]:
        """Return the messages with their line numbers, and skip empty lines. Raises `InvalidArgument`."""
        if not self.is_decoded:
            return [(number, replace(self.common, body=line)) for number, line in enumerate(lines, first) if line]
        if first == 1 and lines:
            lines = [lines[0].removeprefix(_BYTE_ORDER_MARK), *lines[1:]]
        make = self._of_message if self.is_json else self._of_fields
        return [(number, make(line, number)) for number, line in enumerate(lines, first) if line.strip()]

    def _of_fields(self, line: bytes, number: int) -> Message:
        fields = _decoded(line, number, Any)
        if not isinstance(fields, dict):
            raise InvalidArgument(f"line {number} is not a JSON object, so it has no fields")
        key = _text(fields, self.key_field, number)
        tag = _text(fields, self.tag_field, number) or self.common.tag
        group = _text(fields, self.group_field, number) or self.common.message_group
        return replace(self.common, body=line, tag=tag, keys=() if key is None else (key,), message_group=group)

    def _of_message(self, line: bytes, number: int) -> Message:
        found = _decoded(line, number, _Line)
        if (found.body is None) == (found.body_base64 is None):
            raise InvalidArgument(
                f"line {number} needs one of body and body_base64, as consume --output jsonl writes them"
            )
        try:
            body = (
                base64.b64decode(found.body_base64 or "", validate=True) if found.body is None else found.body.encode()
            )
        except (binascii.Error, UnicodeEncodeError, ValueError) as error:
            raise InvalidArgument(f"line {number} has a body that cannot be decoded: {error}") from None
        given = {name: value for name in FIELDS if (value := getattr(found, name))}
        given["properties"] = {**self.common.properties, **given.get("properties", {})}
        try:
            if isinstance(at := given.get("deliver_at"), str):
                given["deliver_at"] = any_moment("deliver_at", at)
            if given.keys() & {"deliver_after_s", "deliver_at"}:  # either replaces the delay of all messages
                given = {"deliver_after_s": None, "deliver_at": None, **given}
            message = replace(self.common, body=body, is_tombstone=found.is_tombstone, **given)
            due_time(message, 0.0, time.time())  # raises if it is invalid
        except InvalidArgument as error:
            raise InvalidArgument(f"line {number}: {error.message}") from None
        return message


def check_fields(names: Iterable[str], messages: Sequence[tuple[int, Message]]) -> None:
    """Raise `InvalidArgument` if none of these messages, whose bodies are JSON objects, has one of the named fields."""
    seen = {field for _, message in messages for field in msgspec.json.decode(message.body)}
    for name in names:
        if name not in seen:
            raise InvalidArgument(f"the first lines have no field {name!r}: they have {listing(sorted(seen))}")


def _decoded(line: bytes, number: int, kind: Any) -> Any:
    try:
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.ValidationError as error:
            raise InvalidArgument(
                f"line {number} is not a message as consume --output jsonl writes it: {error}"
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"line {number} is not JSON in UTF-8: {error}") from None
    except RecursionError:  # in either call: the possible depth depends on the stack
        raise InvalidArgument(f"line {number} is nested too deeply") from None


def _text(fields: dict[str, Any], field: str | None, number: int) -> str | None:
    """Return a field as text; None if it is not requested, absent, null or empty."""
    value = None if field is None else fields.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and "\0" in value:
        raise InvalidArgument(f"line {number}: field {field!r} has a NUL character, which keys and tags may not have")
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidArgument(f"line {number}: field {field!r} is neither text nor a number")
