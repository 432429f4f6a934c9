"""Brokers that want the same place."""

from __future__ import annotations

import contextlib
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from minimq_broker.assembly import BrokerOptions
from minimq_broker.broker import Broker
from minimq_broker.registration import Registration
from minimq_common.errors import BrokerConflict, Unavailable
from minimq_common.wire import rpc
from minimq_nameserver.registrations import Registrations
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc
from support.fake_broker import registered
from support.line import Line
from support.loop_thread import LoopThread
from support.nameserver_client import NameServerClient
from support.starting import OpenCache, StartBroker, StartNameServer
from support.waiting import wait_until

NOBODY = "127.0.0.1:1"


def test_two_brokers_of_one_name_do_not_take_turns(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    first = start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    request = first.describe()
    request.address, request.run = "second:1", first.request.run + 1
    with rpc.open_channel(nameserver.address) as channel, pytest.raises(grpc.RpcError) as raised:
        next(nameserver_pb2_grpc.NameServerStub(channel).Register(iter([request])))
    assert isinstance(rpc.from_rpc_error(raised.value, "name server"), BrokerConflict)
    assert cache.route("orders").master_of("broker-a") == "broker-a-0:10911"
    assert first.connected_to(nameserver.address)


def test_name_servers_tell_who_was_rejected_until_it_has_a_place(
    start_nameserver: StartNameServer,
    start_broker: StartBroker,
    cleanup: contextlib.ExitStack,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two = start_nameserver(), start_nameserver()
    links = NameServerClient(one.address, NOBODY, two.address)
    cleanup.callback(links.close)
    holder = start_broker(one.address, two.address)
    wait_until(lambda: holder.connected_to(one.address, two.address))
    assert links.conflicts() == []

    began, margin = datetime.now(UTC), timedelta(seconds=1)
    second = start_broker(address="second:1")
    second.request.data_version = 0
    second.join(one.address, two.address)
    wait_until(lambda: [report.times > 1 for report in links.conflicts()] == [True, True])
    for report, nameserver in zip(links.conflicts(), sorted([one.address, two.address]), strict=True):
        assert (report.nameserver, report.cluster) == (nameserver, "default")
        assert (report.broker_name, report.broker_id, report.address) == ("broker-a", 0, "second:1")
        assert report.holder_address == "broker-a-0:10911"
        assert "give one of them another --name or --id" in report.reason
        assert began - margin < report.first_at < report.last_at < datetime.now(UTC) + margin
    assert second.registration.connected == ()
    rejections = [record for record in caplog.records if "registration rejected" in record.getMessage()]
    assert [record.levelname for record in rejections].count("WARNING") == 2, "once for each name server"

    holder.stop()
    wait_until(lambda: second.connected_to(one.address, two.address))
    assert links.conflicts() == []


def test_the_former_master_is_reported_after_a_failover(
    start_nameserver: StartNameServer, start_broker: StartBroker, cleanup: contextlib.ExitStack
) -> None:
    nameserver = start_nameserver()
    links = NameServerClient(nameserver.address)
    cleanup.callback(links.close)
    start_broker(nameserver.address)
    newer = start_broker(address="second:1")
    newer.request.data_version, newer.request.replica_id = 1000, 1
    newer.join(nameserver.address)
    wait_until(lambda: newer.connected_to(nameserver.address))
    wait_until(lambda: [report.times > 1 for report in links.conflicts()] == [True], what="a try of the one replaced")
    [report] = links.conflicts()
    assert (report.address, report.holder_address) == ("broker-a-0:10911", "second:1")


def test_a_copy_of_a_live_broker_does_not_start(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, tmp_path: Path
) -> None:
    """Any reachable name server rejects it, even if others do not know the broker, or do not answer."""
    knows, knows_nothing = start_nameserver(), start_nameserver()
    holder = start_broker(knows.address)
    nameservers = (NOBODY, knows_nothing.address, knows.address)
    copy = Broker(BrokerOptions(listen="127.0.0.1:0", data_dir=tmp_path, nameservers=nameservers))
    with pytest.raises(BrokerConflict, match=r"broker-a-0:10911 is connected .* --name or --id"):
        loop.run(copy.start())
    loop.run(copy.stop())
    assert registered(knows_nothing.address) == []
    assert [broker.master for broker in registered(knows.address)] == ["broker-a-0:10911"]
    assert holder.connected_to(knows.address)


def test_of_two_that_start_at_once_one_ends(
    loop: LoopThread,
    start_nameserver: StartNameServer,
    start_broker: StartBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check_too_early(_: Registration) -> bool:
        return True

    monkeypatch.setattr(Registration, "check_place", check_too_early)
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    with loop.serving(
        Broker(BrokerOptions(listen="127.0.0.1:0", data_dir=tmp_path, nameservers=(nameserver.address,)))
    ) as second:
        with pytest.raises(BrokerConflict, match="broker-a-0:10911 is connected"):
            loop.run(second.failure())
        assert [broker.master for broker in registered(nameserver.address)] == ["broker-a-0:10911"]


def test_a_broker_that_moved_is_rejected_until_its_former_connection_has_ended(
    loop: LoopThread, start_nameserver: StartNameServer, cleanup: contextlib.ExitStack, tmp_path: Path
) -> None:
    nameserver = start_nameserver()
    line = Line(nameserver.address)

    def master() -> list[str | None]:
        return [broker.master for broker in registered(nameserver.address)]

    def broker(*nameservers: str) -> Broker:
        return Broker(BrokerOptions(listen="127.0.0.1:0", data_dir=tmp_path, nameservers=nameservers))

    with loop.serving(broker(loop.run(line.open()))) as former:
        wait_until(lambda: master() == [former.address])
        loop.call(line.cut)
    assert master() == [former.address]
    rejected = broker(nameserver.address)
    with pytest.raises(BrokerConflict, match=f"{former.address} is connected .* If its machine is gone"):
        loop.run(rejected.start())
    loop.run(rejected.stop())
    loop.run(line.close())
    wait_until(lambda: master() == [])
    with loop.serving(broker(nameserver.address)) as present:
        wait_until(lambda: master() == [present.address])


def test_a_copy_with_the_same_address_is_rejected(
    start_nameserver: StartNameServer, start_broker: StartBroker, cleanup: contextlib.ExitStack
) -> None:
    nameserver = start_nameserver()
    links = NameServerClient(nameserver.address)
    cleanup.callback(links.close)
    holder = start_broker(nameserver.address)
    copy = start_broker()
    copy.join(nameserver.address)
    wait_until(copy.registration.rejected.done)
    holder.carry("orders", "more")
    assert holder.connected_to(nameserver.address)
    assert copy.registration.connected == ()
    [report] = links.conflicts()
    assert report.address == report.holder_address == holder.request.address


def test_brokers_that_return_to_a_restarted_name_server_come_before_new_ones(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start_nameserver()
    holder = start_broker(first.address)
    loop.run(first.stop())
    wait_until(lambda: not holder.registration.connected)
    describe, is_held = holder.describe, True

    def describe_later() -> nameserver_pb2.RegisterRequest:
        if is_held:
            raise Unavailable("the connection is not back yet")
        return describe()

    holder.describe = describe_later  # type: ignore[method-assign]
    check_place, asked = Registrations._check_place, threading.Event()

    async def note_and_check(*args: Any) -> None:
        asked.set()
        await check_place(*args)

    monkeypatch.setattr(Registrations, "_check_place", note_and_check)
    nameserver = start_nameserver(first.address, grace_s=600.0)
    copy = start_broker(address="second:1")
    copy.join(first.address)
    wait_until(lambda: asked.is_set() or copy.registration.connected, what="the copy has reached the name server")
    is_held = False
    wait_until(lambda: holder.connected_to(first.address))
    assert not copy.registration.rejected.done()
    loop.call(nameserver._service.settle)
    wait_until(copy.registration.rejected.done)
    assert copy.registration.connected == ()


def test_a_name_server_that_hangs_does_not_delay_a_start(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minimq_broker.registration._CHECK_S", 600.0)
    nameserver = start_nameserver()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = start_broker(f"127.0.0.1:{silent.getsockname()[1]}", nameserver.address)
        assert loop.run(broker.registration.check_place())
