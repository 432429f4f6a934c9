"""A broker that is told to stop: what it acknowledged is stored, and nothing else; it ends by itself, in time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.commit.store import Store, StoreOptions
from minimq_common.batch.records import RecordBatch
from minimq_common.model import Permission
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc, staged_pb2, work_queues_pb2
from minimq_proto.v1.staged_pb2_grpc import StagedStub
from minimq_proto.v1.work_queues_pb2_grpc import WorkQueuesStub
from support.broker_link import BrokerLink
from support.fake_broker import registered
from support.kernel_stores import batches_of, make_batch
from support.process import process
from support.scraping import Scrape
from support.waiting import wait_until

pytestmark = pytest.mark.system

TIMEOUT_S = 60.0
#: A stop gives calls under way 5 seconds, and the disk the time that it needs.
MAX_S = 30.0


class Sender:
    """Sends numbered batches in one stream until it breaks or ends, many at a time."""

    def __init__(self, address: str, window: int) -> None:
        self.answers: dict[int, broker_pb2.AppendResult] = {}
        self._link = BrokerLink(address)
        self._room = threading.Semaphore(window)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _requests(self) -> Iterator[broker_pb2.AppendRequest]:
        number = 0
        while self._room.acquire(timeout=TIMEOUT_S) and not self._over.is_set():
            batch = make_batch([b"%d" % number, bytes(20_000)])
            yield broker_pb2.AppendRequest(appends=[broker_pb2.Append(request_id=number, topic="t", batch=batch)])
            number += 1

    def _run(self) -> None:
        try:
            for response in self._link.stub.Append(self._requests()):
                for result in response.results:
                    self.answers[result.request_id] = result
                    self._room.release()
        except grpc.RpcError:
            pass  # as when a broker stops
        self._over.set()
        self._room.release()

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        self._link.close()


def ready(server: subprocess.Popen[str]) -> str:
    """Return the address of a server once it serves."""
    assert server.stdout is not None
    return server.stdout.readline().split()[-1]


def stored_numbers(data_dir: Path) -> list[int]:
    """Return the numbers of all batches of a store that is closed, in the order of their queue."""
    assert check_directory(data_dir).findings == []
    store = Store(data_dir, lambda jobs, grown: None, StoreOptions(), lambda: 0)
    queue = store.state.queue("t", 0)
    batches = batches_of(store, queue, 0, 1 << 40, 1 << 40)
    store.close()
    return [int(next(iter(RecordBatch(each.data).bodies(0)))) for each in batches]


def create_topic(address: str) -> None:
    link = BrokerLink(address)
    topic = broker_pb2.Topic(topic="t", read_queues=1, write_queues=1, permission=Permission.READ_WRITE)
    link.call(link.stub.CreateTopic, broker_pb2.CreateTopicRequest(topic=topic), TIMEOUT_S)
    link.close()


def test_what_is_under_way_is_acknowledged_and_stored_or_rejected(tmp_path: Path) -> None:
    nameserver = process(sys.executable, "-m", "minimq_nameserver", "--listen", "127.0.0.1:0")
    flags = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"), "--log-level", "warning")
    with (
        nameserver as known,
        process(sys.executable, "-m", "minimq_broker", *flags, "--nameserver", at := ready(known)) as broker,
    ):
        address = ready(broker)
        wait_until(lambda: registered(at), TIMEOUT_S)
        create_topic(address)
        senders = [Sender(address, window=200) for _ in range(3)]
        wait_until(lambda: all(len(sender.answers) > 100 for sender in senders), TIMEOUT_S)
        broker.send_signal(signal.SIGTERM)
        _, errors = broker.communicate(timeout=MAX_S)
        assert (broker.returncode, errors) == (0, "")
        for sender in senders:
            sender.join()
        assert registered(at) == []
        known.send_signal(signal.SIGTERM)
        known.communicate(timeout=MAX_S)
    acknowledged = [
        (result.base_offset, number)
        for sender in senders
        for number, result in sender.answers.items()
        if not result.failure.code
    ]
    assert [number for _, number in sorted(acknowledged)] == stored_numbers(tmp_path / "data")


def test_who_waits_or_only_listens_does_not_hold_it_up(tmp_path: Path) -> None:
    flags = (
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        str(tmp_path / "data"),
        "--metrics",
        "127.0.0.1:0",
        "--log-format",
        "json",
    )
    with process(sys.executable, "-m", "minimq_broker", *flags, "--nameserver", "127.0.0.1:1") as broker:
        address, metrics = ready(broker), shown_at(broker)
        create_topic(address)
        with rpc.open_channel(address) as channel:
            stub, over = broker_pb2_grpc.BrokerStub(channel), threading.Event()
            pull = broker_pb2.PullRequest(pull_id=1, topic="t", max_messages=1, max_bytes=1, wait_ms=60_000)
            take = work_queues_pb2.PopTake(topic="t", max_messages=1, max_bytes=1, invisible_ms=1_000, wait_ms=60_000)
            take.start.at = broker_pb2.START_AT_EARLIEST
            pop = work_queues_pb2.PopRequest(group="g", client_id="somebody", takes=[take])
            session = broker_pb2.SessionRequest(client_id="somebody")
            attend = staged_pb2.EventsRequest(client_id="somebody")
            streams: list[Any] = [
                stub.Append(kept_open(over), timeout=TIMEOUT_S),
                stub.AppendAtomic(kept_open(over), timeout=TIMEOUT_S),
                StagedStub(channel).Events(kept_open(over, attend), timeout=TIMEOUT_S),
                stub.Pull(kept_open(over, pull), timeout=TIMEOUT_S),
                WorkQueuesStub(channel).Pop(kept_open(over, pop), timeout=TIMEOUT_S),
                stub.Session(kept_open(over, session), timeout=TIMEOUT_S),
            ]
            wait_until(lambda: all(open_streams(metrics).values()), TIMEOUT_S)
            broker.send_signal(signal.SIGTERM)
            for stream in streams:
                list(stream)  # would raise, had it been cut off when its time was over
            broker.communicate(timeout=MAX_S)
            assert broker.returncode == 0
            over.set()


def shown_at(server: subprocess.Popen[str]) -> str:
    """Return where a server that is ready shows its metrics."""
    assert server.stderr is not None
    records = map(json.loads, server.stderr)
    return next(str(record["fields"]["metrics"]) for record in records if record["message"] == "ready")


def open_streams(metrics: str) -> dict[str, float]:
    return {labels["call"]: number for labels, number in Scrape(metrics).series("minimq_broker_streams")}


def kept_open(over: threading.Event, *requests: Any) -> Iterator[Any]:
    yield from requests
    over.wait(TIMEOUT_S)
