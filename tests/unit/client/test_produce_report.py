"""The line that `minimq produce` ends with."""

from __future__ import annotations

import pytest

from minimq.cli.produce import _Done


@pytest.mark.parametrize(
    ("messages", "seconds", "text"),
    [
        (1, 1.0, "sent 1 message (100 B) to t in 1.00 s: 1 message/s, 100 B/s"),
        (3000, 2.0, "sent 3,000 messages (100 B) to t in 2.00 s: 1,500 messages/s, 50 B/s"),
    ],
)
def test_it_counts_one_message_as_one(messages: int, seconds: float, text: str) -> None:
    assert _Done(messages, 100).report("t", seconds) == text
