"""A console that ends while an action is under way."""

from __future__ import annotations

import logging
import time

import pytest

from minimq import Admin, Message, MessageQueue, Producer
from minimq.cli.console import serving_console
from minimq.local.local_cluster import LocalCluster
from support.console_actions import confirmation_of, fill_in
from support.console_visitor import ConsoleVisitor


@pytest.mark.system
def test_an_action_that_is_under_way_ends_with_the_console_and_leaves_its_line(
    cluster: LocalCluster,
    admin: Admin,
    producer: Producer,
    topic: str,
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "minimq.audit")
    producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 3))
    admin.reset_offsets(group, topic, "earliest")
    with serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2, allow_changes=True) as served:
        visitor = ConsoleVisitor(served.address)
        described = fill_in(visitor, f"/topics/{topic}/resize", queues="3")
        place = visitor.post(f"/topics/{topic}/resize", confirmation_of(described)).headers["Location"]
        assert 'data-state="under-way"' in visitor.get(place).text
        began = time.monotonic()
    assert time.monotonic() - began < 10
    [line] = [each.getMessage() for each in caplog.records if "an action" in each.getMessage()]
    assert "result=failed" in line
