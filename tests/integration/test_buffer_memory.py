"""The buffer of a producer bounds its memory, however small the messages are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from minimq import Admin, LocalCluster
from support.command import environment

BUFFER_BYTES = 32 << 20
PROGRAM = """
import os, sys
from minimq import Message, Producer, errors

nameserver, how, what, limit = *sys.argv[1:4], int(sys.argv[4])

def message(i):
    if what == "properties":
        return Message("t", b"x", keys=[f"key {i}"], properties={f"{n} {i}": f"value {i}" for n in "abcde"})
    return Message("t", b"x", keys=[f"key {i}"] if what == "keys" else ())

def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

producer = Producer(nameserver, buffer_bytes=limit, block_when_full=False, send_timeout_s=6)
for i in range(300):
    producer.send_async(message(i)).result()
producer.send_many(map(message, range(300)))
print("ready", flush=True)
sys.stdin.readline()
before, peak, futures = memory(), 0, []

def counted():
    global peak, count
    for count in range(10_000_000):
        if count % 1_000 == 0:
            peak = max(peak, memory())
        yield message(count)

try:
    if how == "send_many":
        producer.send_many(counted())
    for each in counted():
        futures.append(producer.send_async(each))
except (errors.BufferFull, errors.SendFailed) as error:
    assert "buffer_bytes" in str(error), error
print(count, peak - before, flush=True)
os._exit(0)
"""


@pytest.fixture
def paused() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("t", queues=2)
        yield cluster


@pytest.mark.parametrize(
    ("what", "how"),
    [("plain", "send_async"), ("plain", "send_many"), ("keys", "send_async"), ("properties", "send_many")],
)
def test_memory_stays_near_the_option_with_messages_of_one_byte(paused: LocalCluster, what: str, how: str) -> None:
    command = [sys.executable, "-c", PROGRAM, paused.nameserver, how, what, str(BUFFER_BYTES)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        paused.brokers[0].pause()
        program.stdin.write("\n")
        program.stdin.flush()
        count, grown = map(int, program.stdout.readline().split())
        paused.brokers[0].resume()
    assert grown < 1.5 * BUFFER_BYTES, (count, grown)
    assert count > BUFFER_BYTES / 2_000, "no more is counted than it costs"
