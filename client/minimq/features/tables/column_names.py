"""The rules for the names of the columns of rows, in lower case. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from minimq_common.errors import InvalidArgument

#: Aliases of columns, as in the Kafka sink of Spark.
_STANDS_FOR: Final = (("value", "body"), ("key", "keys"), ("key", "sharding_key"), ("headers", "properties"))


def check_names(names: Sequence[str], *, has_topic: bool) -> None:
    """Raise `InvalidArgument` if rows with these columns cannot be sent."""
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"column {name!r} appears twice: drop one of them")
    for alias, name in _STANDS_FOR:
        if alias in names and name in names:
            raise InvalidArgument(f"there is a column {name!r} and a column {alias!r}, which stands for it: drop one")
    if "body" not in names and "value" not in names:
        raise InvalidArgument("there is no column 'body': make one (in Spark: to_json(struct(*)) AS body)")
    if "topic" not in names and not has_topic:
        raise InvalidArgument("no topic is given: give one for all rows, or a column 'topic'")
    if "broker_name" in names and "queue_id" not in names:
        raise InvalidArgument("there is a column 'broker_name' without 'queue_id': add that, or drop it")
