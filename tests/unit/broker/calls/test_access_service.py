"""The service that replaces users and rules."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minimq_broker.access import AccessService
from minimq_broker.state.facts import Fact
from minimq_common.security.access_document import AccessDocument, User
from minimq_common.security.caller import Caller, serve_as
from minimq_common.security.shared_access import SharedAccess
from minimq_proto.v1 import broker_pb2
from support.on_loop import on_loop


@on_loop
async def test_a_change_is_of_its_user_though_it_is_first_read_from_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """As while a replica is slow: the log of the master has the change, and the call has not returned yet."""
    caplog.set_level(logging.INFO)
    state = SimpleNamespace(access=None)

    async def record(decide: Callable[[Any], Fact | None]) -> None:
        state.access = decide(state)
        await service._keep()

    shared = SharedAccess()
    engine: Any = SimpleNamespace(state=state, writes=SimpleNamespace(record=record))
    service = AccessService(engine, shared)
    shared.offer(AccessDocument(1), "test")
    caller = Caller()
    caller.user = "alice"
    serve_as(caller)
    document = AccessDocument(2, {"bob": User(rules=("allow read topic t",))})
    await service.set(broker_pb2.SetAccessRequest(document=document.encoded(), expected_version=1))
    assert shared.rank.version == 2
    [line] = [record.message for record in caplog.records if record.message.startswith("access: user bob added")]
    assert line.endswith("version=2 source=user alice")
