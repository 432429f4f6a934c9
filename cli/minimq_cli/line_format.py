"""Input formats of `minimq produce`: bodies, JSON objects with fields, or whole messages in JSON."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from minimq.admin.texts import listing
from minimq.admin.values import any_moment
from minimq.features.delayed.due_times import due_time
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message

#: Maximum number of JSON bytes for one byte of a body: a control character takes six.
MAX_ESCAPE: Final = 6

#: Some editors write it at the beginning of a file.
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A message as `minimq consume --output jsonl` writes it; the fields that only brokers set are ignored."""

    body: str | None = None
    body_base64: str | None = None
    tag: str | None = None
    keys: list[str] = []
    message_group: str | None = None
    properties: dict[str, str] = {}
    deliver_after_s: float | None = None
    deliver_at: str | float | None = None
    recallable: bool = False
    is_tombstone: bool = False
    address: Any = None
    topic: Any = None
    broker: Any = None
    queue: Any = None
    offset: Any = None
    message_id: Any = None
    born_at: Any = None
    stored_at: Any = None
    due_at: Any = None
    bytes: Any = None


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
        found: _Line = _decoded(line, number, _Line)
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
        return replace(
            self.common,
            body=body,
            tag=found.tag or self.common.tag,
            keys=found.keys,
            properties={**self.common.properties, **found.properties},
            message_group=found.message_group or self.common.message_group,
            is_tombstone=found.is_tombstone,
            **self._delay_of(found, number),
        )

    def _delay_of(self, found: _Line, number: int) -> dict[str, Any]:
        after_s, common = found.deliver_after_s, self.common
        if after_s is None and found.deliver_at is None and not found.recallable:
            return {}
        try:
            at = any_moment("deliver_at", found.deliver_at) if isinstance(found.deliver_at, str) else found.deliver_at
            if after_s is None and at is None:
                after_s, at = common.deliver_after_s, common.deliver_at
            is_recallable = found.recallable or common.recallable
            delay = {"deliver_after_s": after_s, "deliver_at": at, "recallable": is_recallable}
            due_time(replace(common, **delay), 0.0, time.time())  # raises if it is invalid
        except InvalidArgument as error:
            raise InvalidArgument(f"line {number}: {error.message}") from None
        return delay


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
