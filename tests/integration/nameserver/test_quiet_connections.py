"""Connections on which nothing is asked for, or whose other end does not answer, at each server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minimq_broker.assembly import BrokerOptions
from minimq_broker.broker import Broker
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import FIRST_REQUEST_S
from minimq_nameserver import server
from minimq_proto.v1 import broker_pb2_grpc
from minimq_proto.v1.work_queues_pb2_grpc import WorkQueuesStub
from support.crowd import CONNECTED, crowd, wait_until_closed
from support.loop_thread import LoopThread
from support.starting import StartNameServer

#: Shorter than gRPC's own times for what these options are about.
TIMEOUT_S = 30.0
#: Times that are shown are so much shorter than the real ones.
SHORTER = 2_000
IDLE = ["grpc.max_connection_idle_ms"]
UNANSWERED = ["grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"]
SILENT = [CONNECTED["asks for nothing"]]

#: Takes the options whose times are to be shorter, and returns the address of a server.
Start = Callable[[list[str]], str]


@pytest.fixture(params=["nameserver", "broker"])
def start(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    loop: LoopThread,
    cleanup: contextlib.ExitStack,
    start_nameserver: StartNameServer,
    tmp_path: Path,
) -> Start:
    def nameserver(names: list[str]) -> str:
        for name in names:
            monkeypatch.setitem(server._SERVER_OPTIONS, name, server._SERVER_OPTIONS[name] // SHORTER)
        return start_nameserver().address

    def broker(names: list[str]) -> str:
        options = dict(rpc.SERVER_OPTIONS)
        options.update({name: options[name] // SHORTER for name in names})
        monkeypatch.setattr(rpc, "SERVER_OPTIONS", tuple(options.items()))
        made = Broker(BrokerOptions(listen="127.0.0.1:0", data_dir=tmp_path, nameservers=(start_nameserver().address,)))
        return cleanup.enter_context(loop.serving(made)).address

    return nameserver if request.param == "nameserver" else broker


def test_an_idle_connection_is_closed_and_its_client_connects_again(start: Start) -> None:
    address = start(IDLE)
    with rpc.open_channel(address) as channel, crowd(address, SILENT, 1) as [connection]:
        health: Any = health_pb2_grpc.HealthStub(channel)
        health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        wait_until_closed(connection, TIMEOUT_S)
        health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S, wait_for_ready=True)


def test_a_connection_whose_other_end_answers_no_ping_is_closed(start: Start) -> None:
    address = start(UNANSWERED)
    with crowd(address, SILENT, 1) as [connection]:
        wait_until_closed(connection, TIMEOUT_S)


@pytest.mark.parametrize("start", ["broker"], indirect=True)
def test_a_stream_to_a_broker_on_which_nothing_is_said_is_ended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FIRST_REQUEST_S < TIMEOUT_S
    monkeypatch.setattr("minimq_broker.broker.FIRST_REQUEST_S", 0.1)
    address = start([])
    over = threading.Event()
    with rpc.open_channel(address) as channel:
        stub: Any = broker_pb2_grpc.BrokerStub(channel)
        work_queues: Any = WorkQueuesStub(channel)
        try:
            for method in (stub.Append, stub.Pull, work_queues.Pop, stub.Session):
                with pytest.raises(grpc.RpcError, match=r"no request arrived within 0\.1 s"):
                    next(method(iter(over.wait, True), timeout=TIMEOUT_S))
        finally:
            over.set()
