"""A broker whose disk hangs tells its senders, instead of letting them wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq_proto.v1 import broker_pb2
from support.broker_link import BrokerLink
from support.kernel_stores import make_batch
from support.limited import limited
from support.waiting import wait_until

pytestmark = pytest.mark.system

TIMEOUT_S = 30.0

#: Holds the write lock of an LMDB file until its stdin ends: the next transaction of the broker waits for it.
_HOLD = """
import lmdb, os, sys
size = os.path.getsize(sys.argv[1])
with lmdb.open(sys.argv[1], subdir=False, map_size=max(size, 1 << 30)) as env, env.begin(write=True) as txn:
    print("held", flush=True)
    sys.stdin.read()
    txn.abort()
"""


@contextmanager
def hanging_disk(data_dir: Path) -> Iterator[None]:
    """Let no transaction of a broker begin on its active segment."""
    segment = max(data_dir.glob("**/[0-9]*.mdb"))
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(segment)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield


class Stream:
    """One stream of batches to one broker."""

    def __init__(self, link: BrokerLink) -> None:
        self._requests: SimpleQueue[broker_pb2.AppendRequest | None] = SimpleQueue()
        self._answers = link.stub.Append(iter(self._requests.get, None), timeout=TIMEOUT_S)
        self._results: list[broker_pb2.AppendResult] = []

    def send(self, request_id: int, data: bytes) -> None:
        self._requests.put(
            broker_pb2.AppendRequest(appends=[broker_pb2.Append(request_id=request_id, topic="t", batch=data)])
        )

    def result(self) -> broker_pb2.AppendResult:
        while not self._results:
            self._results += next(self._answers).results
        return self._results.pop(0)

    def end(self) -> None:
        self._requests.put(None)


def test_senders_are_told_to_come_back_and_nothing_is_lost(tmp_path: Path) -> None:
    large = make_batch([bytes(900_000)])
    small = make_batch([bytes(300_000)])
    with limited(tmp_path, max_pending_bytes=1 << 20, busy_after_s=0.3) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("t", 1)
        link = BrokerLink(own.broker)
        stream = Stream(link)
        with hanging_disk(own.data_dir):
            stream.send(1, large)
            for request_id in (2, 3, 4):
                stream.send(request_id, small)
                rejected = stream.result()
                assert (rejected.request_id, rejected.failure.code) == (request_id, "SYSTEM_BUSY")
                assert rejected.failure.retry_after_ms == 500
                assert "wait for the disk" in rejected.failure.message
        written = stream.result()
        assert (written.request_id, written.base_offset, written.failure.code) == (1, 0, "")
        stream.send(5, small)
        written = stream.result()
        assert (written.request_id, written.base_offset, written.failure.code) == (5, 1, "")
        stream.end()
        link.close()


def test_a_producer_keeps_away_from_a_broker_whose_disk_hangs_until_it_takes_batches_again(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("t", 2)
        with Producer(own.nameserver) as producer:
            for _ in range(4):
                producer.send(Message("t", b"before"))
            with hanging_disk(own.brokers[0].data_dir):
                # The process is alive, and says so to whoever asks: only what goes to the disk gets no answer.
                wait_until(lambda: avoided_after_a_send(producer), TIMEOUT_S)
                assert [broker.broker_name for broker in producer.statistics().avoided] == ["broker-a"]
                retries = producer.statistics().retries
                ends = time.monotonic() + 3.0  # several probes
                while time.monotonic() < ends:
                    assert producer.send(Message("t", b"meanwhile")).queue.broker_name == "broker-b"
                assert producer.statistics().retries == retries
            wait_until(lambda: producer.send(Message("t", b"after")).queue.broker_name == "broker-a", TIMEOUT_S)


def avoided_after_a_send(producer: Producer) -> bool:
    producer.send(Message("t", b"first"))
    return bool(producer.statistics().avoided)
