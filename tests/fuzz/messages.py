"""Messages of protobuf made at random from their descriptors, so that what a protocol learns is played by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from fuzz import mutation

#: Returns a value of a field, in place of one that knows nothing of its meaning.
Pool = Callable[[Random], Any]

_INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: (True, 32),
    FieldDescriptor.TYPE_SINT32: (True, 32),
    FieldDescriptor.TYPE_SFIXED32: (True, 32),
    FieldDescriptor.TYPE_UINT32: (False, 32),
    FieldDescriptor.TYPE_FIXED32: (False, 32),
    FieldDescriptor.TYPE_INT64: (True, 64),
    FieldDescriptor.TYPE_SINT64: (True, 64),
    FieldDescriptor.TYPE_SFIXED64: (True, 64),
    FieldDescriptor.TYPE_UINT64: (False, 64),
    FieldDescriptor.TYPE_FIXED64: (False, 64),
}
#: Of a list of messages, whose items may have lists as well.
_MAX_BYTES: Final = 1 << 20
_NAMES: Final = (
    "t",
    "broker-a",
    "a",
    "",
    "x" * 127,
    "x" * 128,
    "%RETRY%g",
    "127.0.0.1:1",
    "\u00fc",
    "a b",
    "a\nb",
    "\0",
)


class MessageMaker:
    """Makes messages.

    Args:
        pools: where values of a field come from mostly, by the name of the field, or by "Message.field".
        sane: share of the values that come from the pools.
        long: share of the texts that are far too long.
    """

    def __init__(self, pools: Mapping[str, Pool] | None = None, *, sane: float = 0.8, long: float = 0.0) -> None:
        self._pools = pools or {}
        self._sane = sane
        self._long = long

    def make(self, rng: Random, descriptor: Descriptor, depth: int = 0) -> Message:
        """Return a message of a type."""
        message = GetMessageClass(descriptor)()
        filled = rng.choice((0.5, 0.9, 0.9, 1.0))
        for field in descriptor.fields:
            if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
                continue
            if rng.random() < filled:
                self._fill(rng, message, field, depth)
        for oneof in descriptor.oneofs:
            if len(oneof.fields) > 1 and rng.random() < 0.95:
                self._fill(rng, message, rng.choice(oneof.fields), depth)
        return message

    def _fill(self, rng: Random, message: Message, field: FieldDescriptor, depth: int) -> None:
        if isinstance(field.default_value, list | tuple):  # `is_repeated` is not known to older releases
            self._fill_list(rng, message, field, depth)
        elif field.message_type is not None:
            if depth < 6:
                getattr(message, field.name).CopyFrom(self.make(rng, field.message_type, depth + 1))
        else:
            setattr(message, field.name, self._value(rng, field))

    def _fill_list(self, rng: Random, message: Message, field: FieldDescriptor, depth: int) -> None:
        # Long lists hold few different items, which are made once: what counts is what a server does with them.
        count = rng.choice((0, 1, 1, 2, 3, 5)) if rng.random() < 0.99 else rng.choice((100, 1000, 5000))
        items = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            for _ in range(min(count, 100)):
                items[self._value(rng, key)] = self._value(rng, value)
        elif field.message_type is not None:
            if depth < 6:
                made = [self.make(rng, field.message_type, depth + 1) for _ in range(min(count, 5))]
                most = _MAX_BYTES // (1 + max((item.ByteSize() for item in made), default=0))
                items.extend(made[place % len(made)] for place in range(min(count, most)))
        else:
            found = [self._value(rng, field) for _ in range(min(count, 5))]
            items.extend(found[place % len(found)] for place in range(count))

    def _value(self, rng: Random, field: FieldDescriptor) -> Any:
        pool = self._pools.get(".".join(field.full_name.split(".")[-2:])) or self._pools.get(field.name)
        if field.type == FieldDescriptor.TYPE_STRING and rng.random() < self._long:
            return rng.choice(("x", "\n", "\u20ac")) * rng.choice((300, 70_000, 1 << 20))
        if pool is not None and rng.random() < self._sane:
            return pool(rng)
        return self._value_at_random(rng, field)

    def _value_at_random(self, rng: Random, field: FieldDescriptor) -> Any:
        if field.type in _INTEGERS:
            signed, bits = _INTEGERS[field.type]
            half = 1 << (bits - 1)
            number = mutation.number(rng) & ((1 << bits) - 1)
            return number - (1 << bits) if signed and number >= half else number
        if field.type == FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        if field.enum_type is not None:
            known = [value.number for value in field.enum_type.values]
            return rng.choice(known) if rng.random() < 0.9 else rng.choice((-1, 99, (1 << 31) - 1))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 10, 100)))
        assert field.type == FieldDescriptor.TYPE_STRING, f"{field.full_name} has a type that is not known here"
        return mutation.text(rng, _NAMES).encode(errors="replace").decode()
