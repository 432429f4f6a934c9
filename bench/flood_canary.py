"""A modest client of a server under attack, as a `Workload`: a line on stdin starts its measurement, another ends it.

Latencies are corrected for coordinated omission: calls that were due while another one took long are not made, but
count from their due time. `calm` is the latency without an attack: that of the machine and of the canary itself.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from minimq import Message, Producer, PullConsumer
from minimq.errors import MinimqError
from minimq_common.wire import rpc
from minimq_proto.v1 import controller_pb2, controller_pb2_grpc, nameserver_pb2, nameserver_pb2_grpc

#: Interval between calls of each kind.
EVERY_S = 0.05


def figures(latencies: list[float]) -> tuple[float, float, float]:
    """Return p50, p99 and maximum, in ms, of calls that were due at a steady rate."""
    took = sorted(s - number * EVERY_S for s in latencies for number in range(1 + int(s // EVERY_S)))
    if not took:
        return (0.0,) * 3
    p50, p99, most = took[len(took) // 2], took[int(len(took) * 0.99)], took[-1]
    return p50 * 1000, p99 * 1000, most * 1000


class BrokerCanary:
    """Sends messages and receives them."""

    def __init__(self, nameserver: str, topic: str, max_wait_s: float) -> None:
        self.acts = {"send": self._send}
        self._topic, self._max_wait_s = topic, max_wait_s
        self._producer = Producer(nameserver)
        self._consumer = PullConsumer(nameserver, group="canary")
        self._consumer.subscribe(topic)
        self._received_in: list[float] = []
        self._sent: set[bytes] = set()
        self._received: set[bytes] = set()
        self._is_over = threading.Event()
        self._receiver = threading.Thread(target=self._receive)
        self._receiver.start()
        self._send()

    def _send(self) -> None:
        body = str(time.monotonic()).encode()
        self._producer.send(Message(self._topic, body))
        self._sent.add(body)

    def _receive(self) -> None:
        until = float("inf")
        while time.monotonic() < until and not (self._is_over.is_set() and self._sent <= self._received):
            for message in self._consumer.poll(timeout=0.2):
                self._received.add(message.body)
                self._received_in.append(time.monotonic() - float(message.body))
            if self._is_over.is_set():
                until = min(until, time.monotonic() + self._max_wait_s)

    def begin(self, took: dict[str, list[float]]) -> None:
        """Start the measurement; earlier sends, without an attack, become `calm`."""
        took["calm"], took["send"], took["receive"] = took["send"], [], self._received_in
        self._received_in.clear()

    def end(self) -> int:
        """Wait for all sent messages; return how many are lost."""
        self._is_over.set()
        self._receiver.join()
        self._consumer.close()
        self._producer.close()
        return len(self._sent - self._received)


class NameServerCanary:
    """A broker that sends heartbeats and renews its lease, and a client that looks up routes; also at a calm server."""

    def __init__(self, address: str, calm: str, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._channels = [rpc.open_channel(each) for each in (address, address, address, calm, calm)]
        self._names, self._calm_names = map(nameserver_pb2_grpc.NameServerStub, self._channels[2:4])
        self._controller = controller_pb2_grpc.ControllerStub(self._channels[1])
        self._told: list[queue.SimpleQueue[nameserver_pb2.RegisterRequest | None]] = []
        table = nameserver_pb2.RegisterRequest(
            cluster="default", broker_name="canary", address="canary:1", data_version=1, permission=6
        )
        table.groups.add(topics=["canary"], read_queues=4, write_queues=4, permission=6)
        self._tell = self._registered(self._channels[0], table)
        self._calm_tell = self._registered(self._channels[4], table)  # unused, but an unreferenced stream would end
        self._known: controller_pb2.ReplicaSet | None = None
        self._heartbeat = nameserver_pb2.RegisterRequest(broker_name="canary", data_version=1, heartbeat_only=True)
        self.acts: dict[str, Callable[[], object]] = {
            "look-up": lambda: self._look_up(self._names),
            "heartbeat": lambda: self._tell(self._heartbeat),
            "lease": self._renew,
            "calm": lambda: self._look_up(self._calm_names),
        }

    def _registered(
        self, channel: grpc.Channel, table: nameserver_pb2.RegisterRequest
    ) -> Callable[[nameserver_pb2.RegisterRequest], object]:
        requests: queue.SimpleQueue[nameserver_pb2.RegisterRequest | None] = queue.SimpleQueue()
        self._told.append(requests)
        answers = nameserver_pb2_grpc.NameServerStub(channel).Register(iter(requests.get, None))

        def tell(request: nameserver_pb2.RegisterRequest) -> object:
            requests.put(request)
            return next(answers)

        tell(table)
        return tell

    def _look_up(self, names: nameserver_pb2_grpc.NameServerStub) -> None:
        answer = names.GetRoutes(nameserver_pb2.GetRoutesRequest(topic="canary"), timeout=self._max_wait_s)
        assert answer.routes[0].queues

    def _renew(self) -> None:
        request = controller_pb2.ReportRequest(
            cluster="default",
            broker_name="canary",
            replica_id=1,
            run=1,
            address="canary:1",
            founds=True,
            min_in_sync=1,
            last_term=1 if self._known else 0,
            known=self._known,
        )
        record = self._controller.Report(request, timeout=self._max_wait_s).replica_set
        assert record.term == 1, f"the lease of the canary was over: {record}"
        self._known = record

    def begin(self, took: dict[str, list[float]]) -> None:
        for latencies in took.values():
            latencies.clear()

    def end(self) -> int:
        for requests in self._told:
            requests.put(None)
        for channel in self._channels:
            channel.close()
        return 0


def main() -> None:
    """Run a canary: KIND ARGUMENTS, the latter as JSON. Prints its results as a line of JSON."""
    kinds: dict[str, type[BrokerCanary | NameServerCanary]] = {"broker": BrokerCanary, "nameserver": NameServerCanary}
    arguments: dict[str, Any] = json.loads(sys.argv[2])
    canary = kinds[sys.argv[1]](**arguments)
    took: dict[str, list[float]] = {name: [] for name in canary.acts}
    failures: list[str] = []
    over = threading.Event()

    def repeat(name: str, act: Callable[[], object]) -> None:
        due = time.monotonic()
        while not over.wait(due - time.monotonic()):
            began = time.monotonic()
            try:
                act()
            except (grpc.RpcError, MinimqError, AssertionError, StopIteration) as error:
                failures.append(f"{name}: {error}"[:200])
                time.sleep(0.1)
            took[name].append(time.monotonic() - began)
            due = max(due + EVERY_S, time.monotonic())

    threads = [threading.Thread(target=repeat, args=item, daemon=True) for item in canary.acts.items()]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    canary.begin(took)
    sys.stdin.readline()
    over.set()
    for thread in threads:
        thread.join(arguments["max_wait_s"])
    lost = canary.end()
    calls = {name: figures(latencies) for name, latencies in took.items()}
    print(json.dumps({"calls": calls, "failures": failures, "lost": lost}), flush=True)


if __name__ == "__main__":
    main()
