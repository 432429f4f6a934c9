"""The metrics of both servers: what a scrape says is what was done, and what the page about monitoring lists."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from minimq import Admin, LocalCluster, Message, Permission, Producer, PullConsumer
from minimq_common.serving.metrics import MAX_CONNECTIONS, Collect, MetricsServer, gauge
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2, nameserver_pb2, nameserver_pb2_grpc
from support.broker_link import BrokerLink
from support.loop_thread import LoopThread
from support.monitoring_files import named_metrics
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
SHOWN = {"metrics": "127.0.0.1:0", "log_format": "json"}
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def own() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, broker_options=SHOWN, nameserver_options=SHOWN) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def busy(own: LocalCluster) -> Iterator[LocalCluster]:
    """A cluster where 150 messages were sent, 100 of them read, and one batch rejected; the reader is still there."""
    with Admin(own.nameserver) as admin, Producer(own.nameserver) as producer:
        admin.create_topic("orders", queues=2)
        with PullConsumer(own.nameserver, group="readers", auto_commit=False) as consumer:
            consumer.subscribe("orders")
            producer.send_many(Message("orders", b"x" * 50) for _ in range(100))
            read = 0
            while read < 100:
                read += len(consumer.poll(TIMEOUT_S))
            consumer.commit()
            producer.send_many(Message("orders", b"x" * 50) for _ in range(50))
            reject_a_batch(own)
            look_up(own, "orders", "nowhere")
            yield own


def reject_a_batch(own: LocalCluster) -> None:
    link = BrokerLink(own.brokers[0].address)
    request = broker_pb2.AppendRequest(appends=[broker_pb2.Append(request_id=1, topic="orders", batch=b"nonsense")])
    [answer] = link.stub.Append(iter([request]), timeout=TIMEOUT_S)
    assert answer.results[0].failure.code == "CORRUPT_BATCH"
    link.close()


def look_up(own: LocalCluster, *topics: str) -> None:
    with rpc.open_channel(own.nameserver) as channel:
        stub = nameserver_pb2_grpc.NameServerStub(channel)
        for topic in topics:
            with contextlib.suppress(grpc.RpcError):
                stub.GetRoutes(nameserver_pb2.GetRoutesRequest(topic=topic), timeout=TIMEOUT_S)


def scrape_broker(own: LocalCluster) -> Scrape:
    return Scrape(metrics_address(own.brokers[0].log_path))


@pytest.mark.system
def test_a_broker_says_what_it_did(busy: LocalCluster) -> None:
    # The prefetch of the consumer may take a moment longer than the receipts of the producer.
    wait_until(lambda: scrape_broker(busy).value("minimq_broker_messages_out_total") == 150, TIMEOUT_S)
    seen = scrape_broker(busy)
    assert seen.value("minimq_broker_messages_in_total") == 150
    assert seen.value("minimq_broker_topic_messages", topic="orders") == 150
    assert seen.value("minimq_broker_topic_messages_in_total", topic="orders") == 150
    assert seen.value("minimq_broker_group_lag_messages", group="readers", topic="orders") == 50
    assert seen.value("minimq_broker_group_members", group="readers") == 1
    assert seen.series("minimq_broker_appends_rejected_total") == [({"reason": "CORRUPT_BATCH"}, 1)]
    assert seen.value("minimq_broker_commit_messages_sum") == 150
    assert 0 < seen.value("minimq_broker_commit_seconds_count") <= 150
    assert seen.value("minimq_broker_bytes_in_total") > 150 * 50
    assert seen.value("minimq_broker_bytes_out_total") >= seen.value("minimq_broker_bytes_in_total")
    assert seen.value("minimq_broker_append_seconds_count") >= 2
    assert seen.value("minimq_broker_streams", call="session") == 1
    assert seen.value("minimq_broker_streams", call="pull") == 1
    wait_until(lambda: scrape_broker(busy).value("minimq_broker_long_polls") == 2, TIMEOUT_S)
    assert seen.value("minimq_broker_pending_bytes") == 0
    assert seen.value("minimq_broker_store_failed") == 0
    assert (seen.value("minimq_broker_topics"), seen.value("minimq_broker_segments")) == (1, 1)
    assert seen.value("minimq_broker_log_bytes") > 150 * 50
    assert 0 < seen.value("minimq_broker_disk_used_ratio") < 1
    assert seen.value("minimq_broker_disk_free_bytes") > 0
    [(labels, _)] = seen.series("minimq_broker_info")
    assert (labels["broker"], labels["id"], labels["cluster"]) == ("broker-a", "0", "default")


@pytest.mark.system
def test_the_disk_is_shown_as_the_system_sees_it(busy: LocalCluster) -> None:
    def is_so() -> bool:
        before = shutil.disk_usage(busy.brokers[0].data_dir)
        seen = scrape_broker(busy)
        after = shutil.disk_usage(busy.brokers[0].data_dir)
        free, ratio = (seen.value(f"minimq_broker_disk_{name}") for name in ("free_bytes", "used_ratio"))
        used = sorted(usage.used / (usage.used + usage.free) for usage in (before, after))
        low, high = sorted((before.free, after.free))
        return low <= free <= high and used[0] <= ratio <= used[1]

    wait_until(is_so, TIMEOUT_S, what="a moment in which others use the disk in one direction only")


@pytest.mark.system
def test_files_of_the_log_are_counted_and_those_that_retention_deleted(tmp_path: Path) -> None:
    options = {**SHOWN, "segment_bytes": 1 << 16}

    def present() -> set[str]:
        return {path.name for path in (tmp_path / "broker-a" / "commitlog").glob("*.mdb")}

    def shown(cluster: LocalCluster, name: str) -> float:
        return scrape_broker(cluster).value(f"minimq_broker_{name}")

    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as all_kept:
        with Admin(all_kept.nameserver) as admin, Producer(all_kept.nameserver) as producer:
            admin.create_topic("t", queues=1)
            for _ in range(40):
                producer.send(Message("t", os.urandom(30_000)))
        ever = present()
        assert shown(all_kept, "segments") == len(ever)
        assert shown(all_kept, "segments_deleted_total") == 0
    options |= {"retention_bytes": 1 << 18, "upkeep_interval_s": 0.1}
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as trimmed:
        wait_until(lambda: shown(trimmed, "segments_deleted_total") == len(ever - present()) > 0, TIMEOUT_S)
        wait_until(lambda: shown(trimmed, "segments") == len(present()), TIMEOUT_S)  # it may go on for a moment
        assert len(present()) > 1


@pytest.mark.system
def test_a_name_server_says_what_it_did(busy: LocalCluster) -> None:
    seen = Scrape(metrics_address(busy.nameservers[0].log_path))
    assert seen.series("minimq_nameserver_brokers") == [({"cluster": "default"}, 1)]
    assert seen.value("minimq_nameserver_topics") == 1
    assert seen.value("minimq_nameserver_watchers") >= 1
    assert seen.value("minimq_nameserver_unsent_bytes") >= 0
    assert seen.value("minimq_nameserver_conflicts") == 0
    assert seen.value("minimq_nameserver_lookups_total") >= 2


@pytest.fixture(scope="module")
def replicated() -> Iterator[LocalCluster]:
    """A broker with a slave that has all that there is."""
    with LocalCluster(brokers=1, slaves=1, broker_options=SHOWN, nameserver_options=SHOWN) as cluster:
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            admin.create_topic("orders", queues=1)
            producer.send(Message("orders", b"x"))
        yield cluster


def scrape_roles(replicated: LocalCluster) -> dict[str, Scrape]:
    """Return what each broker shows, by its role."""
    seen = [Scrape(metrics_address(broker.log_path)) for broker in replicated.brokers]
    return {labels["role"]: each for each in seen for labels, value in each.series("minimq_broker_role") if value}


def caught_up(replicated: LocalCluster) -> bool:
    seen = scrape_roles(replicated)
    return (
        seen.keys() == {"master", "slave"}
        and seen["master"].value("minimq_broker_in_sync_replicas") == 2
        and seen["master"].value("minimq_broker_replica_lag_bytes", replica="1") == 0
        and seen["slave"].value("minimq_broker_master_lag_bytes") == 0
    )


@pytest.mark.system
def test_replicas_say_how_far_they_are(replicated: LocalCluster) -> None:
    wait_until(lambda: caught_up(replicated), TIMEOUT_S)
    master, slave = (scrape_roles(replicated)[role] for role in ("master", "slave"))
    assert master.value("minimq_broker_replica_lag_seconds", replica="1") < TIMEOUT_S
    assert master.value("minimq_broker_lease_seconds") > 0
    assert master.value("minimq_broker_min_in_sync_replicas") == 1
    assert master.value("minimq_broker_term") == slave.value("minimq_broker_term") >= 1
    assert sum(value for _, value in slave.series("minimq_broker_role")) == 1
    for one in (master, slave):
        assert one.value("minimq_broker_topic_messages", topic="orders") == 1


@pytest.mark.system
def test_a_controller_says_who_leads(replicated: LocalCluster) -> None:
    wait_until(lambda: caught_up(replicated), TIMEOUT_S)
    seen = Scrape(metrics_address(replicated.nameservers[0].log_path))
    name, controller = replicated.brokers[0].broker_name, "minimq_nameserver_controller"
    here = {"cluster": "default", "broker": name}
    assert 0 <= seen.value(f"{controller}_lease_age_seconds", **here) < TIMEOUT_S
    assert seen.value(f"{controller}_elections_total", **here) == 1


@pytest.mark.system
def test_the_page_lists_what_there_is(busy: LocalCluster, replicated: LocalCluster) -> None:
    wait_until(lambda: caught_up(replicated), TIMEOUT_S)
    there: dict[str, tuple[str, tuple[str, ...]]] = {}
    with Admin(busy.nameserver) as admin:
        link = BrokerLink(busy.brokers[0].address)
        dead = broker_pb2.Topic(topic="%DLQ%readers", read_queues=1, write_queues=1, permission=Permission.READ_WRITE)
        link.call(link.stub.CreateTopic, broker_pb2.CreateTopicRequest(topic=dead), TIMEOUT_S)
        link.close()
        for server in (*replicated.brokers, *replicated.nameservers, busy.brokers[0], busy.nameservers[0]):
            seen = Scrape(metrics_address(server.log_path))
            for name, family in seen.families.items():
                if name.startswith("minimq") and (family.samples or name not in there):
                    there[name] = (family.documentation, seen.labels(name))
        admin.delete_topic("%DLQ%readers")
    rows = re.findall(r"^\| `(minimq_\w+)` \| (.*?) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(there)
    listed = {name: (said, tuple(sorted(re.findall(r"`(\w+)`", labels)))) for name, labels, said in rows}
    # Without a series they do not show their labels.
    unseen = {
        "minimq_nameserver_brokers_offline",
        "minimq_broker_group_in_flight_messages",
        "minimq_broker_group_blocking_offset",
    }
    unseen |= {
        f"minimq_{role}_{what}_total" for role in ("broker", "nameserver") for what in ("unauthenticated", "denied")
    }
    for name in unseen:
        there[name] = (there[name][0], listed[name][1])
    assert listed == there


@pytest.mark.system
def test_rules_and_dashboards_ask_for_what_servers_show(busy: LocalCluster, replicated: LocalCluster) -> None:
    wait_until(lambda: caught_up(replicated), TIMEOUT_S)
    shown: set[str] = set()
    for server in (*replicated.brokers, *replicated.nameservers, busy.brokers[0]):
        for name, family in Scrape(metrics_address(server.log_path)).families.items():
            parts = ("_bucket", "_count", "_sum") if family.type == "histogram" else ("",)
            shown |= {f"{name}{part}" for part in parts}
    named = named_metrics()
    assert len(named) > 60
    assert not named - shown


def test_promtool_finds_nothing_wrong_with_the_metrics(busy: LocalCluster) -> None:
    for server in (busy.brokers[0], busy.nameservers[0]):
        text = Scrape(metrics_address(server.log_path)).text
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.0\r\nSlow: "], ids=["silent", "half a request"])
def test_connections_that_ask_nothing_take_neither_threads_nor_scrapes(said: bytes) -> None:
    with serving(lambda: [gauge("minimq_test_one", "One.", 1)]) as address, contextlib.ExitStack() as stack:
        before = threading.active_count()
        for _ in range(300):
            stack.enter_context(connected(address)).sendall(said)
        for _ in range(3):
            assert Scrape(address).value("minimq_test_one") == 1
            assert threading.active_count() <= before + MAX_CONNECTIONS


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


@contextlib.contextmanager
def serving(collect: Collect) -> Iterator[str]:
    """Show metrics, and yield where."""
    loop = LoopThread()
    server = MetricsServer(collect, "minimq_test")
    yield loop.run(server.start("127.0.0.1:0"))
    loop.run(server.stop())
    loop.close()
