"""The columns of data frames, for reading and writing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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

from minimq.features.tables.column_names import check_names
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.expected_errors import spark_errors
from pyspark_minimq.option_table import listed

if TYPE_CHECKING:
    import pyarrow as pa

# ---- Reading ----------------------------------------------------------------------------------------

#: Only the tag can be null. A message without keys or properties has an empty list or map, so that `size(keys)` and
#: `explode(keys)` need no special case.
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
#: Columns of Spark's Kafka source, and their equivalent here.
_OF_KAFKA = {
    "key": "keys", "value": "body", "partition": "queue_id", "timestamp": "store_timestamp", "headers": "properties"
}  # fmt: skip


def checked_projection(schema: StructType) -> StructType:
    """Check and return the columns that a user has chosen: any of `MESSAGE_SCHEMA`, in any order."""
    if not schema.fields:
        raise MinimqSparkError(f"the schema has no column: choose some of {', '.join(_TYPES)}")
    seen = set()
    for field in schema.fields:
        name = field.name.lower()  # as in SQL
        if name not in _TYPES:
            hint = f"did you mean {_OF_KAFKA[name]!r}? " if name in _OF_KAFKA else ""
            raise MinimqSparkError(f"there is no column {field.name!r}: {hint}choose some of {', '.join(_TYPES)}")
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
    """Return columns in the case of `MESSAGE_SCHEMA`, plus those for finding the newest message of each key."""
    names = dict.fromkeys([*(field.name.lower() for field in schema), "keys", "body"])
    return StructType([MESSAGE_SCHEMA[name] for name in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert a schema to Arrow, with the call that Spark uses to check the batches it gets."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


# ---- Writing ----------------------------------------------------------------------------------------

_WHOLE_NUMBERS: Final = ("int", "bigint", "smallint", "tinyint")

#: The allowed types of each column, as Spark writes them.
WRITE_COLUMNS: Final = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>", "map<string,string>"),
    "tag": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "queue_id": _WHOLE_NUMBERS,
    "broker_name": ("string",),
    "sharding_key": ("string", "binary", *_WHOLE_NUMBERS),
}


@spark_errors()
def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise `MinimqSparkError` if a data frame with these columns cannot be written."""
    if strange := [field.name for field in schema.fields if field.name.lower() not in WRITE_COLUMNS]:
        raise MinimqSparkError(
            f"column {listed(strange)} cannot be written: a message has {', '.join(WRITE_COLUMNS)}; put everything "
            "else into 'body' or 'properties', or drop it"
        )
    for field in schema.fields:
        name, actual = field.name.lower(), field.dataType.simpleString()
        if actual not in WRITE_COLUMNS[name]:
            wanted = " or ".join(WRITE_COLUMNS[name][:2]) if name != "sharding_key" else "string, binary or int"
            raise MinimqSparkError(f"column {name!r} is of type {actual}: cast it to {wanted}")
    check_names([field.name.lower() for field in schema.fields], has_topic=topic is not None)
