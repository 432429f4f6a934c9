"""Consumers for which no broker has room: they say so when the time for their start is over."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq_common.errors import SystemBusy
from support.command import COMMAND
from support.waiting import wait_until

TIMEOUT_S = 60.0
START_S = 2.0


@pytest.fixture(scope="module")
def full() -> Iterator[LocalCluster]:
    options = {"max_groups": 2, "max_sessions": 3}
    with LocalCluster(brokers=1, broker_options=options) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("t", queues=4)
        with Producer(cluster.nameserver) as producer:
            producer.send_many([Message("t", b"x")] * 4)
        yield cluster


def join(cluster: LocalCluster, stack: ExitStack, group: str) -> PullConsumer:
    """Return a consumer that its group has taken."""
    consumer = stack.enter_context(
        PullConsumer(cluster.nameserver, group=group, auto_commit=False, revoke_timeout_s=0.5)
    )
    consumer.subscribe("t")
    wait_until(lambda: consumer.poll(0.1) or consumer.assignment, TIMEOUT_S)
    return consumer


def rejected(consumer: PullConsumer) -> str:
    """Return what a consumer says, once it does."""
    said = ""

    def poll() -> bool:
        nonlocal said
        try:
            assert not consumer.poll(0.1)
        except SystemBusy as error:
            said = error.message
        return bool(said)

    wait_until(poll, TIMEOUT_S)
    return said


def test_one_topic_too_many() -> None:
    with (
        LocalCluster(brokers=1, broker_options={"max_topics": 2}) as cluster,
        Admin(cluster.nameserver, timeout_s=START_S) as admin,
    ):
        admin.create_topic("t1", queues=1)
        admin.create_topic("t2", queues=1)
        with pytest.raises(SystemBusy, match=r"carries 2 topics, and its limit is 2 \(--max-topics\): delete some"):
            admin.create_topic("t3", queues=1)
        admin.delete_topic("t1")
        admin.create_topic("t3", queues=1)


def test_one_group_too_many(full: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        for group in ("g1", "g2"):
            join(full, stack, group)
        with PullConsumer(full.nameserver, group="g3", start_timeout_s=START_S) as late:
            late.subscribe("t")
            with caplog.at_level(logging.INFO, "minimq.consuming.group_errors"):
                said = rejected(late)
            assert "--max-groups" in said
            assert f"(waited {START_S:g} s)" in said
            assert len([line for line in caplog.messages if "rejected" in line]) == 1, caplog.messages
            with pytest.raises(SystemBusy):  # each poll says it
                late.poll(0.1)
        arguments = ["--server", full.nameserver, "consume", "t", "--group", "g3", "--start-timeout", "1"]
        ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert ended.returncode == 1, ended
        assert "--max-groups" in ended.stderr.splitlines()[-1], ended
        assert ended.stderr.splitlines()[-1].startswith("error: "), ended


def test_one_session_too_many_until_another_ends(full: LocalCluster) -> None:
    with ExitStack() as stack:
        members = [join(full, stack, "g1") for _ in range(3)]
        late = stack.enter_context(PullConsumer(full.nameserver, group="g1", start_timeout_s=START_S))
        late.subscribe("t")
        assert "--max-sessions" in rejected(late)
        members[0].close()

        def joined() -> bool:
            try:
                late.poll(0.1)
            except SystemBusy:
                return False
            return bool(late.assignment)

        wait_until(joined, TIMEOUT_S)
