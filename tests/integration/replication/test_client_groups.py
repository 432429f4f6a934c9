"""Members of a group go on at a slave while there is no master, and return: nothing twice, nothing left out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, MiniMQError, Producer, PullConsumer
from minimq.local.broker_process import BrokerProcess
from minimq_proto.v1 import broker_pb2
from support.members import Log
from support.raw_member import RawMember
from support.replicas import PATIENCE_S, queues, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until


class Members:
    """Two members that read as much as they are told to, and commit what they have read at once."""

    def __init__(self, nameserver: str) -> None:
        self.log = Log()
        self.errors: list[MiniMQError] = []
        self._allowed = 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(nameserver,)) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def read(self, count: int) -> None:
        """Return when so many messages have been read in all; only little more is read by itself."""
        self._allowed = count
        wait_until(
            lambda: len(self.log) >= count or self.errors, PATIENCE_S, what=f"{count} messages; read: {len(self.log)}"
        )
        assert self.errors == []

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, nameserver: str) -> None:
        try:
            with PullConsumer(
                nameserver,
                group="g",
                auto_commit=False,
                start="earliest",
                prefetch_messages=20,
                request_timeout_s=PATIENCE_S,
            ) as consumer:
                consumer.subscribe("t")
                while not self._ended.is_set():
                    if len(self.log) >= self._allowed:
                        self._ended.wait(0.02)
                        continue
                    messages = consumer.poll(0.1, max_messages=10)
                    for message in messages:
                        self.log.add(message.queue, message.queue_offset)
                    if messages:
                        consumer.commit()
        except MiniMQError as error:
            self.errors.append(error)


@contextmanager
def members(cluster: LocalCluster) -> Iterator[Members]:
    """Two members of the group "g" beside the block."""
    group = Members(cluster.nameserver)
    try:
        yield group
    finally:
        group.end()


def send(cluster: LocalCluster, count: int) -> None:
    """Send messages evenly to the two queues, in batches of about ten."""
    with Producer(cluster.nameserver, batch_messages=10, send_timeout_s=PATIENCE_S) as producer:
        futures = [producer.send_async(Message("t", b"%d" % number)) for number in range(count)]
        for future in futures:
            future.result(PATIENCE_S)


def ends(cluster: LocalCluster) -> dict[MessageQueue, int]:
    with Admin(cluster.nameserver) as admin:
        return {item.queue: item.max_offset for item in admin.describe_topic("t").queues}


def committed(broker: BrokerProcess) -> dict[int, int]:
    """Return what the group has committed as a broker has it, by queue id."""
    with RawMember(broker.address, "looks") as member:
        answer = member.call("GetCommitted", broker_pb2.GetCommittedRequest(group="g"))
        return {item.queue_id: item.offset for item in answer.offsets}


def members_at(broker: BrokerProcess) -> int:
    """Return how many members of the group have a session with a broker."""
    with RawMember(broker.address, "looks") as member:
        return len(member.call("DescribeGroup", broker_pb2.DescribeGroupRequest(group="g")).client_ids)


def check_all_read_once(group: Members, stored: dict[MessageQueue, int]) -> None:
    assert group.errors == []
    assert group.log.repeated == {}
    assert group.log.missing({(queue, offset) for queue, end in stored.items() for offset in range(end)}) == set()


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_group_reads_and_commits_at_a_slave_until_the_master_is_back(tmp_path: Path) -> None:
    with replicas(tmp_path, nameservers=2) as cluster:
        master, slave = cluster.brokers
        controller = cluster.nameservers[0]
        send(cluster, 400)
        wait_caught_up(cluster)
        with members(cluster) as group:
            group.read(100)
            controller.kill()  # nobody can be elected
            master.kill()
            group.read(250)
            at_slave = wait_until(lambda: committed(slave), PATIENCE_S)
            assert sum(at_slave.values()) > 200
            assert members_at(slave) == 2

            master.launch()
            controller.launch()
            controller.wait_ready()
            master.wait_ready()
            leader = wait_for_master(cluster)
            wait_in_sync(cluster, master, slave)
            wait_until(lambda: members_at(leader) == 2, PATIENCE_S, what="both members are back at the master")
            back = committed(leader)
            assert all(back[queue_id] >= offset for queue_id, offset in at_slave.items()), (back, at_slave)
            send(cluster, 50)
            group.read(450)
            stored = ends(cluster)
            wait_until(
                lambda: committed(leader) == {queue.queue_id: end for queue, end in stored.items()},
                PATIENCE_S,
                what="all is committed",
            )
        check_all_read_once(group, stored)
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_group_goes_on_at_the_new_master(tmp_path: Path) -> None:
    with replicas(tmp_path, slaves=2, role="sync-master") as cluster:
        master = wait_for_master(cluster)
        send(cluster, 300)
        with members(cluster) as group:
            group.read(100)
            master.kill()
            successor = wait_for_master(cluster, master)
            send(cluster, 50)
            group.read(350)
            wait_until(lambda: members_at(successor) == 2, PATIENCE_S, what="both members are at the new master")
            check_all_read_once(group, ends(cluster))
        master.start()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)
        assert queues(cluster)
