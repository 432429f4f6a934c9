"""Clocks that are wrong, at real brokers: what is old by the clock alone is not deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq_broker.backup.check import check_directory
from minimq_broker.commit.store import StoreOptions
from minimq_broker.log.clock import now_ms
from minimq_broker.state.facts import Topic, TopicSet
from support.command import Minimq
from support.kernel_stores import Clock
from support.reading import read_all
from support.scraping import Scrape, metrics_address
from support.stores import OpenStore
from support.waiting import wait_until

TEN_DAYS_MS = 10 * 24 * 3600 * 1000
SEGMENT = 1 << 16


@pytest.fixture
def ten_days_old(tmp_path: Path) -> Path:
    """The data of a broker that stopped ten days ago, if the clock of this machine is right."""
    path = tmp_path / "data" / "broker-a"
    store = OpenStore(path, StoreOptions(SEGMENT), Clock(now_ms() - TEN_DAYS_MS))
    store.record(lambda state: TopicSet(Topic("t", state.position, 1, 1)))
    for _ in range(12):
        store.append("t", 0, bytes(20_000))
    store.close()
    return path


def test_messages_that_are_too_old_by_the_clock_alone_stay(ten_days_old: Path) -> None:
    options = {"upkeep_interval_s": 0.05, "segment_bytes": SEGMENT, "metrics": "127.0.0.1:0", "log_format": "json"}

    with LocalCluster(brokers=1, data_dir=ten_days_old.parent, broker_options=options) as cluster:
        broker = cluster.brokers[0]
        wait_until(lambda: "clock: jumped ahead" in broker.log_path.read_text(), 20.0, what="a complaint")
        seen = Scrape(metrics_address(broker.log_path))
        assert seen.value("minimq_broker_segments") > 3
        assert seen.value("minimq_broker_clock_ahead_seconds") == pytest.approx(TEN_DAYS_MS / 1000, abs=3600)
        assert seen.value("minimq_broker_segments_deleted_total") == 0
        assert "has jumped ahead by" in Minimq(cluster.nameserver)("cluster", "status")
    assert check_directory(ten_days_old).findings == []


def test_messages_with_times_in_the_future_are_told_of_and_new_queues_have_right_times(tmp_path: Path) -> None:
    path = tmp_path / "data" / "broker-a"
    store = OpenStore(path, StoreOptions(SEGMENT), Clock(now_ms() + 40 * TEN_DAYS_MS))
    store.record(lambda state: TopicSet(Topic("t", state.position, 1, 1)))
    store.append("t", 0, b"by a clock that is ahead")
    store.close()
    options = {"upkeep_interval_s": 0.05, "metrics": "127.0.0.1:0", "log_format": "json"}
    with (
        LocalCluster(brokers=1, data_dir=path.parent, broker_options=options) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver) as producer,
    ):
        [broker] = cluster.brokers
        wait_until(lambda: "the newest message is ahead" in broker.log_path.read_text(), 20.0, what="a warning")
        ahead_s = Scrape(metrics_address(broker.log_path)).value("minimq_broker_stamps_ahead_seconds")
        assert ahead_s == pytest.approx(40 * TEN_DAYS_MS / 1000, abs=3600)
        [status] = admin.broker_status()
        assert status.report is not None
        assert status.report.stamps_ahead_s == pytest.approx(ahead_s, abs=60)
        assert "stamped up to" in Minimq(cluster.nameserver)("cluster", "status")
        producer.send(Message("t", b"late"))
        admin.create_topic("new", queues=1)
        producer.send(Message("new", b"right"))
        times = {name: read_all(cluster.nameserver, name)[-1].stored_at.timestamp() for name in ("t", "new")}
    assert times["t"] - times["new"] == pytest.approx(ahead_s, abs=3600)


def test_delayed_messages_are_accepted_and_arrive_after_the_clock_went_back(tmp_path: Path) -> None:
    path = tmp_path / "data" / "broker-a"
    store = OpenStore(path, StoreOptions(SEGMENT), Clock(now_ms() + TEN_DAYS_MS))
    store.record(lambda state: TopicSet(Topic("t", state.position, 1, 1)))
    store.delay("t", 0, store.clock.now_ms + 1, b"by a clock that is ahead")
    store.clock.now_ms += 1
    store.publish_due()
    store.close()
    with (
        LocalCluster(brokers=1, data_dir=path.parent) as cluster,
        Producer(cluster.nameserver, send_timeout_s=20.0) as producer,
    ):
        later = producer.send(Message("t", b"later", deliver_after_s=3_600.0))
        assert later.due_at is not None
        assert later.due_at < datetime.now(UTC) + timedelta(hours=1, minutes=1)
        soon = producer.send(Message("t", b"soon", deliver_after_s=0.2))
        assert soon.due_at is not None
        wait_until(lambda: len(read_all(cluster.nameserver, "t")) == 2, 20.0, what="the message that is due soon")
        assert datetime.now(UTC) >= soon.due_at
        assert [message.body for message in read_all(cluster.nameserver, "t")] == [b"by a clock that is ahead", b"soon"]
    assert check_directory(path).findings == []
