"""A client id in a group belongs to one user, and to the latest session of its client."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from minimq_broker.assembly import BrokerOptions
from minimq_broker.calls.engine import Engine
from minimq_broker.groups.session import SessionService
from minimq_broker.groups.sessions import Session
from minimq_common.errors import Fenced, GroupConflict, InvalidArgument
from support.replica_engine import with_engine


def opened(engine: Engine, user: str, run: int = 0) -> Session:
    return Session(Mock(), engine.writes.soon, engine.unsent, user, "worker", run)


def test_a_client_id_belongs_to_one_user_in_a_group(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        service, sessions = SessionService(engine, BrokerOptions(), "broker-a"), engine.tables.sessions
        alice, bob = opened(engine, "alice"), opened(engine, "bob")
        service._enter(alice, "g")
        with pytest.raises(GroupConflict, match="client id 'worker' is in use by another client in group 'g'"):
            service._enter(bob, "g")
        service._enter(bob, "h")
        with pytest.raises(InvalidArgument, match="this session is in group 'h': open another one for group 'g'"):
            service._enter(bob, "g")
        assert sessions == {("g", "worker"): alice, ("h", "worker"): bob}
        service._disconnected(alice)
        service._enter(other := opened(engine, "bob"), "g")
        assert (sessions["g", "worker"], other.is_back) == (other, False)

    with_engine(tmp_path, test)


@pytest.mark.parametrize(("run", "is_silent", "is_back"), [(1, False, True), (1, True, False), (2, True, True)])
def test_a_later_session_of_a_client_takes_over(tmp_path: Path, run: int, *, is_silent: bool, is_back: bool) -> None:
    async def test(engine: Engine) -> None:
        service = SessionService(engine, BrokerOptions(), "broker-a")
        former, later = opened(engine, "alice", 1), opened(engine, "alice", run)
        service._enter(former, "g")
        former.is_silent = is_silent
        service._enter(later, "g")
        service._disconnected(former)
        assert engine.tables.sessions == {("g", "worker"): later}
        assert (later.is_back, former.is_closed) == (is_back, True)
        with pytest.raises(Fenced):
            service._enter(opened(engine, "alice"), "g")

    with_engine(tmp_path, test)
