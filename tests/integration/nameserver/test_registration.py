"""Brokers that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from minimq.admin.admin import Admin
from minimq.local.local_cluster import LocalCluster
from minimq_broker.assembly import BrokerOptions
from minimq_broker.broker import Broker
from minimq_broker.registration import Registration
from minimq_common.model import BrokerData
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2, nameserver_pb2, nameserver_pb2_grpc
from support.broker_link import BrokerLink
from support.fake_broker import FakeBroker, brokers_of, registered
from support.line import Line
from support.loop_thread import LoopThread
from support.process import process
from support.starting import StartBroker, StartNameServer
from support.waiting import wait_until

TIMEOUT_S = 30.0


def test_a_broker_that_stops_is_gone_when_stop_returns(
    start_nameserver: StartNameServer, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minimq_broker.registration._LEAVE_S", 60.0)
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    started = time.monotonic()
    broker.stop()
    assert time.monotonic() - started < TIMEOUT_S, "it had to be cut off"
    assert registered(nameserver.address) == []


def test_a_broker_leaves_the_routes_before_it_serves_no_more(
    loop: LoopThread, start_nameserver: StartNameServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = with_unseen_errors()
    nameserver = start_nameserver()
    broker = Broker(BrokerOptions(listen="127.0.0.1:0", data_dir=tmp_path, nameservers=(nameserver.address,)))
    leave, seen = Registration.stop, list[tuple[list[BrokerData], str]]()

    def look() -> None:
        link = BrokerLink(broker.address)
        try:
            status = link.call(link.stub.GetStatus, broker_pb2.GetStatusRequest(), TIMEOUT_S)
        finally:
            link.close()
        seen.append((registered(nameserver.address), status.broker_name))

    async def leave_and_look(registration: Registration) -> None:
        await leave(registration)
        await asyncio.to_thread(look)

    monkeypatch.setattr(Registration, "stop", leave_and_look)
    with loop.serving(broker):
        wait_until(lambda: [data.master for data in registered(nameserver.address)] == [broker.address])
    assert seen == [([], "broker-a")]
    assert [future for future in with_unseen_errors() if future not in before] == []


def with_unseen_errors() -> list[object]:
    """Return the futures of which Python will write to stderr that nobody has looked at their error."""
    futures = [each for each in gc.get_objects() if issubclass(type(each), asyncio.Future)]
    return [future for future in futures if getattr(future, "_log_traceback", False)]


def test_a_fault_in_the_broker_is_not_the_end_of_its_registration(
    start_nameserver: StartNameServer, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker()
    describe, faults = broker.describe, iter([RuntimeError("not thought of")])

    def fail_first() -> nameserver_pb2.RegisterRequest:
        for fault in faults:
            raise fault
        return describe()

    broker.describe = fail_first  # type: ignore[method-assign]
    nameserver = start_nameserver()
    broker.join(nameserver.address)
    wait_until(lambda: broker.connected_to(nameserver.address))
    assert "RuntimeError: not thought of" in caplog.text
    assert "Traceback" in caplog.text


def test_a_heartbeat_does_not_make_the_table(
    start_nameserver: StartNameServer, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, asked = [0], [0]
    describe = FakeBroker.describe

    def count(broker: FakeBroker) -> nameserver_pb2.RegisterRequest:
        made[0] += 1
        return describe(broker)

    monkeypatch.setattr(FakeBroker, "describe", count)
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    link = broker.registration._links[0]
    version = link._version

    def count_version() -> int:
        asked[0] += 1
        return version()

    link._version = count_version
    before = made[0]
    wait_until(lambda: asked[0] >= 5)  # heartbeats, every 0.1 s
    assert made[0] == before
    broker.carry("orders", "more")
    assert made[0] == before + 1


@pytest.mark.fault
@pytest.mark.system
def test_a_killed_broker_is_removed_at_once(start_nameserver: StartNameServer) -> None:
    nameserver = start_nameserver(expire_after_s=86_400)  # so that it is the end of the connection that removes it
    program = (
        "import time, sys; from minimq_common.wire import rpc; from minimq_proto.v1 import nameserver_pb2 as pb\n"
        "from minimq_proto.v1.nameserver_pb2_grpc import NameServerStub\n"
        "def requests():\n"
        "    yield pb.RegisterRequest(cluster='default', broker_name='broker-a', address='h:1', permission=6)\n"
        "    time.sleep(60)\n"
        "channel = rpc.open_channel(sys.argv[1])\n"
        "for answer in NameServerStub(channel).Register(requests()): pass\n"
    )
    with process(sys.executable, "-c", program, nameserver.address) as broker:
        wait_until(lambda: [each.broker_name for each in registered(nameserver.address)] == ["broker-a"], timeout=60)
        broker.kill()
        broker.wait()
        wait_until(lambda: registered(nameserver.address) == [])


@pytest.mark.fault
@pytest.mark.system
def test_a_hung_broker_is_removed_and_comes_back() -> None:
    max_wait = {"expire_after_s": 4.0}
    with LocalCluster(brokers=2, nameserver_options=max_wait) as cluster:
        hangs, stays = cluster.brokers

        def masters() -> list[str | None]:
            return [broker.master for broker in registered(cluster.nameserver)]

        with Admin(cluster.nameserver) as admin:
            admin.create_topic("orders")
            paused = time.monotonic()
            hangs.pause()
            assert masters() == [hangs.address, stays.address], "its stream is open"
            wait_until(lambda: masters() == [stays.address])
            assert time.monotonic() - paused > 0.5, "a broker that hangs for a moment stays"
            assert brokers_of(admin.route("orders")) == [stays.name]
            hangs.resume()
            wait_until(lambda: masters() == [hangs.address, stays.address])
            # It beats more often than the name server asks for, so both stay from now on.
            end = time.monotonic() + 5
            assert wait_until(lambda: len(masters()) < 2 or time.monotonic() > end)
            assert masters() == [hangs.address, stays.address]


@pytest.mark.fault
def test_a_broker_behind_a_dead_line_is_removed(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, cleanup: contextlib.ExitStack
) -> None:
    nameserver = start_nameserver(expire_after_s=3.0)
    line = Line(nameserver.address)
    cleanup.callback(lambda: loop.run(line.close()))
    start_broker(loop.run(line.open()))
    assert [broker.broker_name for broker in registered(nameserver.address)] == ["broker-a"]
    loop.call(line.cut)
    assert [broker.broker_name for broker in registered(nameserver.address)] == ["broker-a"]
    wait_until(lambda: registered(nameserver.address) == [])


def test_a_silent_broker_expires_and_its_stream_is_ended(start_nameserver: StartNameServer) -> None:
    nameserver = start_nameserver(expire_after_s=2.0)
    quiet = threading.Event()
    with rpc.open_channel(nameserver.address) as channel:

        def requests() -> Iterator[nameserver_pb2.RegisterRequest]:
            yield nameserver_pb2.RegisterRequest(cluster="default", broker_name="broker-a", address="h:1", permission=6)
            quiet.wait(20)

        stream = nameserver_pb2_grpc.NameServerStub(channel).Register(requests())
        next(stream)  # it is registered
        wait_until(lambda: registered(nameserver.address) == [])
        with pytest.raises(grpc.RpcError) as raised:
            next(stream)
        quiet.set()
    assert re.search(r"no heartbeat of broker-a .* for [1-9]\.\d s", str(raised.value))


def test_heartbeats_keep_a_broker(start_nameserver: StartNameServer, start_broker: StartBroker) -> None:
    nameserver = start_nameserver(expire_after_s=3.0)
    broker = start_broker(nameserver.address)
    end = time.monotonic() + 3.5
    assert wait_until(lambda: registered(nameserver.address) == [] or time.monotonic() > end)
    assert [each.broker_name for each in registered(nameserver.address)] == ["broker-a"]
    assert broker.connected_to(nameserver.address)


def test_a_lost_name_server_is_logged_once_and_once_when_it_is_back(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    with caplog.at_level(logging.INFO, "minimq_broker.registration"):
        caplog.clear()
        loop.run(nameserver.stop())
        wait_until(lambda: not broker.registration.connected)
        lost = time.monotonic()
        wait_until(lambda: time.monotonic() > lost + 0.5)  # several attempts
        start_nameserver(nameserver.address)
        wait_until(lambda: broker.connected_to(nameserver.address))
    said = [record.getMessage().split(" nameserver=")[0] for record in caplog.records if "registration" in record.name]
    assert said == ["not registered, trying again", "registered"]


@pytest.mark.parametrize(
    ("is_known", "reason"), [(False, "has not answered in time"), (True, "no answer within 0.2 s")]
)
def test_a_name_server_that_hangs_is_given_up_and_does_not_delay_the_stop(
    loop: LoopThread,
    cleanup: contextlib.ExitStack,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_known: bool,
    reason: str,
) -> None:
    async def is_free(*_: object) -> None:
        pass

    monkeypatch.setattr("minimq_broker.registration._CHECK_S", 0.1)
    if is_known:
        monkeypatch.setattr("minimq_broker.registration._Link._check_place", is_free)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = FakeBroker(loop, f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        cleanup.callback(broker.stop)
        wait_until(lambda: reason in caplog.text)
        started = time.monotonic()
        broker.stop()
        broker.stop()
        assert time.monotonic() - started < TIMEOUT_S
