"""Consumers that are used wrongly, or from where they cannot work, and what both faces of them have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer, PushConsumer
from minimq_common.errors import InvalidArgument
from support.waiting import wait_until

TIMEOUT_S = 40.0


# ---- numbers ------------------------------------------------------------------------------------


#: Values that no annotation allows.
WRONG_OFFSETS: list[Any] = [-1, 1 << 70, 1.5, "x", None, True]
WRONG_TIMEOUTS: list[Any] = [float("inf"), float("nan"), 1e300, "1", None]


def test_a_wrong_offset_is_rejected_before_anything_is_done(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    with Producer(cluster.nameserver) as producer:
        queue = producer.send(Message(topic, b"0")).queue
        producer.send_many([Message(topic, b"1")] * 9, queue=queue)
    with PullConsumer(cluster.nameserver, group=group, auto_commit=False) as consumer:
        consumer.subscribe(topic)
        wait_until(lambda: consumer.poll(0.1, 3), TIMEOUT_S)
        other = MessageQueue(topic, "broker-a", (queue.queue_id + 1) % 4)
        for wrong in WRONG_OFFSETS:
            with pytest.raises(InvalidArgument, match="it must be "):
                consumer.seek(queue, wrong)
            assert consumer.position(queue) == 3
            with pytest.raises(InvalidArgument, match="it must be a whole number from 0 on"):
                consumer.commit({queue: 3, other: wrong})
    assert admin.committed_offsets(group, topic).get(queue, 0) == 0


def test_a_wrong_timeout_is_rejected(cluster: LocalCluster, topic: str, group: str) -> None:
    with (
        PullConsumer(cluster.nameserver, group=group) as pulling,
        PushConsumer(cluster.nameserver, group=group) as push,
    ):
        pulling.subscribe(topic)
        for wrong in WRONG_TIMEOUTS:
            with pytest.raises(InvalidArgument, match="timeout is"):
                pulling.poll(wrong)
            with pytest.raises(InvalidArgument, match="timeout is"):
                push.close(wrong)


def test_a_name_that_cannot_be_sent_is_rejected(cluster: LocalCluster, group: str) -> None:
    with pytest.raises(InvalidArgument, match=r"client_id is .*UTF-8"):
        PullConsumer(cluster.nameserver, group=group, client_id="\ud800")


# ---- forks --------------------------------------------------------------------------------------

FORK = """
import asyncio, os, signal, sys
import minimq, minimq.aio
from minimq_common.errors import Closed
nameserver, topic = sys.argv[1:]

def rejected(call):
    try:
        call()
    except Closed as error:
        assert "fork before the first client is made" in error.message, error
    else:
        raise AssertionError(call)

pull = minimq.PullConsumer(nameserver, group=topic + "-1")
pull.subscribe(topic)
pull.poll(0.1)
push = minimq.PushConsumer(nameserver, group=topic + "-2")
push.subscribe(topic)
push.start(lambda messages: minimq.ConsumeResult.SUCCESS)
other = minimq.aio.PullConsumer(nameserver, group=topic + "-3")
other.subscribe(topic)
asyncio.run(other.poll(0.1))
child = os.fork()
if not child:
    signal.alarm(30)
    rejected(lambda: pull.poll(1.0))
    rejected(lambda: next(iter(pull)))
    rejected(lambda: pull.assignment)
    rejected(pull.commit)
    rejected(lambda: push.start(print))
    rejected(lambda: asyncio.run(other.poll(1.0)))
    pull.close()
    push.close()
    asyncio.run(other.close())
    assert sys.platform != "linux" or len(os.listdir("/proc/self/task")) == 1, "gRPC has started threads"
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert len(pull.assignment) in range(9)
pull.close()
push.close()
asyncio.run(other.close())
"""


def test_a_forked_process_is_told_that_consumers_did_not_come_along(cluster: LocalCluster, topic: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORK, cluster.nameserver, topic],
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ended.returncode == 0, ended.stderr
