"""Health and reflection, as tools for gRPC ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from minimq import LocalCluster
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import Dispatcher
from minimq_common.wire.standard_services import StandardServices
from support.loop_thread import LoopThread

TIMEOUT_S = 30.0
SERVING, NOT_SERVING, UNKNOWN = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
)


class Tool:
    """Asks a server what any server can be asked."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.health: Any = health_pb2_grpc.HealthStub(channel)
        self.reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)

    def check(self, service: str = "") -> int:
        status: int = self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S).status
        return status

    def watch(self, service: str = "") -> Iterator[int]:
        for answer in self.health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S):
            yield answer.status

    def services(self) -> list[str]:
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        [answer] = self.reflection.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_S)
        return sorted(service.name for service in answer.list_services_response.service)

    def methods(self, service: str) -> list[str]:
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=service)
        [answer] = self.reflection.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_S)
        files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
        [described] = [each for file in files for each in file.service if service == f"{file.package}.{each.name}"]
        return [method.name for method in described.method]


@contextmanager
def tool(address: str) -> Iterator[Tool]:
    with rpc.open_channel(address) as channel:
        yield Tool(channel)


class Bare:
    """A server that has the standard services and nothing else."""

    metrics_address = ""

    async def start(self) -> None:
        self.server, dispatcher = grpc.aio.server(), Dispatcher()
        self.standard = StandardServices(dispatcher, ["minimq.v1.Some"], with_reflection=True)
        self.server.add_generic_rpc_handlers((dispatcher,))
        self.address = await rpc.bind(self.server, "127.0.0.1:0")
        await self.server.start()

    async def failure(self) -> None:
        await self.server.wait_for_termination()

    async def stop(self) -> None:
        self.standard.stopping()
        await self.server.stop(TIMEOUT_S)


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


def test_health_follows_the_life_of_a_server(loop: LoopThread) -> None:
    with loop.serving(Bare()) as server, tool(server.address) as asked:
        assert (asked.check(), asked.check("minimq.v1.Some")) == (NOT_SERVING, NOT_SERVING)
        watched, unknown = asked.watch("minimq.v1.Some"), asked.watch("no.such.Service")
        assert (next(watched), next(unknown)) == (NOT_SERVING, UNKNOWN)
        loop.call(server.standard.serving)
        assert (asked.check(), asked.check("minimq.v1.Some"), next(watched)) == (SERVING, SERVING, SERVING)
        assert asked.check("no.such.Service") == SERVING  # its request is not read
        loop.call(server.standard.stopping)
        assert (asked.check(), list(watched), list(unknown)) == (NOT_SERVING, [NOT_SERVING], [])
        assert list(asked.watch()) == [NOT_SERVING]


def test_the_health_of_all_services_is_listed(loop: LoopThread) -> None:
    library: Any = health_pb2
    with loop.serving(Bare()) as server, tool(server.address) as asked:
        loop.call(server.standard.serving)
        answer = asked.health.List(library.HealthListRequest(), timeout=TIMEOUT_S)

    assert {name: status.status for name, status in answer.statuses.items()} == {"": SERVING, "minimq.v1.Some": SERVING}


def test_a_tool_that_keeps_its_stream_does_not_hold_up_a_stop(loop: LoopThread) -> None:
    requests: SimpleQueue[reflection_pb2.ServerReflectionRequest] = SimpleQueue()
    with loop.serving(Bare()) as server, tool(server.address) as asked:
        requests.put(reflection_pb2.ServerReflectionRequest(list_services=""))
        answers = asked.reflection.ServerReflectionInfo(iter(requests.get, None), timeout=TIMEOUT_S)
        assert next(answers).list_services_response.service
        watched = asked.watch()
        next(watched)
        loop.run(server.stop(), TIMEOUT_S / 2)  # which would wait for them for longer
        assert (list(answers), list(watched)) == ([], [])


@pytest.mark.system
def test_both_daemons_have_them() -> None:
    on = {"reflection": True}
    with LocalCluster(brokers=1, broker_options=on, nameserver_options=on) as own:
        for server, service, method in (
            (own.nameservers[0], "minimq.v1.NameServer", "WatchRoutes"),
            (own.brokers[0], "minimq.v1.Broker", "Append"),
        ):
            with tool(server.address) as asked:
                assert (asked.check(), asked.check(service)) == (SERVING, SERVING)
                assert {service, "grpc.health.v1.Health"} < set(asked.services())
                assert method in asked.methods(service)
                watched = asked.watch()
                assert next(watched) == SERVING
                server.stop()
                assert list(watched) == [NOT_SERVING]


@pytest.mark.system
def test_there_is_no_reflection_unless_it_is_asked_for(cluster: LocalCluster) -> None:
    for address in (cluster.nameserver, cluster.brokers[0].address):
        with tool(address) as asked:
            assert asked.check() == SERVING
            with pytest.raises(grpc.RpcError) as rejected:
                asked.services()
            assert rpc.status_of(rejected.value)[0] == grpc.StatusCode.UNIMPLEMENTED
