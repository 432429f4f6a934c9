"""Topics for tests that count on an order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minimq.admin.admin import Admin

#: Another process runs it, which `test_shared_testcases.py` starts.
collect_ignore = ["shared"]


@pytest.fixture
def topic(admin: Admin, new_name: Callable[[], str]) -> str:
    """A topic of one queue, in which all messages are in one order."""
    name = new_name()
    admin.create_topic(name, 1, brokers=[admin.cluster()[0].broker_name])
    return name
