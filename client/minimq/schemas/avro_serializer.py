"""The serializer of Avro."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Unpack

from minimq.schemas.avro_schema import AvroSchema, Plain
from minimq.schemas.framing import SchemaMark
from minimq.schemas.registry import Schema, SchemaRegistry, resolved
from minimq.schemas.serializer import KEPT_SCHEMAS, Serializer, SerializerOptions
from minimq_common.errors import InvalidArgument, MalformedBody


class AvroSerializer(Serializer[Any]):
    """Avro's binary encoding of plain values; a record is a dict.

    A body is read with the schema with which it was written, as the registry has it, and becomes a value of the own
    schema by Avro's rules: fields that it lacks have their defaults, others are passed over.

    Args:
        schema: an Avro schema, as text or as parsed JSON. None: the serializer only reads, and values are as they were
            written.
        registry: the schema registry; None for bodies without a mark, which all have this very schema.
        options: `subject`, `register` and `framing`, as for `Serializer`.

    Raises:
        InvalidArgument: the schema is none, or there is neither schema nor registry.
    """

    def __init__(
        self,
        schema: str | Mapping[str, Any] | list[Any] | None = None,
        registry: SchemaRegistry | None = None,
        **options: Unpack[SerializerOptions],
    ) -> None:
        super().__init__(registry, **options)
        if schema is None and registry is None:
            raise InvalidArgument("give an Avro schema, or a schema registry that has those of the bodies")
        self._text = schema.strip() if isinstance(schema, str) else json.dumps(schema) if schema is not None else None
        self._own = None if self._text is None else AvroSchema(Schema(self._text), {})
        self._parsed = lru_cache(KEPT_SCHEMAS)(self._parse)

    def _schema(self) -> Schema:
        return Schema(self._text or "")

    def _encode(self, value: Plain) -> bytes:
        if self._own is None:
            raise InvalidArgument("the serializer has no schema, so that it can only read: give it one to send")
        return self._own.encode(value)

    def _decode(self, payload: bytes, mark: SchemaMark | None, indexes: Sequence[int]) -> Plain:
        if mark is None:
            assert self._own is not None
            return self._own.decode(payload, None)
        written = self._parsed(self.written(mark).schema)
        return written.decode(payload, self._own)

    def _parse(self, schema: Schema) -> AvroSchema:
        assert self.registry is not None
        try:
            return AvroSchema(schema, resolved(self.registry, schema.references))
        except InvalidArgument as error:
            raise MalformedBody(f"the body cannot be read: {error}") from None
