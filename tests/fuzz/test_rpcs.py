"""A thousand hostile calls of every RPC of every server; `make fuzz` plays a million."""

from __future__ import annotations

import pytest

from fuzz import rpcs
from support.chance import SEED

AMOUNT = 1000


@pytest.mark.timeout(300)
def test_servers_answer_and_keep_what_they_have_whatever_they_are_asked() -> None:
    assert rpcs.play(SEED, AMOUNT) == []
