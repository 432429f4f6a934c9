"""Topics that keep their messages for another time than the broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq.admin.operation import operations_of
from minimq_common.errors import InvalidArgument
from support.waiting import wait_until

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    options = {"upkeep_interval_s": 0.02, "segment_bytes": 1 << 16}
    with LocalCluster(brokers=1, broker_options=options) as cluster:
        yield cluster


def test_messages_go_by_the_rules_of_their_topic(cluster: LocalCluster) -> None:
    with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
        admin.create_topic("short", queues=1, retention_s=0.2)
        admin.create_topic("few", queues=1, retention_bytes=30_000)
        admin.create_topic("others", queues=1)
        admin.reset_offset("late", "few")
        for number in range(30):
            for topic in ("short", "few", "others"):
                producer.send(Message(topic, b"%d" % number + bytes(4_000)))

        def bounds(topic: str) -> tuple[int, int]:
            [queue] = admin.describe_topic(topic).queues
            return queue.min_offset, queue.max_offset

        wait_until(lambda: bounds("short") == (30, 30), TIMEOUT_S, what="all of the short topic is gone")
        wait_until(lambda: 0 < bounds("few")[0] < 30, TIMEOUT_S, what="some of the small topic is gone")
        assert bounds("others") == (0, 30)
        [settings] = admin.describe_topic("short").settings
        assert (settings.retention_s, settings.retention_bytes) == (0.2, 0)
        [reset] = [each for each in operations_of(Admin) if each.name == "group reset-offset"]
        plan = reset.planned(admin, reset.given(group="late", topic="few", to="earliest"))
        assert plan is not None
        assert plan.is_harmless, "what was deleted is not skipped by the reset"
        queue = MessageQueue("few", "broker-a", 0)
        with PullConsumer(cluster.nameserver, group="g", offset_reset="earliest") as consumer:
            consumer.assign([queue])
            offsets: list[int] = []
            while not offsets or offsets[-1] < 29:
                offsets += [message.queue_offset for message in consumer.poll(TIMEOUT_S)]
        assert offsets == list(range(bounds("few")[0], 30))
        admin.update_topic("short", retention_s=0)
        [settings] = admin.describe_topic("short").settings
        assert settings.retention_s == 0
        producer.send(Message("short", b"stays"))


def test_what_is_over_age_is_hidden_while_its_segment_is_written_to(tmp_path: Path) -> None:
    """Messages that trickle in keep a segment young: the older ones in it are not shown all the same."""
    options = {"retention_s": 2.0, "upkeep_interval_s": 0.05}
    with (
        LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver) as producer,
    ):
        admin.create_topic("t", queues=1)

        def has_gone() -> bool:
            producer.send(Message("t", b"x"))
            [queue] = admin.describe_topic("t").queues
            return 0 < queue.min_offset < queue.max_offset

        wait_until(has_gone, TIMEOUT_S)
        [status] = admin.broker_status()
        assert status.report is not None
        assert (status.report.segments, status.report.segments_deleted) == (1, 0)


def test_rules_that_no_topic_can_have(cluster: LocalCluster) -> None:
    with Admin(cluster.nameserver) as admin:
        for wrong in (-1, 0.0001, 200 * 366 * 86400, "7d", True):
            with pytest.raises(InvalidArgument, match="retention_s"):
                admin.create_topic("t", retention_s=wrong)  # type: ignore[arg-type]
        for size in (-1, 1.5, 1 << 63):
            with pytest.raises(InvalidArgument, match="retention_bytes"):
                admin.create_topic("t", retention_bytes=size)  # type: ignore[arg-type]
        admin.create_topic("t")
        with pytest.raises(InvalidArgument, match="nothing to change"):
            admin.update_topic("t")
