"""Finds the invalid field of a message for the text of an error. Not used while messages are valid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from minimq_common.errors import InvalidArgument
from minimq_common.model import Message
from minimq_common.text_units import kind_of


def wrong_message(messages: Iterable[object]) -> str | None:
    """Return a sentence about the first item that is not a message or has an invalid field; None if all are valid."""
    for message in messages:
        if not isinstance(message, Message):
            return f"a message is {kind_of(message)}: give a minimq.Message"
        found = wrong_field([message.body], [message.tag], [message.keys], [message.properties])
        if found:
            return found
    return None


def check_empty(message: Message, *, is_compacted: bool) -> None:
    """Raise `InvalidArgument` if the topic does not allow this empty body. Tombstones need a compacted topic."""
    if len(message.body):
        return
    if message.is_tombstone and not is_compacted:
        raise InvalidArgument(f"topic {message.topic!r} is not compacted: it takes no tombstones")
    if is_compacted and not message.is_tombstone:
        raise InvalidArgument(
            f"a message for topic {message.topic!r} has an empty body, and the topic is compacted: give it at least "
            "one byte, or delete the key with Message.tombstone(topic, key)"
        )
    if message.is_tombstone and not (message.keys and message.keys[0]):
        raise InvalidArgument("a tombstone has no key: Message.tombstone(topic, key) deletes a key")


def wrong_field(
    bodies: Iterable[object], tags: Iterable[object], keys: Iterable[object], properties: Iterable[object]
) -> str | None:
    """Return a sentence about the first invalid field, or None. Arguments are columns: one value per message."""
    return next(chain(_of_bodies(bodies), _of_tags(tags), _of_keys(keys), _of_properties(properties)), None)


def _of_bodies(bodies: Iterable[object]) -> Iterator[str]:
    for body in bodies:
        if not isinstance(body, bytes | bytearray | memoryview):
            yield f"the body of the message is {kind_of(body)}: give bytes"


def _of_tags(tags: Iterable[object]) -> Iterator[str]:
    for tag in tags:
        if tag is not None:
            yield from _of_text("the tag", tag)


def _of_keys(keys: Iterable[object]) -> Iterator[str]:
    for together in keys:
        if together is None or isinstance(together, str) or not isinstance(together, Iterable):
            yield f"the keys of the message are {kind_of(together)}: give a list of texts"
            return
        for key in together:
            yield from _of_text("a key", key)


def _of_properties(properties: Iterable[object]) -> Iterator[str]:
    for together in properties:
        if not isinstance(together, Mapping):
            yield f"the properties of the message are {kind_of(together)}: give a dict of texts"
            return
        for name, value in together.items():
            yield from _of_text("the name of a property", name)
            yield from _of_text(f"property {name[:40]!r}", value)


def _of_text(what: str, value: object) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{what} of the message is {kind_of(value)}: give text"
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        yield f"{what} of the message has half a character: give text that UTF-8 can hold"
