"""Cuts an encoded request behind the first item that one of its lists has too many, before it is opened. Pure.

Opening two million empty items is one call of protobuf, a tenth of a second long, that nothing comes in between. What
is left breaks the bound as the whole request does, says who sent it, and is opened at once: whoever checks its bounds
refuses it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple

from minimq_common.bound_kinds import Bound, Entries, Items
from minimq_common.large_fields import field_head
from minimq_common.protocol_bounds import MAX_FRAME_BYTES, PACKAGE
from minimq_common.server_bounds import ALL_BOUNDS

#: Fields that are looked at in one go, in less than a millisecond.
_SLICE = 1_000
#: Fields besides the items of lists: no message has as many.
_OTHER_FIELDS = 1_000

#: A descriptor of protobuf, which this module knows by its attributes alone.
_Descriptor = Any


class Lists(NamedTuple):
    """The lists of a type of message."""

    #: Items that each of them may have, by the number of its field.
    most: Mapping[int, int]
    inner: Mapping[int, Lists]


_known: dict[str, Lists | None] = {}


def lists_of(decode: Callable[[bytes], object]) -> Lists | None:
    """Return the lists of the type of message that is decoded by its `FromString`; None when it has none."""
    descriptor = getattr(getattr(inspect.unwrap(decode), "__self__", None), "DESCRIPTOR", None)
    if descriptor is None:
        return None
    if descriptor.full_name not in _known:
        _known[descriptor.full_name] = _lists(descriptor)
    return _known[descriptor.full_name]


def _lists(descriptor: _Descriptor) -> Lists | None:
    bounds = ALL_BOUNDS[descriptor.name] if descriptor.full_name.startswith(PACKAGE) else {}
    most = {field.number: items for field in descriptor.fields if (items := _most(bounds.get(field.name))) is not None}
    inner = {
        field.number: lists
        for field in descriptor.fields
        if field.message_type is not None
        and not isinstance(bounds.get(field.name), Items | Entries)
        and (lists := _lists(field.message_type)) is not None
    }
    return Lists(most, inner) if most or inner else None


def _most(bound: Bound | None) -> int | None:
    return bound.most if isinstance(bound, Items | Entries) and bound.most < MAX_FRAME_BYTES else None


class ListCut:
    """One request, whose lists are counted in steps. Lists in the items of lists are not looked at.

    What is no message is cut within its first field that is none, so that protobuf refuses it there.
    """

    def __init__(self, data: bytes, lists: Lists) -> None:
        self.kept = data
        self._lists = lists
        self._items: dict[int, Counter[int]] = {}  # by the lists of a message: one may come in several parts
        self._fields = self._others = 0

    def steps(self) -> Iterator[None]:
        """Count, with a pause after each step."""
        kept = yield from self._walk(0, len(self.kept), self._lists)
        if kept is not None:
            self.kept = kept

    def _walk(self, start: int, end: int, lists: Lists) -> Generator[None, None, bytes | None]:
        data, items = self.kept, self._items.setdefault(id(lists), Counter())
        at = start
        while at < end:
            self._fields += 1
            if self._fields % _SLICE == 0:
                yield
            field, found = at, _field(data, at)
            if found is None or found[2] > end:
                return data[start : field + 1]
            number, content, at = found
            most, inner = lists.most.get(number), lists.inner.get(number)
            if most is not None:
                items[number] += 1
                if items[number] > most:
                    return data[start:at]
                continue
            self._others += 1
            if self._others > _OTHER_FIELDS:
                return data[start : field + 1]
            if inner is not None:
                kept = yield from self._walk(content, at, inner)
                if kept is not None:
                    return data[start:field] + field_head(number, len(kept)) + kept
        return None


def _field(data: bytes, at: int) -> tuple[int, int, int] | None:
    try:
        tag, at = _varint(data, at)
        match tag & 7:
            case 2:
                size, at = _varint(data, at)
                return tag >> 3, at, at + size
            case 0:
                return tag >> 3, at, _varint(data, at)[1]
            case 1:
                return tag >> 3, at, at + 8
            case 5:
                return tag >> 3, at, at + 4
    except IndexError:  # the request ends in it
        pass
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = shift = 0
    while byte >= 0x80 and shift <= 63:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        byte = data[at]
    return value | byte << shift, at + 1
