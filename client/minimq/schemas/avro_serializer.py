"""The Avro serializer, and parsed schemas, which decode untrusted bodies safely."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from reprlib import repr as short_repr
from typing import Any, TypeAlias, Unpack

import fastavro

# fastavro's compiled reader recurses on the C stack: with a recursive schema, a deeply nested body crashes the process.
# The reader in Python raises RecursionError instead.
from fastavro import _read_py as python_reader
from fastavro.validation import ValidationError, validate

from minimq.schemas.framing import SchemaMark
from minimq.schemas.registry import Schema, SchemaRegistry, resolved
from minimq.schemas.serializer import KEPT_SCHEMAS, Serializer, SerializerOptions
from minimq_common.errors import InvalidArgument, MalformedBody

#: A plain value, or a schema as parsed JSON: dicts, lists and texts.
Plain: TypeAlias = Any

_NAMED = ("record", "error", "enum", "fixed")


class AvroSchema:
    """A parsed Avro schema."""

    def __init__(self, schema: Schema, others: Mapping[str, Schema]) -> None:
        if schema.kind != "AVRO":
            raise InvalidArgument(f"the schema is of kind {schema.kind}, not AVRO")
        self._named: dict[str, Any] = {}
        try:
            for other in others.values():
                fastavro.parse_schema(json.loads(other.text), named_schemas=self._named)
            self.parsed = fastavro.parse_schema(_read(schema.text), named_schemas=self._named)
        except (ValueError, TypeError, KeyError, RecursionError, fastavro.schema.SchemaParseException) as error:
            raise InvalidArgument(f"this is no Avro schema: {type(error).__name__}: {error}"[:300]) from None
        facts = _SchemaFacts(self._named)
        try:
            facts.least_bytes(self.parsed, ())
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidArgument(f"a default of the Avro schema is not of its type: {error}") from None
        self._is_recursive = facts.is_recursive
        if facts.unbounded is not None:
            raise InvalidArgument(
                f"the Avro schema has an array of {facts.unbounded}, which takes no bytes: a short body could hold any "
                "number of them"
            )

    def encode(self, value: object) -> bytes:
        """Return a value in Avro's binary encoding. Raises `InvalidArgument` naming a field that does not fit."""
        written = BytesIO()
        try:
            validate(value, self.parsed)
            fastavro.schemaless_writer(written, self.parsed, value, strict_allow_default=True)
            return written.getvalue()
        except ValidationError as error:
            found = error.errors[-1]  # of a union, the last kind: the first is mostly null
            told = f"`{found.field or '$'}` is {short_repr(found.datum)}, not {_name(found.schema)}"
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            told = str(error)[:300]
        raise InvalidArgument(f"the value does not fit its schema: {told}")

    def decode(self, payload: bytes, reader: AvroSchema | None) -> Plain:
        """Return the value of a payload that was written with this schema, resolved to `reader` unless that is None."""
        data = BytesIO(payload)
        read = python_reader.schemaless_reader if self._is_recursive else fastavro.schemaless_reader
        value = read(data, self.parsed, None if reader is None else reader.parsed)
        if data.tell() != len(payload):
            raise MalformedBody(f"the body has {len(payload) - data.tell()} bytes after its value")
        return value


class _SchemaFacts:
    """Finds out whether a schema is recursive, and whether a short body could hold an unbounded array."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._known: dict[str, int] = {}
        self.is_recursive = False
        #: The type of the items of an array if such an item takes no bytes; None if there is no such array.
        self.unbounded: str | None = None

    def least_bytes(self, schema: Plain, above: tuple[str, ...]) -> int:
        """Return 0 if a value may take no bytes, else 1. Visits all parts of the schema."""
        if isinstance(schema, list):
            for part in schema:
                self.least_bytes(part, above)
            return 1
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(schema, str) and schema in self._named:
            return self._of_name(schema, self._named[schema], above)
        if kind in _NAMED:
            return self._of_name(schema["name"], schema, above)
        if kind == "array" and not self.least_bytes(schema["items"], above):
            self.unbounded = _name(schema["items"])
        if kind == "map":
            self.least_bytes(schema["values"], above)
        return int(kind != "null")

    def _of_name(self, name: str, schema: Plain, above: tuple[str, ...]) -> int:
        if name in above:
            self.is_recursive = True
            return 1  # a finite value ends the recursion by a union, an array or a map, which takes a byte
        if name not in self._known:
            if schema["type"] == "fixed":
                self._known[name] = int(schema["size"] > 0)
            elif schema["type"] == "enum":
                self._known[name] = 1
            else:
                parts = [self.least_bytes(field["type"], (*above, name)) for field in schema["fields"]]
                for field in schema["fields"]:
                    if "default" in field:
                        field["default"] = _default_value(field["type"], field["default"])
                self._known[name] = max(parts, default=0)
        return self._known[name]


def _default_value(schema: Plain, default: Plain) -> Plain:
    kind = schema[0] if isinstance(schema, list) and schema else schema
    base = kind["type"] if isinstance(kind, dict) else kind
    if base in ("bytes", "fixed") and isinstance(default, str):
        default = default.encode("latin-1")
    if not isinstance(kind, dict) or "logicalType" not in kind or isinstance(default, dict | list):
        return default
    plain = {name: value for name, value in kind.items() if name != "logicalType"}
    written = BytesIO()
    fastavro.schemaless_writer(written, plain, default)
    written.seek(0)
    return fastavro.schemaless_reader(written, plain | {"logicalType": kind["logicalType"]}, None)


def _read(text: str) -> Plain:
    return json.loads(text) if text.lstrip()[:1] in ("{", "[", '"') else {"type": text.strip()}


def _name(schema: Plain) -> str:
    if isinstance(schema, list):
        return " or ".join(map(_name, schema))
    if isinstance(schema, dict):
        return str(schema.get("name") or schema.get("logicalType") or schema["type"])
    return str(schema)


class AvroSerializer(Serializer[Any]):
    """Avro's binary encoding of plain values; a record is a dict.

    A body is decoded with the schema that it was written with, from the registry, and then resolved to `schema` by
    Avro's rules: missing fields get their defaults, unknown fields are skipped.

    Args:
        schema: an Avro schema, as text or as parsed JSON. None: the serializer only reads, and values are as they were
            written.
        registry: the schema registry; None for bodies without a mark, which must all be written with `schema`.
        options: `subject`, `register` and `framing`, as for `Serializer`.

    Raises:
        InvalidArgument: the schema is no Avro schema, or there is neither schema nor registry.
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
