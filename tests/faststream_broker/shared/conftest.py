"""The common tests of FastStream's brokers, run with this one: a cluster for them, and coroutines as tests.

Loaded only by `test_shared_testcases.py`, in a process of its own whose root is a checkout of FastStream.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import uuid
from collections.abc import Iterator
from unittest.mock import MagicMock

import pytest
from faststream import ContextRepo

from minimq import LocalCluster

# At the end: the package beside the tests is that of the checkout, and the installed one is tested.
sys.path.append(os.environ["FASTSTREAM_TESTS"])


@pytest.fixture(scope="session", autouse=True)
def nameserver() -> Iterator[str]:
    with LocalCluster(brokers=1) as cluster:
        os.environ["TESTED_NAMESERVER"] = cluster.nameserver  # for classes
        yield cluster.nameserver


@pytest.fixture
def queue() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def event() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def event2() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def event3() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def mock() -> MagicMock:
    return MagicMock()


@pytest.fixture
def mock2() -> MagicMock:
    return MagicMock()


@pytest.fixture
def context() -> ContextRepo:
    return ContextRepo()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    not_passed: dict[str, str] = sys.modules["testcases"].NOT_PASSED
    for item in items:
        if reason := not_passed.get(item.nodeid.partition("::")[2]):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
