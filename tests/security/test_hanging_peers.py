"""Peers that hang or whose packets are lost: servers with TLS let them go by themselves, and free all they had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from minimq import Admin
from minimq.local.certificate_authority import CertificateAuthority
from minimq_broker.assembly import BrokerOptions
from minimq_broker.broker import Broker
from minimq_common.security.certificates import Trust
from minimq_common.wire import rpc
from minimq_nameserver import server
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc, nameserver_pb2, nameserver_pb2_grpc, work_queues_pb2
from minimq_proto.v1.work_queues_pb2_grpc import WorkQueuesStub
from support.line import Line
from support.live_user import Stream
from support.loop_thread import LoopThread
from support.secure_scraping import trust_of
from support.waiting import wait_until

TIMEOUT_S = 60.0
#: Times that are shown are so much shorter than the real ones: pings come after 3 s, and are waited for for 1 s.
SHORTER = 20
UNANSWERED = ["grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"]
#: Clients that hang.
CLIENTS = 5
TOPIC = "orders"
KINDS = ("append", "pull", "pop", "session", "watch")

pytestmark = pytest.mark.system


class Servers(NamedTuple):
    """A name server and a broker in this process."""

    nameserver: NameServer
    broker: Broker
    credentials: Path
    trust: Trust

    @property
    def open_streams(self) -> dict[str, int]:
        assert self.broker._dispatcher is not None
        streams = {name.lower(): number for name, number in self.broker._dispatcher.streams().items()}
        return {kind: streams[kind] for kind in KINDS[:-1]} | {"watch": len(self.nameserver._service.watchers)}


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def servers(loop: LoopThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Servers]:
    options = dict(rpc.SERVER_OPTIONS)
    for name in UNANSWERED:
        options[name] //= SHORTER
        monkeypatch.setitem(server._SERVER_OPTIONS, name, server._SERVER_OPTIONS[name] // SHORTER)
    monkeypatch.setattr(rpc, "SERVER_OPTIONS", tuple(options.items()))
    authority = CertificateAuthority(tmp_path / "secrets")
    authority.init([], [])
    secrets = authority.server
    nameserver_options = NameServerOptions(listen="127.0.0.1:0", secrets=secrets)
    with loop.serving(NameServer(nameserver_options)) as nameserver:
        broker_options = BrokerOptions(
            listen="127.0.0.1:0", data_dir=tmp_path / "data", nameservers=(nameserver.address,), secrets=secrets
        )
        with loop.serving(Broker(broker_options)) as broker:
            yield Servers(nameserver, broker, authority.admin, trust_of(authority.admin))


class Cut:
    """A client whose packets are lost from some moment on, in both directions."""

    def __init__(self, broker: str, nameserver: str, trust: Trust, opened: ExitStack, loop: LoopThread) -> None:
        self._loop = loop
        self._lines = [Line(address) for address in (broker, nameserver)]
        ways = [loop.run(line.open()) for line in self._lines]
        for line in self._lines:
            opened.callback(loop.run, line.close())
        to_broker, to_nameserver = (opened.enter_context(rpc.open_channel(way, trust)) for way in ways)
        broker_stub = broker_pb2_grpc.BrokerStub(to_broker)
        take = work_queues_pb2.PopTake(topic=TOPIC, max_messages=1, max_bytes=1, invisible_ms=1_000, wait_ms=600_000)
        name = f"cut-{id(self)}"
        join = broker_pb2.JoinGroup(group=f"{name}-session", topics=[TOPIC], allocation="averagely")
        pull = broker_pb2.PullRequest(topic=TOPIC, max_messages=1, max_bytes=1, wait_ms=600_000)
        self.streams = [
            Stream(
                broker_stub.Append, broker_pb2.AppendRequest(appends=[broker_pb2.Append(topic=TOPIC, batch=b"none")])
            ),
            Stream(broker_stub.Pull, pull),
            Stream(
                WorkQueuesStub(to_broker).Pop,
                work_queues_pb2.PopRequest(group=f"{name}-pop", client_id=name, takes=[take]),
            ),
            Stream(broker_stub.Session, broker_pb2.SessionRequest(client_id=name, join=join)),
            Stream(
                nameserver_pb2_grpc.NameServerStub(to_nameserver).WatchRoutes,
                nameserver_pb2.WatchRoutesRequest(topics=[TOPIC]),
            ),
        ]
        for stream in self.streams:
            opened.callback(stream.close)

    def cut(self) -> None:
        for line in self._lines:
            self._loop.call(line.cut)


def test_streams_of_clients_whose_packets_are_lost_are_freed(servers: Servers, loop: LoopThread) -> None:
    broker, nameserver = servers.broker.address, servers.nameserver.address
    with ExitStack() as opened:
        admin = opened.enter_context(Admin(nameserver, timeout_s=TIMEOUT_S, credentials=servers.credentials))
        admin.create_topic(TOPIC, queues=1)
        at_rest = servers.open_streams
        clients = [Cut(broker, nameserver, servers.trust, opened, loop) for _ in range(CLIENTS)]
        wait_until(
            lambda: all(servers.open_streams[kind] == at_rest[kind] + CLIENTS for kind in KINDS),
            TIMEOUT_S,
            what="all streams are open",
        )
        for client in clients:
            client.cut()
        wait_until(lambda: servers.open_streams == at_rest, TIMEOUT_S, what="all streams are freed")
        assert admin.list_topics() == [TOPIC]
