"""Connections on which nothing is asked for."""

from __future__ import annotations

import pytest

from minimq import Admin
from minimq_nameserver import server
from support.crowd import CONNECTED, crowd, wait_until_closed
from support.starting import StartNameServer

PATIENCE_S = 60.0
OPTION = "grpc.max_connection_idle_ms"


def test_an_idle_connection_is_closed_and_its_client_connects_again(
    monkeypatch: pytest.MonkeyPatch, start_nameserver: StartNameServer
) -> None:
    assert server._SERVER_OPTIONS[OPTION] > 60_000  # longer than a test lasts
    monkeypatch.setitem(server._SERVER_OPTIONS, OPTION, 300)
    address = start_nameserver().address
    with Admin(address) as admin, crowd(address, [CONNECTED["asks for nothing"]], 1) as connections:
        admin.cluster()
        wait_until_closed(connections[0], PATIENCE_S)
        admin.cluster()
