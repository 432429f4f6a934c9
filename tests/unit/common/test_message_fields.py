"""The table of the fields of a message has the fields of its classes."""

from __future__ import annotations

from typing import get_type_hints

from minimq_common.model import FIELDS, Message, MessageFields


def test_the_table_has_all_fields_in_order() -> None:
    names = [name for name in Message.__struct_fields__ if name not in ("topic", "body", "is_tombstone")]
    assert list(FIELDS) == list(MessageFields.__annotations__) == names
    types = get_type_hints(Message)
    assert get_type_hints(MessageFields) == {name: types[name] for name in names}
