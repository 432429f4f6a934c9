"""The columns of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_minimq.errors import MinimqSparkError

if TYPE_CHECKING:
    import pyarrow as pa

#: Every message has all of these but the tag. A message without keys or properties has an empty list or map, not null,
#: so that `size(keys)` and `explode(keys)` need no special case.
MESSAGE_SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("broker_name", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("offset", LongType()),
        StructField("body", BinaryType()),
        StructField("tag", StringType()),
        StructField("keys", ArrayType(StringType())),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("born_timestamp", TimestampType()),
        StructField("store_timestamp", TimestampType()),
        StructField("message_id", StringType()),
    ]
)


_TYPES = {field.name: field.dataType for field in MESSAGE_SCHEMA}
_NULLABLE = frozenset({"tag"})


def checked_projection(schema: StructType) -> StructType:
    """Return the columns that a user has chosen, which may be any of `MESSAGE_SCHEMA` in any order."""
    if not schema.fields:
        raise MinimqSparkError(f"the schema has no column: choose some of {', '.join(_TYPES)}")
    seen = set()
    for field in schema.fields:
        name = field.name.lower()  # as in SQL
        if name not in _TYPES:
            raise MinimqSparkError(f"there is no column {field.name!r}: choose some of {', '.join(_TYPES)}")
        if name in seen:
            raise MinimqSparkError(f"column {field.name!r} appears twice in the schema")
        seen.add(name)
        wanted, actual = field.dataType.simpleString(), _TYPES[name].simpleString()
        if wanted != actual:
            raise MinimqSparkError(f"column {name!r} is of type {actual}, not {wanted}: cast it after the load")
        if not field.nullable and name in _NULLABLE:
            raise MinimqSparkError(f"column {name!r} may be null: leave out NOT NULL")
    return schema


def with_table_columns(schema: StructType) -> StructType:
    """Return some columns in the case of `MESSAGE_SCHEMA`, with those by which the newest message of a key is told."""
    names = dict.fromkeys([*(field.name.lower() for field in schema), "keys", "body"])
    return StructType([MESSAGE_SCHEMA[name] for name in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema in Arrow's types; Spark compares what it is given with the outcome of this very call."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
