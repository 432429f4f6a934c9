"""Calls of every RPC that a server has: messages at random, streams that are cut, silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from grpc_health.v1 import health_pb2

from fuzz import mutation
from fuzz.messages import MessageMaker
from fuzz.targets.batches import make_batch, take_in, valid_batches
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch, InternalError, InvalidArgument
from minimq_common.wire.rpc import CHANNEL_OPTIONS
from minimq_proto.v1 import broker_pb2, controller_pb2, nameserver_pb2, replication_pb2

#: A call that is not answered for so long is given up.
_DEADLINE_S: Final = 20.0
_SILENCE_S: Final = 0.2
_MAX_ANSWERS: Final = 20
#: Statuses that no request may lead to.
_FAULTS: Final = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
#: What gRPC says on this side when it cannot write to a stream that the server has ended.
_CUT: Final = "Internal error from Core"
_INTERNAL: Final = InternalError.code.encode()
#: Promotions stop everything for the time of a lease, which is what they are for.
_RARE: Final = {"Promote": 0.002}
_OFTEN: Final = {"Append": 3.0, "Pull": 3.0, "Session": 3.0}
_FILES: Final = (broker_pb2, controller_pb2, nameserver_pb2, replication_pb2, health_pb2)

TOPICS: Final = ("t0", "t1", "t2")


def _names(prefix: str, count: int) -> Any:
    return lambda rng: f"{prefix}{rng.randrange(count)}"


def _one_of(*values: Any) -> Any:
    return lambda rng: rng.choice(values)


def _batch(rng: Random) -> bytes:
    """Return a batch that is sound, or one that a broker rejects: it does not open those that it stores."""
    made = rng.choice(valid_batches()) if rng.random() < 0.6 else make_batch(rng)
    with contextlib.suppress(CorruptBatch, InvalidArgument):
        take_in(made)
        try:
            RecordBatch(made).check_values()
        except CorruptBatch:
            return valid_batches()[0]
    return made


#: What servers know. More names than these come from the share of values that no pool gives.
POOLS: Final = {
    "topic": _names("t", 6),
    "topics": _names("t", 6),
    "group": _names("g", 8),
    "client_id": _names("c", 8),
    "Transaction.name": _names("x", 6),
    "CommitTransactionRequest.name": _names("x", 6),
    "broker_name": _one_of("broker-a", "broker-z"),
    "broker_names": _one_of("broker-a", "broker-z"),
    "cluster": _one_of("default", "other"),
    "address": _one_of("127.0.0.1:1", "127.0.0.1:2"),
    "AddressesEntry.key": _one_of(0, 1, 2),
    "AddressesEntry.value": _one_of("127.0.0.1:1", "127.0.0.1:2"),
    "service": _one_of("", "minimq.v1.Broker", "minimq.v1.NameServer"),
    "allocation": _one_of("averagely", "sticky", "consistent-hash"),
    "filters": _one_of("*", "a || b", "* where a = 1"),
    "batch": _batch,
    "queue_id": _one_of(0, 1, 2, 3),
    "queue_ids": _one_of(0, 1, 2, 3),
    "offset": _one_of(0, 0, 1, 50, -1),
    "number": _one_of(0, 1, 2, 3),
    "sequence": _one_of(7, 8),
    "sequences": _one_of(7, 8),
    "producer_id": _one_of(0xFEED, 1),
    "epoch": _one_of(0, 1, 1 << 32, (1 << 32) + 1),
    "term": _one_of(0, 1, 2),
    "replica_id": _one_of(0, 1, 2, 7),
    "broker_id": _one_of(0, 1, 2, 7),
    "in_sync": _one_of(0, 1, 2),
    "run": _one_of(1, 2, 1 << 40),
    "wait_ms": _one_of(0, 1, 100),
    "handover_timeout_ms": _one_of(0, 100),
    "max_messages": _one_of(1, 1000),
    "max_bytes": _one_of(1, 1 << 20),
    "read_queues": _one_of(1, 4),
    "write_queues": _one_of(1, 4),
    "permission": _one_of(6, 6, 6, 4, 2, 0),
    "founds": _one_of(False, True),
    "data_version": _one_of(0, 1, 2, 3),
    "heartbeat_only": _one_of(False, True),
}
#: Values that a request never has: they ask for a loss, which is what they are documented to cause.
_NEVER: Final = {"PromoteRequest": {"unclean": False}, "PromoteReplicaRequest": {"unclean": False}}


class Rpc(NamedTuple):
    """One RPC of one server."""

    server: int
    method: MethodDescriptor

    @property
    def path(self) -> str:
        """Its name as gRPC has it."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"


class Finding(NamedTuple):
    """An answer that a server should not have given."""

    rpc: Rpc
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.rpc.path} of server {self.rpc.server}: call {self.number}: {self.what}"


def rpcs_of(server: int, services: Sequence[str]) -> list[Rpc]:
    """Return all RPCs of some services, and the health of a server."""
    assert _FILES, "their descriptors are in the pool once they are imported"
    found = map(descriptor_pool.Default().FindServiceByName, services)
    check = descriptor_pool.Default().FindServiceByName("grpc.health.v1.Health").methods_by_name["Check"]
    return [*(Rpc(server, method) for service in found for method in service.methods), Rpc(server, check)]


class Caller:
    """Makes calls, one after the other, each from its own number.

    Args:
        seed: repeats the requests of an earlier run.
        rpcs: what is called.
        channels: to the servers.
    """

    def __init__(self, seed: int, rpcs: Sequence[Rpc], channels: Sequence[Any]) -> None:
        self._seed = seed
        self._rpcs = rpcs
        self._weights = [_RARE.get(rpc.method.name, _OFTEN.get(rpc.method.name, 1.0)) for rpc in rpcs]
        self._channels = channels
        self._maker = MessageMaker(POOLS, sane=0.85, long=0.005)
        #: How calls ended: by the name of the status.
        self.ends: dict[str, int] = {}

    async def call(self, number: int) -> Finding | None:
        """Make call `number`, and return what was wrong with its answer."""
        rng = Random(f"{self._seed} {number}")
        [rpc] = rng.choices(self._rpcs, self._weights)
        answers: list[bytes] = []
        try:
            await self._play(rng, rpc, answers)
            end = "OK"
        except grpc.aio.AioRpcError as error:
            end = error.code().name
            if error.details() == _CUT:
                end = "CUT"
            elif error.code() in _FAULTS:
                return Finding(rpc, number, f"{end}: {error.details()}")
        except (asyncio.CancelledError, asyncio.InvalidStateError, grpc.aio.UsageError):
            end = "CANCELLED"  # by this side
        self.ends[f"{rpc.method.name} {end}"] = self.ends.get(f"{rpc.method.name} {end}", 0) + 1
        told = next((answer for answer in answers if _INTERNAL in answer), None)
        return None if told is None else Finding(rpc, number, f"an answer tells of {told[:300]!r}")

    def request(self, rng: Random, method: MethodDescriptor) -> bytes:
        """Return a request of an RPC, serialized; now and then it is no such message."""
        descriptor: Descriptor = method.input_type
        message = self._maker.make(rng, descriptor)
        for name, value in _NEVER.get(descriptor.name, {}).items():
            setattr(message, name, value)
        data = message.SerializeToString()
        return mutation.blob(rng, data) if rng.random() < 0.01 else data

    async def _play(self, rng: Random, rpc: Rpc, answers: list[bytes]) -> None:
        channel = self._channels[rpc.server]
        method = rpc.method
        if not method.client_streaming and not method.server_streaming:
            answers.append(await channel.unary_unary(rpc.path)(self.request(rng, method), timeout=_DEADLINE_S))
            return
        requests = [self.request(rng, method) for _ in range(rng.choice((0, 1, 1, 2, 3, 8)))]
        kind = rng.choice(("closed", "closed", "silent", "cancelled", "unread"))
        if not method.client_streaming:
            call: Any = channel.unary_stream(rpc.path)((requests or [b""])[0], timeout=_DEADLINE_S)
        else:
            call = channel.stream_stream(rpc.path)(_all_of(requests, kind), timeout=_DEADLINE_S)
        try:
            if kind == "unread":
                await asyncio.sleep(_SILENCE_S)
            elif kind != "cancelled":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SILENCE_S if kind == "silent" or method.server_streaming else None):
                        await _read(call, answers)
        finally:
            call.cancel()


async def _all_of(requests: Sequence[bytes], kind: str) -> AsyncIterator[bytes]:
    for request in requests:
        yield request
    if kind != "closed":
        await asyncio.sleep(_DEADLINE_S)


async def _read(call: Any, answers: list[bytes]) -> None:
    async for answer in call:
        answers.append(answer)
        if len(answers) >= _MAX_ANSWERS:
            return


def open_channel(address: str) -> Any:
    """Return a channel for raw bytes."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
