"""A server that has lost all others, and a user that takes all it can get."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from minimq import Admin, Credentials, LocalCluster
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc, nameserver_pb2, nameserver_pb2_grpc
from support.secure_scraping import trust_of
from support.waiting import wait_until

TIMEOUT_S = 60.0
#: Streams of one kind that the broker takes.
STREAMS = 20
#: Part of what users are told by a server that cannot learn of changes.
CUT_OFF = "users and rules may have changed without this server: it has not been in touch with others for"

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A name server and a broker, which have only each other."""
    options: dict[str, object] = {"access_max_age": 4.0}
    with LocalCluster(
        brokers=1,
        data_dir=tmp_path_factory.mktemp("lone"),
        secure=True,
        broker_options={**options, "max_streams": STREAMS},
        nameserver_options=options,
    ) as cluster:
        yield cluster


@pytest.fixture
def stubs(lone: LocalCluster) -> Iterator[tuple[Any, Any]]:
    """The stubs of the broker and the name server, as the administrator calls them."""
    trust = trust_of(lone.credentials)
    with rpc.open_channel(lone.brokers[0].address, trust) as broker, rpc.open_channel(lone.nameserver, trust) as other:
        yield broker_pb2_grpc.BrokerStub(broker), nameserver_pb2_grpc.NameServerStub(other)


def rejection(call: Any, request: Any) -> str:
    """Return what a user is told who asks for what anybody may know; empty for an answer."""
    try:
        call(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return rpc.from_rpc_error(error, "server").message
    return ""


def of_broker(stubs: tuple[Any, Any]) -> str:
    return rejection(stubs[0].GetStatus, broker_pb2.GetStatusRequest())


def of_nameserver(stubs: tuple[Any, Any]) -> str:
    return rejection(stubs[1].ListTopics, nameserver_pb2.ListTopicsRequest())


def test_a_user_without_a_right_leaves_half_of_the_streams_to_others(
    lone: LocalCluster, stubs: tuple[Any, Any]
) -> None:
    wait_until(lambda: not of_broker(stubs) and not of_nameserver(stubs), TIMEOUT_S, what="users are served")
    over = threading.Event()

    def said(client_id: str) -> Iterator[broker_pb2.SessionRequest]:
        yield broker_pb2.SessionRequest(client_id=client_id, heartbeat=broker_pb2.Heartbeat(number=1))
        over.wait()

    with Admin(credentials=lone.credentials, timeout_s=TIMEOUT_S) as admin:
        trust = trust_of(Credentials.from_text(admin.add_user("greedy")))
    with ExitStack() as opened:
        greedy: Any = broker_pb2_grpc.BrokerStub(opened.enter_context(rpc.open_channel(lone.brokers[0].address, trust)))
        opened.callback(over.set)
        own = [greedy.Session(said(f"greedy-{number}"), timeout=TIMEOUT_S) for number in range(STREAMS // 2)]
        assert all(next(stream).HasField("heartbeat") for stream in own)
        with pytest.raises(grpc.RpcError, match=f"user greedy has {STREAMS // 2} Session streams open"):
            next(greedy.Session(said("further"), timeout=TIMEOUT_S))
        assert next(stubs[0].Session(said("other"), timeout=TIMEOUT_S)).HasField("heartbeat")


@pytest.mark.fault
def test_a_broker_that_cannot_learn_of_changes_serves_no_user_until_it_can(
    lone: LocalCluster, stubs: tuple[Any, Any]
) -> None:
    said: queue.SimpleQueue[broker_pb2.SessionRequest | None] = queue.SimpleQueue()
    said.put(broker_pb2.SessionRequest(client_id="cut-off", heartbeat=broker_pb2.Heartbeat(number=1)))
    session = stubs[0].Session(iter(said.get, None), timeout=TIMEOUT_S)
    next(session)
    lone.nameservers[0].kill()
    with pytest.raises(grpc.RpcError) as ended:
        list(session)
    said.put(None)
    assert CUT_OFF in rpc.from_rpc_error(ended.value, "broker").message
    assert CUT_OFF in of_broker(stubs)
    lone.nameservers[0].start()
    wait_until(lambda: not of_broker(stubs), TIMEOUT_S, what="the broker serves users again")
    wait_until(lambda: not of_nameserver(stubs), TIMEOUT_S, what="the name server serves users")


@pytest.mark.fault
def test_a_name_server_that_cannot_learn_of_changes_serves_no_user_until_it_can(
    lone: LocalCluster, stubs: tuple[Any, Any]
) -> None:
    lone.brokers[0].kill()
    wait_until(lambda: CUT_OFF in of_nameserver(stubs), TIMEOUT_S, what="the name server serves no user")
    lone.brokers[0].start()
    wait_until(lambda: not of_nameserver(stubs), TIMEOUT_S, what="the name server serves users again")
    wait_until(lambda: not of_broker(stubs), TIMEOUT_S, what="the broker serves users")
