"""Decodes Avro bodies with the mark of a schema registry to columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Mode = Literal["FAILFAST", "PERMISSIVE"]
#: A schema as parsed JSON: dicts, lists and texts.
Plain: TypeAlias = Any

_MAX_READERS = 32
#: Topic, broker, queue and offset.
_PLACE_COLUMNS: Final = 4


def from_confluent_avro(
    body: Column | str,
    schema: str | Mapping[str, Any],
    registry: str | Mapping[str, Any] | None = None,
    mode: Mode = "FAILFAST",
    place: Sequence[Column | str] = (),
) -> Column:
    """Return a column with the values of Avro bodies.

    Args:
        body: the column with the bodies, or its name.
        schema: the Avro schema of the values, as text or as parsed JSON. It determines the type of the column.
        registry: the URL of the schema registry, or the arguments of `minimq.schemas.SchemaRegistry`. Each body is
            decoded with the schema that its mark names. None: the mark is removed, and all bodies have this `schema`.
        mode: "FAILFAST" ends the query with a `MinimqSparkError` at a body that cannot be decoded; "PERMISSIVE" returns
            null for it.
        place: the columns topic, broker_name, queue_id and offset, or their names; errors then show their values.

    Raises:
        InvalidArgument: the schema is invalid, or Spark has no type for it, or an argument of the registry is wrong.
    """
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import StructField, StructType

    from minimq.errors import InvalidArgument
    from pyspark_minimq.columns import arrow_schema

    if mode not in ("FAILFAST", "PERMISSIVE"):
        raise InvalidArgument(f"mode is {mode!r}: it must be 'FAILFAST' or 'PERMISSIVE'")
    if isinstance(place, str) or len(place) not in (0, _PLACE_COLUMNS):
        raise InvalidArgument("place takes the columns topic, broker_name, queue_id and offset, in this order")
    text = schema if isinstance(schema, str) else json.dumps(schema)
    options = _registry_options(registry)
    _reader(text, options)  # so that a wrong argument fails here, and not in a task
    kind = spark_type(text)

    def decode(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        import pyarrow as pa

        read, arrow = _reader(text, options), arrow_schema(StructType([StructField("value", kind)])).field(0).type
        for bodies, *places in batches:
            yield pa.array(_values(read, bodies.to_pylist(), mode, places), arrow)

    def decode_alone(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return decode((bodies,) for bodies in batches)

    # Set here because Spark selects the kind of function by its annotations, which are only strings in this file.
    import pyarrow as pa

    decode.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    decode_alone.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    function = arrow_udf(decode if place else decode_alone, returnType=kind)  # type: ignore[call-overload]
    return function(body, *place)  # type: ignore[no-any-return]


def _registry_options(registry: str | Mapping[str, Any] | None) -> str | None:
    from minimq.errors import InvalidArgument
    from minimq.schemas import SchemaRegistry

    if registry is None:
        return None
    try:
        given = {"url": registry} if isinstance(registry, str) else dict(registry)
        SchemaRegistry(**given)
        return json.dumps(given)  # texts and numbers, as they travel to the executors
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"registry takes a URL, or the arguments of SchemaRegistry as a dict: {error}") from None


def spark_type(schema: str) -> DataType:
    """Return the Spark type for an Avro schema. Raises `InvalidArgument`."""
    import fastavro

    named: dict[str, Plain] = {}
    parsed = fastavro.parse_schema(json.loads(schema), named_schemas=named)  # replaces names by full names
    return _TypeOf(named).of(parsed, ())[0]


@lru_cache(_MAX_READERS)
def _reader(schema: str, options: str | None) -> Callable[[bytes], object]:
    import msgspec

    from minimq import Message
    from minimq.errors import MalformedBody
    from minimq.schemas import AvroSerializer, SchemaRegistry

    serializer = AvroSerializer(schema, None if options is None else SchemaRegistry(**json.loads(options)))

    def read(body: bytes) -> object:
        if options is None:
            if len(body) < _MARK_BYTES or body[0] != 0:
                raise MalformedBody(f"the body of {len(body)} bytes does not begin with the mark of a schema")
            body = body[_MARK_BYTES:]
        return msgspec.to_builtins(serializer.value(Message("", body)), builtin_types=(bytes, datetime, date, Decimal))

    return read


#: Bytes of the mark: a 0, and the id of the schema in 4 bytes.
_MARK_BYTES = 5


def _values(
    read: Callable[[bytes], object], bodies: Iterable[bytes | None], mode: Mode, places: Sequence[pa.Array]
) -> list[object]:
    from minimq.errors import MalformedBody
    from pyspark_minimq.errors import MinimqSparkError

    values: list[object] = []
    for row, body in enumerate(bodies):
        try:
            values.append(None if body is None else read(body))
        except MalformedBody as error:
            if mode == "FAILFAST":
                raise MinimqSparkError(f"{_place(places, row)}: {error.message}") from None
            values.append(None)
    return values


def _place(places: Sequence[pa.Array], row: int) -> str:
    if not places:
        return "a body cannot be read (the argument place makes this error name its queue and offset)"
    *queue, offset = [column[row].as_py() for column in places]
    return f"the body of offset {offset} of queue {'/'.join(map(str, queue))} cannot be read"


#: Spark types by Avro type, and by Avro type and logical type.
_SIMPLE: Final = {
    **{"int": "int", "long": "bigint", "float": "float", "double": "double", "boolean": "boolean", "null": "void"},
    **{"string": "string", "enum": "string", "bytes": "binary", "fixed": "binary"},
}
_LOGICAL: Final = {
    ("int", "date"): "date",
    ("int", "time-millis"): "string",
    ("long", "time-micros"): "string",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
    ("string", "uuid"): "string",
}
#: Logical types that are rejected, because they are not decoded: their values would appear as numbers or bytes.
_NOT_DECODED: Final = {
    ("long", "timestamp-nanos"),
    ("long", "local-timestamp-nanos"),
    ("fixed", "duration"),
    ("fixed", "uuid"),
    ("bytes", "big-decimal"),
}
_MAX_DIGITS: Final = 38


class _TypeOf:
    """Converts parts of a schema to Spark types; `named` has the definitions in the schema by full name."""

    def __init__(self, named: Mapping[str, Plain]) -> None:
        self._named = named

    def of(self, schema: Plain, above: tuple[str, ...]) -> tuple[DataType, bool]:
        """Return the type of a part, and whether it may be null. `above` are the enclosing records."""
        from pyspark.sql.types import ArrayType, MapType, StringType

        if isinstance(schema, list):
            return self._of_union(schema, above)
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if kind == "array":
            return ArrayType(*self.of(schema["items"], above)), False
        if kind == "map":
            return MapType(StringType(), *self.of(schema["values"], above)), False
        if kind in ("record", "error"):
            return self._of_record(schema, above), False
        return (self._simple(schema), False) if isinstance(kind, str) else self.of(kind, above)

    def _of_union(self, schema: Plain, above: tuple[str, ...]) -> tuple[DataType, bool]:
        from minimq.errors import InvalidArgument

        others = [kind for kind in schema if kind != "null"]
        if len(others) != 1:
            raise InvalidArgument(f"Spark has no type for an Avro union of {len(others)} types: {schema}")
        return self.of(others[0], above)[0], "null" in schema

    def _of_record(self, schema: Plain, above: tuple[str, ...]) -> DataType:
        from pyspark.sql.types import StructField, StructType

        from minimq.errors import InvalidArgument

        name = schema["name"]
        if name in above:
            raise InvalidArgument(f"Spark has no type for the Avro record {name}, which contains itself")
        return StructType(
            [StructField(each["name"], *self.of(each["type"], (*above, name))) for each in schema["fields"]]
        )

    @staticmethod
    def _simple(schema: Plain) -> DataType:
        from pyspark.sql import types

        from minimq.errors import InvalidArgument

        kind, logical = schema["type"], schema.get("logicalType")
        if (kind, logical) in _NOT_DECODED:
            raise InvalidArgument(
                f"Avro's logical type {logical!r} of {kind!r} is not decoded: leave it out of this schema"
            )
        if logical == "decimal" and kind in ("bytes", "fixed"):
            if schema["precision"] > _MAX_DIGITS:
                raise InvalidArgument(
                    f"Spark has no type for an Avro decimal of {schema['precision']} digits: {_MAX_DIGITS} at most"
                )
            return types.DecimalType(schema["precision"], schema.get("scale", 0))
        name = _LOGICAL.get((kind, logical)) or _SIMPLE.get(kind)
        if name is None:
            raise InvalidArgument(f"Spark has no type for the Avro type {kind!r}")
        return types.DataType.fromDDL(name)
