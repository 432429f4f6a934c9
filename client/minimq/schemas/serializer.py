"""The base class of all serializers: framing, subjects, and the public methods."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Generic, Literal, NamedTuple, TypedDict, TypeVar, Unpack

from minimq.features.requests.reply import Reply
from minimq.schemas.framing import SCHEMA_ID_PROPERTY, HasBody, SchemaMark, header_mark, mark_of, prefix_mark
from minimq.schemas.registry import RegisteredSchema, Schema, SchemaMissing, SchemaRegistry
from minimq_common.errors import InvalidArgument, MalformedBody, MinimqError
from minimq_common.model import NO_PROPERTIES, Message, MessageFields

T = TypeVar("T")
Framing = Literal["prefix", "header"]

#: Size of a serializer's caches: marks by topic, and parsed schemas.
KEPT_SCHEMAS = 1000


class SerializerOptions(TypedDict, total=False):
    """The options of a serializer besides its schema and its registry; see `Serializer`."""

    subject: Callable[[str], str] | None
    register: bool
    framing: Framing


class _TopicMark(NamedTuple):
    prefix: bytes
    properties: Mapping[str, str]


class Serializer(ABC, Generic[T]):
    """Converts values to message bodies and back. Thread-safe; any number of clients may share one.

    With a schema registry, each body has a mark with the id of its schema. The first value for a topic, and the first
    body with a schema, cause a blocking request to the registry: on an event loop, use the `_async` methods.

    Args:
        registry: the schema registry; None for bodies without a mark.
        subject: returns the subject of a topic; None for `TOPIC-value`.
        register: whether to register a missing schema; otherwise it must be registered already.
        framing: where to write the mark: "prefix" puts the id before the body, "header" the GUID into a property. Both
            are read in any case.

    Raises:
        InvalidArgument: an argument is wrong.
    """

    #: Whether marks contain message indexes, as for Protobuf.
    _has_indexes = False

    def __init__(
        self,
        registry: SchemaRegistry | None = None,
        *,
        subject: Callable[[str], str] | None = None,
        register: bool = True,
        framing: Framing = "prefix",
    ) -> None:
        if registry is not None and not isinstance(registry, SchemaRegistry):
            raise InvalidArgument(f"registry is {registry!r}: give a SchemaRegistry, or None")
        if framing not in ("prefix", "header"):
            raise InvalidArgument(f"framing is {framing!r}: it must be 'prefix' or 'header'")
        self.registry = registry
        self._subject = subject or "{}-value".format
        self._register = register
        self._framing = framing
        self._mark_of = lru_cache(KEPT_SCHEMAS)(self._new_mark)

    # ---- for users ------------------------------------------------------------------------------

    def message(self, topic: str, value: T, **fields: Unpack[MessageFields]) -> Message:
        """Return a message with `value` as its body.

        Args:
            topic: topic of the message.
            value: becomes its body.
            **fields: the other fields of `Message`: `tag`, `keys`, `properties` and so on.

        Raises:
            InvalidArgument: the value does not fit the schema; the text has the path of the field. Or the registry
                rejects the schema.
            NotAuthenticated, AccessDenied: the schema registry rejects the credentials.
            Unavailable: the schema registry does not answer.
        """
        body, fields["properties"] = self._encoded(topic, value, fields.get("properties", NO_PROPERTIES))
        return Message(topic, body, **fields)

    def reply(self, topic: str, value: T, properties: Mapping[str, str] = NO_PROPERTIES) -> Reply:
        """Return a reply with `value` as its body, under the subject of `topic`. Raises the errors of `message`."""
        return Reply(*self._encoded(topic, value, properties))

    def value(self, message: HasBody) -> T:
        """Return the value of a message or a reply.

        Raises:
            MalformedBody: the body has no mark, the registry does not have its schema, or the body does not fit it.
            NotAuthenticated, AccessDenied, Unavailable: from the schema registry, see `message`.
        """
        body = message.body
        if self.registry is None:
            return self._checked(lambda: self._decode(body, None, ()))
        mark = mark_of(message, has_indexes=self._has_indexes)
        return self._checked(lambda: self._decode(body[mark.start :], mark, mark.indexes))

    async def message_async(self, topic: str, value: T, **fields: Unpack[MessageFields]) -> Message:
        """Do the same as `message`, in a thread."""
        return await asyncio.to_thread(self.message, topic, value, **fields)

    async def value_async(self, message: HasBody) -> T:
        """Do the same as `value`, in a thread."""
        return await asyncio.to_thread(self.value, message)

    # ---- for the formats ------------------------------------------------------------------------

    @abstractmethod
    def _schema(self) -> Schema:
        """Return the schema to register. Raises `InvalidArgument` if there is none."""

    @abstractmethod
    def _encode(self, value: T) -> bytes:
        """Encode a value. Raises `InvalidArgument` with the path of a field that does not fit."""

    @abstractmethod
    def _decode(self, payload: bytes, mark: SchemaMark | None, indexes: Sequence[int]) -> T:
        """Decode a payload. Raises `MalformedBody`, or an error of a library, which `value` turns into it."""

    def _indexes(self) -> Sequence[int]:
        return ()

    def written(self, mark: SchemaMark, *, serialized: bool = False) -> RegisteredSchema:
        """Return the schema that a body was written with. Raises `MalformedBody` if the registry does not have it."""
        assert self.registry is not None
        try:
            return self.registry.schema(mark.schema_id, serialized=serialized)
        except SchemaMissing as error:
            raise MalformedBody(f"the body names {mark}, which the schema registry does not have: {error}") from None

    # ---- the mark -------------------------------------------------------------------------------

    def _encoded(self, topic: str, value: T, properties: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
        payload = self._encode(value)
        if self.registry is None:
            return payload, properties
        mark = self._mark_of(topic)
        return mark.prefix + payload, {**properties, **mark.properties} if mark.properties else properties

    def _new_mark(self, topic: str) -> _TopicMark:
        assert self.registry is not None
        subject, schema = self._subject(topic), self._schema()
        registered = (self.registry.register if self._register else self.registry.lookup)(subject, schema)
        if self._framing == "prefix":
            return _TopicMark(prefix_mark(registered.schema_id, self._indexes()), NO_PROPERTIES)
        if registered.guid is None:
            raise InvalidArgument(f"{self.registry!r} gives schemas no GUID: use framing='prefix'")
        return _TopicMark(b"", {SCHEMA_ID_PROPERTY: header_mark(registered.guid, self._indexes())})

    def _checked(self, decode: Callable[[], T]) -> T:
        try:
            return decode()
        except MinimqError:
            raise
        except RecursionError:
            raise MalformedBody("the body is nested too deeply") from None
        except Exception as error:  # libraries raise errors of any kind for unchecked bytes
            raise MalformedBody(f"the body does not fit its schema: {type(error).__name__}: {error}"[:500]) from error
