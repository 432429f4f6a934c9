"""The end of `minimq consume`, when its last commit fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from minimq.cli.consume import _last_commit
from minimq_common.errors import Unavailable

LOST = "broker broker-a is not reached"


@contextmanager
def unreachable_at_the_end() -> Iterator[Any]:
    yield None
    raise Unavailable(LOST)


def test_a_failed_last_commit_says_that_written_messages_come_again() -> None:
    with pytest.raises(Unavailable) as raised, _last_commit(unreachable_at_the_end()):
        pass
    assert raised.value.message == (
        f"{LOST}; messages that were written since the last commit are not committed, and will be delivered again"
    )


def test_an_earlier_error_says_nothing_of_it() -> None:
    with pytest.raises(Unavailable) as raised, _last_commit(unreachable_at_the_end()):
        raise Unavailable("there is no master")
    assert raised.value.message == "there is no master"
