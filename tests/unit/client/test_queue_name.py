from __future__ import annotations

import pytest

from minimq.operations.values import queue as parse_queue
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue


def test_a_queue_is_a_broker_and_a_number() -> None:
    assert parse_queue("--queue", "room@broker-a:12", "t") == MessageQueue("t", "room@broker-a", 12)


@pytest.mark.parametrize("text", ["", "broker-a", ":1", "broker-a:", "broker-a:-1", "broker-a:x", "a:" + "9" * 5000])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a queue: write BROKER:ID"):
        parse_queue("--queue", text, "t")
