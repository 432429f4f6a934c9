"""The Arrow columns of messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from minimq_common.errors import InvalidArgument

_MOMENT: Final = pa.timestamp("us", tz="UTC")

#: Only the tag may be null. A message without keys or properties has an empty list or map.
MESSAGE_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker_name", pa.string()),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        ("body", pa.binary()),
        ("tag", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("born_timestamp", _MOMENT),
        ("store_timestamp", _MOMENT),
        ("message_id", pa.string()),
    ]
)


def chosen_columns(columns: Iterable[str] | None) -> pa.Schema:
    """Return the schema of the chosen columns, in their order; None for all."""
    if columns is None:
        return MESSAGE_SCHEMA
    if isinstance(columns, str):
        raise InvalidArgument(f"columns is {columns!r}: give a list, such as [{columns!r}]")
    names = list(columns)
    if not names:
        raise InvalidArgument(f"no column is chosen: choose some of {', '.join(MESSAGE_SCHEMA.names)}")
    for name in names:
        if name not in MESSAGE_SCHEMA.names:
            raise InvalidArgument(f"there is no column {name!r}: choose some of {', '.join(MESSAGE_SCHEMA.names)}")
        if names.count(name) > 1:
            raise InvalidArgument(f"column {name!r} is chosen twice")
    return pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
