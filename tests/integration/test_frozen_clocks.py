"""Waits of clients end although a test has stopped the clock, as docs/testing.md says."""

from __future__ import annotations

import os
import subprocess
import sys

from minimq import LocalCluster
from support.pages import blocks_of

PATIENCE_S = 60
USES = """
import asyncio, sys, threading
from minimq import Admin, ConsumeResult, Message, Producer, PullConsumer, PushConsumer, WorkQueueConsumer, aio, errors

address, topic = sys.argv[1:]


async def send():
    async with aio.Producer(address) as producer:
        await producer.send(Message(topic, b"x"))


def use():
    with Admin(address) as admin:
        admin.list_topics()
    with Producer(address) as producer:
        producer.send(Message(topic, b"x"))
        producer.flush()
    with PullConsumer(address, group=topic + "-pull", start="earliest") as consumer:
        consumer.subscribe(topic)
        while not consumer.poll(5):
            pass
        consumer.poll(0.2)
    with WorkQueueConsumer(address, group=topic + "-simple") as consumer:
        consumer.subscribe(topic)
        consumer.receive(timeout=0.2)
    called = threading.Event()
    with PushConsumer(address, group=topic + "-push", start="earliest") as consumer:
        consumer.subscribe(topic)
        consumer.start(lambda messages: called.set() or ConsumeResult.SUCCESS)
        called.wait()
    try:
        with Producer("127.0.0.1:1", send_timeout_s=0.5) as producer:
            producer.send(Message(topic, b"x"))
    except errors.MinimqError:
        print("done")


"""
FREEZEGUN = """
from freezegun import freeze_time

with freeze_time("2020-01-01"):
    use()
with freeze_time("2020-01-01", real_asyncio=True):
    asyncio.run(send())
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_waits_end_under_freezegun(cluster: LocalCluster, topic: str) -> None:
    [setting] = [block for block in blocks_of("docs/testing.md", "python") if "freezegun" in block]
    done = run(setting + USES + FREEZEGUN, cluster.nameserver, topic)
    assert (done.stdout.strip(), done.returncode) == ("done", 0), done.stderr
