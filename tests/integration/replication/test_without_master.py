"""A slave while there is no master, and the return to a new one."""

from __future__ import annotations

import contextlib
import queue
from pathlib import Path

import pytest

from minimq import LocalCluster
from minimq.local.server_process import BrokerProcess
from minimq_common.errors import NotMaster
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import broker_pb2
from support.kernel_stores import make_batch
from support.raw_member import RawMember
from support.raw_sender import RawSender
from support.replicas import TIMEOUT_S, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until


def send(broker: BrokerProcess, count: int) -> None:
    with RawSender(broker.address) as sender:
        for result in sender.send("t", [(0, make_batch([b"%d" % number])) for number in range(count)]):
            assert not result.failure.code, from_failure(result.failure)


def granted(broker: BrokerProcess, group: str) -> broker_pb2.QueueGranted | None:
    """Return what a new member of a group is granted; None while the broker does not serve groups."""
    with RawMember(broker.address, "member") as member:
        member.join(group, "t", start=broker_pb2.StartPosition(at=broker_pb2.START_AT_EARLIEST))
        member.ask(group, "t", 0)
        grant = wait_until(lambda: _grant(member) or not member.ended.empty(), TIMEOUT_S, what="an answer")
        if isinstance(grant, bool):
            return None
        member.commit(group, "t", 0, grant.offset + 2, grant.epoch)
        member.leave(group)
        return grant


def _grant(member: RawMember) -> broker_pb2.QueueGranted | None:
    with contextlib.suppress(queue.Empty):
        event = member.events.get_nowait()
        return event.granted if event.WhichOneof("event") == "granted" else None
    return None


def committed(broker: BrokerProcess, group: str) -> list[int]:
    with RawMember(broker.address, "looks") as member:
        answer = member.call("GetCommitted", broker_pb2.GetCommittedRequest(group=group))
        return [item.offset for item in answer.offsets if item.queue_id == 0]


def lonely_slave(cluster: LocalCluster) -> tuple[BrokerProcess, BrokerProcess]:
    """Leave a slave alone that is not in sync, so that it is not elected. Returns the master and the slave."""
    master, slave = cluster.brokers
    wait_caught_up(cluster)
    slave.stop()  # which saves what it knows to be confirmed
    wait_in_sync(cluster, master)
    master.kill()
    slave.start()
    return master, slave


def test_a_slave_lets_everybody_read_and_nobody_join_while_there_is_a_master(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master") as cluster:
        master, slave = cluster.brokers
        send(master, 10)
        wait_caught_up(cluster)

        def readable() -> int:
            with RawMember(slave.address, "reader") as reader:
                return sum(batch.count for frame in reader.pull("t", 0, wait_ms=0) for batch in frame.batches)

        wait_until(lambda: readable() == 10, TIMEOUT_S, what="the slave knows what is confirmed")
        with RawMember(slave.address, "member") as member:
            member.join("g", "t")
            error = member.ended.get(timeout=TIMEOUT_S)
            assert isinstance(error, NotMaster), error


@pytest.mark.timeout(90)
def test_groups_wait_while_there_is_no_master_and_go_on_where_they_were(tmp_path: Path) -> None:
    with replicas(tmp_path, upkeep_interval_s=0.1, session_grace_s=0.2) as cluster:
        master, slave = cluster.brokers
        send(master, 10)
        first = granted(master, "g")
        assert first is not None
        lonely_slave(cluster)
        assert granted(slave, "g") is None
        assert committed(slave, "g") == [2]
        master.start()
        wait_for_master(cluster)
        wait_in_sync(cluster, master, slave)
        back = granted(master, "g")
        assert back is not None
        assert back.offset == 2
        assert back.epoch > first.epoch
        wait_caught_up(cluster)
