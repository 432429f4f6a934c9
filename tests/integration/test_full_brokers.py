"""Consumers for which no broker has room: they say so when the time for their start is over."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, Message, Producer, PullConsumer
from minimq_common.errors import SystemBusy
from support.command import COMMAND
from support.limited import limited
from support.waiting import wait_until

TIMEOUT_S = 60.0
START_S = 2.0


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker with room for two groups and three members."""
    with limited(tmp_path_factory.mktemp("full"), max_groups=2, max_sessions=3) as broker:
        with Admin(broker.nameserver) as admin, Producer(broker.nameserver) as producer:
            admin.create_topic("t", queues=4)
            producer.send_many([Message("t", b"x")] * 4)
        yield broker.nameserver


def join(nameserver: str, stack: ExitStack, group: str) -> PullConsumer:
    """Return a consumer that its group has taken."""
    consumer = stack.enter_context(PullConsumer(nameserver, group=group, auto_commit=False, revoke_timeout_s=0.5))
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


def test_one_topic_too_many(tmp_path: Path) -> None:
    with limited(tmp_path, max_topics=2) as broker, Admin(broker.nameserver, timeout_s=START_S) as admin:
        admin.create_topic("t1", queues=1)
        admin.create_topic("t2", queues=1)
        with pytest.raises(SystemBusy, match="carries 2 topics, and its limit is 2: delete some"):
            admin.create_topic("t3", queues=1)
        admin.delete_topic("t1")
        admin.create_topic("t3", queues=1)


def test_one_group_too_many(full: str, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        for group in ("g1", "g2"):
            join(full, stack, group)
        with PullConsumer(full, group="g3", start_timeout_s=START_S) as late:
            late.subscribe("t")
            with caplog.at_level(logging.INFO, "minimq.consuming.group_errors"):
                said = rejected(late)
            assert "has 2 consumer groups, which is its limit" in said
            assert f"(waited {START_S:g} s)" in said
            own = [record for record in caplog.records if record.name == "minimq.consuming.group_errors"]
            assert len([record for record in own if "rejected" in record.getMessage()]) == 1, caplog.messages
            with pytest.raises(SystemBusy):  # each poll says it
                late.poll(0.1)
        arguments = ["--server", full, "consume", "t", "--group", "g3", "--start-timeout", "1"]
        ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert ended.returncode == 1, ended
        assert "has 2 consumer groups" in ended.stderr.splitlines()[-1], ended
        assert ended.stderr.splitlines()[-1].startswith("error: "), ended


def test_one_session_too_many_until_another_ends(full: str) -> None:
    with ExitStack() as stack:
        members = [join(full, stack, "g1") for _ in range(3)]
        late = stack.enter_context(PullConsumer(full, group="g1", start_timeout_s=START_S))
        late.subscribe("t")
        assert "serves 3 consumers, which is its limit" in rejected(late)
        members[0].close()

        def joined() -> bool:
            try:
                late.poll(0.1)
            except SystemBusy:
                return False
            return bool(late.assignment)

        wait_until(joined, TIMEOUT_S)
