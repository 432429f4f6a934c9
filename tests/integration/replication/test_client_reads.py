"""Readers go on at a slave while there is no master, and where a master sends them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, MessageQueue, OffsetReset, PullConsumer, ReceivedMessage
from minimq.consuming.range_reader import RangeReader
from minimq_common.errors import NotMaster, Unavailable
from support.client_replicas import bring_back, ends, leave_slaves_alone, messages_out, send
from support.command import Minimq
from support.detour import lead
from support.relay import Relay
from support.replicas import TIMEOUT_S, queues, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until


class Reader:
    """Notes what a consumer reads, and that each queue is read in its order without a gap."""

    def __init__(self, consumer: PullConsumer) -> None:
        self.consumer = consumer
        self.messages: list[ReceivedMessage] = []
        self._next: dict[MessageQueue, int] = {}

    def read(self, count: int) -> None:
        """Return when so many messages have been read in all."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.messages) < count:
            assert time.monotonic() < deadline, f"{len(self.messages)} of {count} messages were read"
            self.poll()

    def poll(self) -> bool:
        messages = self.consumer.poll(0.1, max_messages=10)
        for message in messages:
            assert message.queue_offset == self._next.get(message.queue, 0), message
            self._next[message.queue] = message.queue_offset + 1
        self.messages += messages
        return bool(messages)


@contextmanager
def group_reader(nameserver: str, group: str = "g", **options: Any) -> Iterator[Reader]:
    """The only member of a group."""
    with PullConsumer(nameserver, group=group, start="earliest", prefetch_bytes=1000, **options) as consumer:
        consumer.subscribe("t")
        yield Reader(consumer)


@contextmanager
def lone_reader(nameserver: str, wanted: list[MessageQueue], **options: Any) -> Iterator[Reader]:
    """A consumer that has assigned its queues by hand."""
    with PullConsumer(nameserver, group="lone", start="earliest", prefetch_bytes=1000, **options) as consumer:
        consumer.assign(wanted)
        yield Reader(consumer)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_reader_goes_on_at_a_slave_and_returns_to_the_master(tmp_path: Path) -> None:
    with replicas(tmp_path, nameservers=2) as cluster:
        send(cluster, 300)
        wait_caught_up(cluster)
        with lone_reader(cluster.nameserver, queues(cluster)) as reader:
            reader.read(100)
            leave_slaves_alone(cluster)
            reader.read(200)
            leader = bring_back(cluster)
            reader.read(300)
            handed_out = messages_out(leader)
            send(cluster, 50)
            reader.read(350)
            wait_until(lambda: messages_out(leader) >= handed_out + 50, TIMEOUT_S, what="the master is read again")
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_what_is_stored_can_be_looked_up_and_not_changed_while_there_is_no_master(tmp_path: Path) -> None:
    with (
        replicas(tmp_path, nameservers=2) as cluster,
        Admin(cluster.nameserver, timeout_s=TIMEOUT_S) as admin,
        Admin(cluster.nameserver, timeout_s=2.0) as hasty,
    ):
        send(cluster, 100)
        wait_caught_up(cluster)
        stored = ends(cluster)
        before = admin.describe_topic("t")
        leave_slaves_alone(cluster)
        wait_until(lambda: admin.cluster()[0].master is None, TIMEOUT_S)

        with closing(RangeReader(cluster.nameserver)) as ranges:
            for queue, end in stored.items():
                assert ranges.bounds(queue) == (0, end)
                batches = list(ranges.read(queue, 0, end))
                assert batches[-1].end_offset == end
        assert admin.describe_topic("t") == before
        queue = min(stored)
        assert admin.offset_at(queue, datetime(2000, 1, 1, tzinfo=UTC)) == 0
        assert admin.committed_offsets("g") == {}
        for change in (
            lambda: hasty.create_topic("other"),
            lambda: hasty.update_topic("t", write_queues=1),
            lambda: hasty.delete_topic("t"),
            lambda: hasty.reset_offset("g", "t"),
        ):
            with pytest.raises(Unavailable, match=r"broker-a.* has no master now: wait .*, start the others"):
                change()
        rows = Minimq(cluster.nameserver).json("cluster", "status")
        assert [(row["role"], row["problem"].partition(";")[0]) for row in rows] == [("slave", "follows no master")]


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_readers_go_on_though_no_name_server_says_that_the_master_is_gone(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster:
        send(cluster, 300)
        wait_caught_up(cluster)
        with lone_reader(cluster.nameserver, queues(cluster)) as reader:
            reader.read(50)
            leave_slaves_alone(cluster)
            reader.read(300)
            bring_back(cluster)
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_reader_that_is_cut_off_from_the_master_reads_a_slave_until_the_line_is_mended(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster:
        master, slave = cluster.brokers
        wanted = queues(cluster)
        with (
            Relay(master.address) as relay,
            PullConsumer(cluster.nameserver, group="lone", start="earliest") as consumer,
        ):
            lead(consumer, {master.address: relay.address})
            consumer.assign(wanted)
            reader = Reader(consumer)
            send(cluster, 10)
            reader.read(10)
            relay.cut(for_good=True)
            send(cluster, 10)
            reader.read(20)
            assert messages_out(slave) == 10
            relay.mend()

            def is_back() -> bool:
                before = messages_out(slave)
                send(cluster, 10)
                reader.read(len(reader.messages) + 10)
                return messages_out(slave) == before

            wait_until(is_back, TIMEOUT_S, what="the master is read again")
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_group_that_has_read_what_is_lost_goes_on_at_the_end(tmp_path: Path) -> None:
    """An asynchronous master shows what it alone has; when that is taken back, the group is told."""
    with replicas(tmp_path, replica_lag_s=60.0) as cluster:
        master, slave = cluster.brokers
        send(cluster, 20)
        wait_in_sync(cluster, master, slave)  # only then it may be elected
        wait_caught_up(cluster)
        resets: list[OffsetReset] = []
        with group_reader(cluster.nameserver, on_offset_reset=resets.append) as member:
            member.read(20)
            slave.pause()
            send(cluster, 400, size=40_000)  # more than fits into what lies between the two
            member.read(420)
            member.consumer.commit()
            master.kill()
            slave.resume()
            assert wait_for_master(cluster, master) is slave
            while {reset.queue for reset in resets} != set(queues(cluster)):
                member.consumer.poll(0.1)
            assert all(reset.is_back for reset in resets), resets
        master.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_reader_waits_at_a_slave_for_what_that_does_not_have(tmp_path: Path) -> None:
    with replicas(tmp_path, nameservers=2, replica_lag_s=60.0) as cluster:
        _, slave = cluster.brokers
        send(cluster, 20)
        wait_caught_up(cluster)
        wanted = queues(cluster)
        resets: list[OffsetReset] = []
        with (
            suppress(NotMaster),  # of the last commit
            lone_reader(
                cluster.nameserver, wanted, on_offset_reset=resets.append, commit_interval_s=0.2, request_timeout_s=1.0
            ) as reader,
        ):
            slave.pause()
            send(cluster, 400, size=40_000)  # more than fits into what lies between the two
            reader.read(420)
            leave_slaves_alone(cluster)
            slave.resume()
            for _ in range(20):
                reader.poll()
            assert resets == []
            assert len(reader.messages) == 420
            with pytest.raises(NotMaster, match="beyond what this slave has"):
                reader.consumer.commit()
        bring_back(cluster)
        wait_caught_up(cluster)
