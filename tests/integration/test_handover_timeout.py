"""Held hand-over: a queue waits for the state of its former owner."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from minimq import LocalCluster, MessageQueue, PullConsumer
from minimq_common.errors import GroupConflict, InvalidArgument
from support.group_listener import QueueLog
from support.members import Log, Member, shared_evenly
from support.waiting import wait_until

TIMEOUT_S = 40.0
#: No test waits for so long: what is handed over before, is so because it was said to be saved.
LONG_S = 300.0


def test_state_counts_as_saved_when_on_revoked_returns(cluster: LocalCluster, topic: str, group: str) -> None:
    told = QueueLog()
    log = Log()
    with Member(cluster.nameserver, group, topic, log, handover_timeout_s=LONG_S, **told.options) as first:
        wait_until(lambda: len(first.queues) == 8, TIMEOUT_S)
        with Member(cluster.nameserver, group, topic, log, handover_timeout_s=LONG_S, **told.options) as second:
            wait_until(shared_evenly(first, second, queues=8), TIMEOUT_S)
        wait_until(lambda: len(first.queues) == 8, TIMEOUT_S, what="closing hands over, too")
    assert len(told.queues("revoked")) == 4 + 4 + 8


@pytest.mark.parametrize("how", ["returns False", "fails", "no callback"])
def test_otherwise_the_queues_wait_until_it_is_said(cluster: LocalCluster, topic: str, group: str, how: str) -> None:
    revoked: list[MessageQueue] = []

    def on_revoked(queues: Sequence[MessageQueue]) -> bool:
        revoked.extend(queues)
        if how == "fails":
            raise RuntimeError("as told")
        return False

    options: dict[str, Any] = {} if how == "no callback" else {"on_revoked": on_revoked}
    log = Log()
    with Member(
        cluster.nameserver, group, topic, log, handover_timeout_s=LONG_S, client_id=f"a-{group}", **options
    ) as first:
        wait_until(lambda: len(first.queues) == 8, TIMEOUT_S)
        had = first.queues
        with Member(cluster.nameserver, group, topic, log, handover_timeout_s=LONG_S, client_id=f"b-{group}") as second:
            wait_until(lambda: len(first.queues) == 4, TIMEOUT_S)
            left = sorted(set(had) - set(first.queues))
            assert sorted(revoked) == ([] if how == "no callback" else left)
            # The queues are free, and yet nobody has them: a second is far more than a grant takes.
            wait_until(_passes(1.0))
            assert second.queues == []

            first.consumer.mark_state_saved(left[:2])
            wait_until(lambda: second.queues == left[:2], TIMEOUT_S)
            first.consumer.mark_state_saved(left)
            wait_until(lambda: second.queues == left, TIMEOUT_S)


def _passes(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def test_a_former_owner_gets_its_queues_back_at_once(cluster: LocalCluster, topic: str, group: str) -> None:
    log = Log()
    with Member(cluster.nameserver, group, topic, log, handover_timeout_s=LONG_S, client_id=f"a-{group}") as first:
        wait_until(lambda: len(first.queues) == 8, TIMEOUT_S)
        with Member(cluster.nameserver, group, topic, log, handover_timeout_s=LONG_S, client_id=f"b-{group}"):
            wait_until(lambda: len(first.queues) == 4, TIMEOUT_S)
        wait_until(lambda: len(first.queues) == 8, TIMEOUT_S)


MEMBER = """
import sys
from minimq import PullConsumer
consumer = PullConsumer(sys.argv[1], group=sys.argv[2], client_id="a-killed", handover_timeout_s=float(sys.argv[4]))
consumer.subscribe(sys.argv[3])
while True:
    consumer.poll(0.1)
    print(len(consumer.assignment), flush=True)
"""


@pytest.mark.fault
def test_the_queues_of_a_killed_member_are_held_for_the_time(cluster: LocalCluster, topic: str, group: str) -> None:
    handover_timeout_s = 6.0
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, cluster.nameserver, group, topic, str(handover_timeout_s)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "8":
            break
    process.kill()
    process.wait(TIMEOUT_S)
    process.stdout.close()
    died_at = time.monotonic()
    with Member(
        cluster.nameserver, group, topic, Log(), handover_timeout_s=handover_timeout_s, client_id="b"
    ) as member:
        wait_until(lambda: len(member.queues) == 8, TIMEOUT_S)
        assert time.monotonic() - died_at >= handover_timeout_s


def test_wrong_usage_is_named(cluster: LocalCluster, topic: str, group: str) -> None:
    with pytest.raises(InvalidArgument, match="handover_timeout_s is -1"):
        PullConsumer(cluster.nameserver, group=group, handover_timeout_s=-1)
    with PullConsumer(cluster.nameserver, group=group) as consumer, pytest.raises(InvalidArgument, match="subscribe"):
        consumer.mark_state_saved([])
    with Member(cluster.nameserver, group, topic, Log(), handover_timeout_s=LONG_S) as first:
        wait_until(lambda: len(first.queues) == 8, TIMEOUT_S)
        with Member(cluster.nameserver, group, topic, Log()) as second:
            error = wait_until(lambda: second.error, TIMEOUT_S)
            assert isinstance(error, GroupConflict)
            assert "handover_timeout_s" in error.message
