"""A user of a secured cluster with everything that a client keeps open, and one that sends all the time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import grpc

from minimq import Credentials, LocalCluster, Message, Producer
from minimq.errors import MinimqError
from minimq_common.security.credentials import CredentialsArgument
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc, nameserver_pb2, nameserver_pb2_grpc, work_queues_pb2
from minimq_proto.v1.work_queues_pb2_grpc import WorkQueuesStub
from support.secure_scraping import trust_of
from support.waiting import wait_until

TIMEOUT_S = 60.0
#: The topic of all streams, which has two queues on each broker.
TOPIC, QUEUES = "orders", 2
RULES = [f"allow write topic {TOPIC}", f"allow read topic {TOPIC}", "allow read group g-*"]
#: Messages of one call of a producer.
_BATCH = 500


class Stream:
    """A stream on which one request was made; nothing more comes for minutes."""

    def __init__(self, call: Callable[..., Any], request: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests.put(request)
        self._answers = call(iter(self._requests.get, None), timeout=10 * TIMEOUT_S)
        self.said: list[Any] = []
        self.error: MinimqError | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for answer in self._answers:
                self.said.append(answer)
        except grpc.RpcError as error:
            self.error = rpc.from_rpc_error(error, "server")

    def wait_for(self, answers: int) -> None:
        wait_until(lambda: len(self.said) >= answers, TIMEOUT_S, what="the requests are answered")

    def say(self, request: Any) -> None:
        self._requests.put(request)

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._requests.put(None)
        self._answers.cancel()
        self._thread.join(TIMEOUT_S)


class Idle:
    """The streams that a client keeps, as one user.

    Args:
        secure: the cluster.
        text: the credentials.
        name: of groups and client ids.
        opened: closes them at the end.
    """

    def __init__(self, secure: LocalCluster, text: str, name: str, opened: ExitStack) -> None:
        broker, nameserver = stubs(secure, Credentials.from_text(text), opened)
        self.broker = broker
        take = work_queues_pb2.PopTake(topic=TOPIC, max_messages=1, max_bytes=1, invisible_ms=1_000, wait_ms=60_000)
        take.start.at = broker_pb2.START_AT_LATEST
        end = broker.DescribeTopic(broker_pb2.DescribeTopicRequest(topic=TOPIC), timeout=TIMEOUT_S).queues[0].max_offset
        self.pull = broker_pb2.PullRequest(topic=TOPIC, max_messages=1, max_bytes=1, wait_ms=60_000, offset=end)
        join = broker_pb2.JoinGroup(group=f"{name}-session", topics=[TOPIC], allocation="averagely")
        self.streams = {
            "append": Stream(
                broker.Append, broker_pb2.AppendRequest(appends=[broker_pb2.Append(topic=TOPIC, batch=b"none")])
            ),
            "pull": Stream(broker.Pull, self.pull),
            "pop": Stream(broker.Pop, work_queues_pb2.PopRequest(group=f"{name}-pop", client_id=name, takes=[take])),
            "session": Stream(broker.Session, broker_pb2.SessionRequest(client_id=name, join=join)),
            "watch": Stream(nameserver.WatchRoutes, nameserver_pb2.WatchRoutesRequest(topics=[TOPIC])),
        }
        for stream in self.streams.values():
            opened.callback(stream.close)
        talking = [self.streams[name] for name in ("append", "session", "watch")]
        wait_until(lambda: all(stream.said for stream in talking), TIMEOUT_S, what="the streams are served")

    def open(self) -> set[str]:
        """Return the names of the streams that are open."""
        return {name for name, stream in self.streams.items() if stream.is_open}

    def errors(self) -> set[str]:
        """Return the texts with which streams ended."""
        return {str(stream.error) for stream in self.streams.values() if not stream.is_open}


def stubs(secure: LocalCluster, credentials: CredentialsArgument | None, opened: ExitStack) -> tuple[Any, Any]:
    """Return what calls a broker and the name server."""
    trust = trust_of(credentials)
    broker = opened.enter_context(rpc.open_channel(secure.brokers[0].address, trust))
    nameserver = opened.enter_context(rpc.open_channel(secure.nameservers[0].address, trust))
    calls: Any = broker_pb2_grpc.BrokerStub(broker)
    calls.Pop = WorkQueuesStub(broker).Pop
    return calls, nameserver_pb2_grpc.NameServerStub(nameserver)


class Sending:
    """A producer that sends at a rate, until it cannot."""

    def __init__(self, credentials: CredentialsArgument, per_second: int = 20_000) -> None:
        self._credentials = credentials
        self._ends = threading.Event()
        self._each_s = _BATCH / per_second
        self.sent = 0
        self.error: MinimqError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Producer(credentials=self._credentials, send_timeout_s=TIMEOUT_S) as producer:
            due = time.monotonic()
            while self.error is None and not self._ends.wait(max(0.0, due - time.monotonic())):
                due += self._each_s
                try:
                    self.sent += len(producer.send_many([Message(TOPIC, b"x")] * _BATCH))
                except MinimqError as error:
                    self.error = error

    def stop(self) -> None:
        self._ends.set()
        self.join()

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


def written_messages(stub: Any) -> int:
    """Return where the queues of the topic end at a broker, once all that it has taken is written."""
    stub.Probe(broker_pb2.ProbeRequest(), timeout=TIMEOUT_S)
    described = stub.DescribeTopic(broker_pb2.DescribeTopicRequest(topic=TOPIC), timeout=TIMEOUT_S)
    return sum(queue.max_offset for queue in described.queues)
