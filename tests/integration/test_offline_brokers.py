"""One of two brokers is offline: every tool says so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq_common.errors import InvalidArgument, TopicUnavailable
from minimq_common.model import Permission
from support.command import Minimq, environment
from support.waiting import wait_until

ON_EACH = 100


@pytest.fixture(scope="module")
def half() -> Iterator[LocalCluster]:
    """Two brokers with topic orders, of which broker-a was killed, and a group that has read two messages."""
    with LocalCluster(brokers=2) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("orders", queues=4)
        admin.create_topic("bills", queues=2, brokers=["broker-a"])
        with Producer(cluster.nameserver) as producer:
            queues = admin.route("orders").write_queues()
            for queue in queues:
                producer.send_many([Message("orders", b"x")] * (ON_EACH // 4), queue=queue)
        with PullConsumer(cluster.nameserver, group="billing", auto_commit=False) as consumer:
            consumer.subscribe("orders")
            committed: set[str] = set()
            while committed != {"broker-a", "broker-b"}:
                committed |= {message.queue.broker_name for message in consumer.poll(1.0, 1)}
                consumer.commit()
        admin.create_topic("%DLQ%g", queues=1)
        with Producer(cluster.nameserver) as producer:
            for queue in admin.route("%DLQ%g").write_queues():
                producer.send(Message("%DLQ%g", b"dead", properties={"RETRY_TOPIC": "orders"}), queue=queue)
        cluster.brokers[0].kill()
        wait_until(lambda: [offline.broker_name for offline in admin.offline_brokers()] == ["broker-a"])
        yield cluster


@pytest.fixture
def minimq(half: LocalCluster) -> Minimq:
    return Minimq(half.nameserver)


@pytest.fixture
def admin(half: LocalCluster) -> Iterator[Admin]:
    with Admin(half.nameserver) as opened:
        yield opened


def stderr_of(cluster: LocalCluster, *arguments: str, status: int = 0) -> tuple[str, str]:
    with Minimq(cluster.nameserver).running(*arguments) as command:
        written, told = command.communicate(timeout=60)
    assert command.returncode == status, told
    return written.decode(), told.decode()


def test_admin_says_which_brokers_are_offline(admin: Admin) -> None:
    [offline] = admin.offline_brokers()
    assert (offline.broker_name, offline.stopped, offline.queues) == ("broker-a", False, 7)
    assert timedelta(0) <= datetime.now(UTC) - offline.since < timedelta(minutes=5)

    described = admin.describe_topic("orders")
    assert described.messages == ON_EACH
    assert [(each.broker_name, each.queues) for each in described.offline] == [("broker-a", 4)]
    assert [(each.broker_name, each.queues) for each in admin.route("orders").offline] == [("broker-a", 4)]
    assert [(each.broker_name, each.queues) for each in admin.describe_group("billing").offline] == [("broker-a", 4)]
    assert [each.offline for each in admin.describe_groups() if each.group == "billing"] == [described.offline]
    with pytest.raises(TopicUnavailable, match=r"bills .* broker-a is offline since"):
        admin.describe_topic("bills")
    assert admin.list_topics() == ["%DLQ%g", "bills", "orders"]
    states = {status.broker_name: status for status in admin.broker_status()}
    assert states["broker-a"].offline_since == offline.since
    assert states["broker-b"].offline_since is None


@pytest.mark.fault
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("topic", "describe", "orders"), r"broker-a: offline since \d\d:\d\d:\d\d, 4 queues not counted\n"),
        (("topic", "list"), r"broker-a: offline since \d\d:\d\d:\d\d, 6 queues not counted\n"),
        (("route", "orders"), r"broker-a: offline since \d\d:\d\d:\d\d, 4 queues not in the route\n"),
        (("group", "describe", "billing"), r"broker-a: offline since \d\d:\d\d:\d\d, 4 queues not counted\n"),
        (("group", "list"), r"broker-a: offline since \d\d:\d\d:\d\d, its queues are not counted\n"),
    ],
)
def test_commands_say_which_queues_are_out_of_sight(
    half: LocalCluster, minimq: Minimq, command: tuple[str, ...], said: str
) -> None:
    _, told = stderr_of(half, *command)
    assert re.fullmatch(said, told)
    assert '"stopped": false' in minimq(*command, "--output", "json")


@pytest.mark.fault
def test_exit_at_end_fails_after_it_has_written_what_is_there(half: LocalCluster) -> None:
    written, told = stderr_of(half, "consume", "orders", "--group", "half", "--exit-at-end", status=1)
    assert written == "x\n" * ON_EACH
    assert re.fullmatch(r"broker-a: offline since \d\d:\d\d:\d\d, 4 queues not read\n", told)


@pytest.mark.fault
def test_a_consumer_logs_at_its_start_which_broker_is_offline(
    half: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with PullConsumer(half.nameserver, group="logged") as consumer:
        consumer.subscribe("orders")
        while not consumer.poll(1.0):
            pass
    [warning] = [record.getMessage() for record in caplog.records if "broker offline" in record.getMessage()]
    assert re.search(r"group=logged topic=orders state=broker-a: offline since .* 4 queues not read until", warning)


@pytest.mark.parametrize(
    "way", ["stop", pytest.param("pause", marks=pytest.mark.fault), pytest.param("kill", marks=pytest.mark.long)]
)
def test_exit_at_end_waits_only_so_long_for_a_broker_that_goes_offline_meanwhile(way: str) -> None:
    body = b"x" * 500
    with LocalCluster(brokers=2) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("orders", queues=1)
        with Producer(cluster.nameserver) as producer:
            for queue in admin.route("orders").write_queues():
                producer.send_many([Message("orders", body)] * 40_000, queue=queue)  # more than is read ahead
        arguments = ("consume", "orders", "--group", "g", "--exit-at-end", "--wait-for-brokers", "1")
        with Minimq(cluster.nameserver).running(*arguments) as consuming:
            assert consuming.stdout is not None
            assert consuming.stdout.readline() == body + b"\n"  # the pipe is full, and more is to come
            getattr(cluster.server("broker-b"), way)()
            written, told = consuming.communicate(timeout=100)
        assert consuming.returncode == 1
        assert 40_000 <= written.count(b"\n") + 1 < 80_000
        assert "broker-b: 1 queue not read to the end" in told.decode().splitlines()


@pytest.mark.parametrize(
    "leave",
    [
        lambda cluster, _admin: cluster.brokers[0].stop(),
        lambda _cluster, admin: admin.update_topic("orders", permission=Permission.WRITE),
    ],
    ids=["stopped", "not to be read"],
)
def test_exit_at_end_waits_only_so_long_for_the_only_broker(leave: Callable[[LocalCluster, Admin], object]) -> None:
    with LocalCluster(brokers=1) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("orders", queues=1)
        with Producer(cluster.nameserver) as producer:
            producer.send_many([Message("orders", b"x" * 500)] * 40_000)  # more than is read ahead
        arguments = ("consume", "orders", "--group", "g", "--exit-at-end", "--wait-for-brokers", "1")
        with Minimq(cluster.nameserver).running(*arguments) as consuming:
            assert consuming.stdout is not None
            consuming.stdout.readline()  # the pipe is full, and more is to come
            leave(cluster, admin)
            told = consuming.communicate(timeout=100)[1].decode()
        assert consuming.returncode == 1
        assert "broker-a: 1 queue not read to the end" in told.splitlines()


@pytest.mark.fault
def test_a_broker_that_comes_back_with_an_empty_disk_is_offline_for_what_it_lacks(tmp_path: Path) -> None:
    with LocalCluster(brokers=2) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("orders", queues=4)
        lost = cluster.server("broker-b")
        lost.kill()
        flags = ["--name=broker-b", f"--data-dir={tmp_path}", f"--nameserver={cluster.nameserver}"]
        command = [sys.executable, "-m", "minimq_broker", *flags, f"--listen={lost.address}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as empty:
            try:
                wait_until(lambda: len(admin.cluster()) == 2, 20)
                for arguments in (("topic", "describe", "orders"), ("topic", "list")):
                    _, told = stderr_of(cluster, *arguments)
                    assert re.fullmatch(r"broker-b: online without topics that it had, 4 queues not counted\n", told)
                states = [row["state"] for row in Minimq(cluster.nameserver).json("cluster", "status")]
                assert sorted(state[:5] for state in states) == ["onlin", "up", "up"]
                assert admin.delete_broker("broker-b")
                assert stderr_of(cluster, "topic", "describe", "orders")[1] == ""
            finally:
                empty.terminate()


def test_a_broker_that_will_not_come_back_is_forgotten() -> None:
    with LocalCluster(brokers=2) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("orders", queues=4)
        minimq = Minimq(cluster.nameserver)
        with pytest.raises(InvalidArgument, match="broker-a is registered: stop it"):
            admin.delete_broker("broker-a")
        cluster.brokers[0].stop()
        assert [(offline.broker_name, offline.stopped) for offline in admin.offline_brokers()] == [("broker-a", True)]
        minimq("cluster", "delete-broker", "broker-a")
        rejected = minimq("cluster", "delete-broker", "broker-a", status=1)
        assert rejected.startswith(
            "error: no name server remembers a broker broker-a as offline: `minimq cluster status`"
        )
        assert admin.offline_brokers() == []
        line = r"administration: broker forgotten name=broker-a old='offline' new='-' caller=[\d.:]+ client=- user=-\n"
        assert len(re.findall(line, cluster.nameservers[0].log_path.read_text())) == 1
        assert stderr_of(cluster, "consume", "orders", "--group", "half", "--exit-at-end") == ("", "")


# ---- Two brokers of one name: what the operator sees of it --------------------------------------


def test_the_command_line_names_a_broker_that_found_its_place_taken(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path / "cluster") as cluster:
        minimq = Minimq(cluster.nameserver)
        flags = ["--listen", "127.0.0.1:0", "--nameserver", cluster.nameserver, "--data-dir", str(tmp_path / "second")]
        second = subprocess.Popen(
            [sys.executable, "-m", "minimq_broker", *flags], env=environment(), stderr=subprocess.DEVNULL
        )
        with second:
            try:
                with Admin(cluster.nameserver) as admin:
                    wait_until(admin.conflicts, 30.0)
                    [conflict] = admin.conflicts()
                    assert (conflict.broker_name, conflict.broker_id) == ("broker-a", 0)
                    assert conflict.holder_address == cluster.brokers[0].address
                    assert "give one of them another --name" in conflict.reason
                    assert "is rejected: broker-a (id 0)" in minimq("cluster", "status", status=1)
                    # The broker that holds the place serves as before.
                    assert [broker.master for broker in admin.cluster()] == [cluster.brokers[0].address]
            finally:
                second.terminate()
