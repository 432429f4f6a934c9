"""The columns of a data frame that is written."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from pyspark.sql.types import StructType

from pyspark_minimq.errors import MinimqSparkError

_WHOLE_NUMBERS: Final = ("int", "bigint", "smallint", "tinyint")

#: The types that each column may have, as Spark writes them.
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

#: What a broker says of a message.
_READ_ONLY: Final = ("offset", "message_id", "born_timestamp", "store_timestamp")
#: What other sinks call it.
_ELSEWHERE: Final = {"partition": "queue_id"}
#: What stands for others, as in Spark's Kafka sink.
_STANDS_FOR: Final = (("value", "body"), ("key", "keys"), ("key", "sharding_key"), ("headers", "properties"))


def check_columns(schema: StructType, topic: str | None) -> None:
    """See to it that a data frame can be written."""
    names = [field.name.lower() for field in schema.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MinimqSparkError(f"column {_listed(twice)} appears twice in the data frame: drop one of them")
    _refuse_strangers([field.name for field in schema.fields])
    for field in schema.fields:
        name, actual = field.name.lower(), field.dataType.simpleString()
        if actual not in WRITE_COLUMNS[name]:
            wanted = " or ".join(WRITE_COLUMNS[name][:2]) if name != "sharding_key" else "string, binary or int"
            raise MinimqSparkError(f"column {name!r} is of type {actual}: cast it to {wanted}")
    for alias, name in _STANDS_FOR:
        if alias in names and name in names:
            raise MinimqSparkError(f"there is a column {name!r} and a column {alias!r}, which stands for it: drop one")
    if "body" not in names and "value" not in names:
        raise MinimqSparkError(
            "there is no column 'body': make one, for example with selectExpr('to_json(struct(*)) AS body')"
        )
    if "topic" not in names and topic is None:
        raise MinimqSparkError('no topic is given: add .option("topic", "NAME"), or a column \'topic\'')
    if "broker_name" in names and "queue_id" not in names:
        raise MinimqSparkError("there is a column 'broker_name' without 'queue_id': add that, or drop it")


def _refuse_strangers(names: Iterable[str]) -> None:
    strange = [name for name in names if name.lower() not in WRITE_COLUMNS]
    read_only = [name for name in strange if name.lower() in _READ_ONLY]
    if read_only:
        dropped = ", ".join(f'"{name}"' for name in read_only)
        raise MinimqSparkError(
            f"column {_listed(read_only)} is set by brokers and cannot be written: leave it out with .drop({dropped})"
        )
    if strange:
        known = ", ".join(WRITE_COLUMNS)
        nearest = {
            _ELSEWHERE.get(name.lower()) or next(iter(difflib.get_close_matches(name.lower(), WRITE_COLUMNS, 1)), "")
            for name in strange
        } - {""}
        hint = f"did you mean {_listed(sorted(nearest))}? " if nearest else ""
        raise MinimqSparkError(
            f"column {_listed(strange)} cannot be written: {hint}a message has {known}; "
            "put everything else into 'body' or 'properties'"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
