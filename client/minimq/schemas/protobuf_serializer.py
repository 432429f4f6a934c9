"""The Protobuf serializer."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import TypeVar, Unpack, cast

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from minimq.schemas.framing import SchemaMark
from minimq.schemas.registry import Schema, SchemaReference, SchemaRegistry
from minimq.schemas.serializer import Serializer, SerializerOptions
from minimq_common.errors import InvalidArgument, MalformedBody
from minimq_common.text_units import kind_of

P = TypeVar("P", bound=Message)

#: Files that every reader of Protobuf has.
_BUILT_IN = ("google/protobuf/", "google/type/", "confluent/")


class ProtobufSerializer(Serializer[P]):
    """Messages of a class that protoc has generated.

    Bodies are decoded as this class, whatever version of the schema they were written with: Protobuf keeps unknown
    fields. Imported files are registered first, each under its own name.

    Args:
        kind: the class.
        registry: the schema registry; None for bodies without a mark.
        options: `subject`, `register` and `framing`, as for `Serializer`.

    Raises:
        InvalidArgument: `kind` is no such class.
    """

    _has_indexes = True

    def __init__(
        self, kind: type[P], registry: SchemaRegistry | None = None, **options: Unpack[SerializerOptions]
    ) -> None:
        super().__init__(registry, **options)
        given: object = kind
        if not (isinstance(given, type) and issubclass(given, Message)):
            raise InvalidArgument(f"{kind!r} is no class that protoc has generated")
        self._kind = kind
        self._index = tuple(_index_of(cast(Descriptor, kind.DESCRIPTOR)))
        self._file = cast(FileDescriptor, kind.DESCRIPTOR.file)

    def _schema(self) -> Schema:
        return Schema(_text_of(self._file), "PROTOBUF", self._registered(self._file))

    def _indexes(self) -> Sequence[int]:
        return self._index

    def _registered(self, file: FileDescriptor) -> tuple[SchemaReference, ...]:
        assert self.registry is not None
        references = []
        for imported in file.dependencies:
            if imported.name.startswith(_BUILT_IN):
                continue
            schema = Schema(_text_of(imported), "PROTOBUF", self._registered(imported))
            if self._register:
                self.registry.register(imported.name, schema)
            references.append(self.registry.reference(imported.name, imported.name, schema))
        return tuple(references)

    def _encode(self, value: P) -> bytes:
        if not isinstance(value, self._kind):
            raise InvalidArgument(f"the value is {kind_of(value)}: give {self._kind.DESCRIPTOR.full_name}")
        if missing := value.FindInitializationErrors():  # type: ignore[attr-defined]
            raise InvalidArgument(f"the value does not fit its schema: `$.{missing[0]}` is missing")
        try:
            return value.SerializeToString()
        except EncodeError as error:
            raise InvalidArgument(f"the value cannot be written: {error}") from None

    def _decode(self, payload: bytes, mark: SchemaMark | None, indexes: Sequence[int]) -> P:
        if mark is not None and tuple(indexes) != self._index:
            raise MalformedBody(
                f"the body is message {list(indexes)} of its Protobuf file, and {self._kind.DESCRIPTOR.full_name} is "
                f"{list(self._index)}"
            )
        value = self._kind()
        try:
            value.ParseFromString(payload)
        except DecodeError as error:
            raise MalformedBody(f"the body is no {self._kind.DESCRIPTOR.full_name}: {error}") from None
        return value


def _text_of(file: FileDescriptor) -> str:
    return b64encode(file.serialized_pb).decode()


def _index_of(descriptor: Descriptor) -> list[int]:
    around = descriptor.containing_type
    if around is None:
        return [list(descriptor.file.message_types_by_name).index(descriptor.name)]
    return [*_index_of(around), list(around.nested_types_by_name).index(descriptor.name)]
