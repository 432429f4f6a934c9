"""Texts of errors as they travel: whatever they quote, they are not long."""

from __future__ import annotations

from minimq_common.errors import TopicNotFound
from minimq_common.wire import rpc


def test_a_long_text_loses_its_middle() -> None:
    failure = rpc.to_failure(TopicNotFound(f"topic {'t' * (4 << 20)} is not here"))
    assert len(failure.message) == 1999
    assert failure.message.startswith("topic ttt")
    assert "ttt ... ttt" in failure.message
    assert failure.message.endswith("ttt is not here")
    assert len(rpc.to_failure(ValueError("v" * 5000)).message) == 1999


def test_a_text_that_is_not_long_is_as_it_was() -> None:
    assert rpc.to_failure(TopicNotFound("t" * 2000)).message == "t" * 2000
