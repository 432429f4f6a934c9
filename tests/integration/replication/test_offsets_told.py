"""A master tells only those committed offsets that the next master has as well."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from minimq.local.server_process import BrokerProcess
from minimq_common.errors import DeadlineExceeded, NotMaster
from minimq_proto.v1 import broker_pb2
from support.broker_link import BrokerLink
from support.kernel_stores import make_batch
from support.raw_sender import RawSender
from support.replicas import TIMEOUT_S, replicas, wait_caught_up, wait_in_sync
from support.waiting import wait_until


def send(broker: BrokerProcess, count: int) -> None:
    with RawSender(broker.address) as sender:
        assert not any(result.failure.code for result in sender.send("t", [(0, make_batch([b"x"] * count))]))


def told(link: BrokerLink, timeout_s: float = TIMEOUT_S) -> tuple[list[int], bool]:
    """Return the committed offsets, and whether they are said to be confirmed."""
    answer = link.call(link.stub.GetCommitted, broker_pb2.GetCommittedRequest(group="g", topic="t"), timeout_s)
    return [item.offset for item in answer.offsets], answer.confirmed


def committed(link: BrokerLink, timeout_s: float = TIMEOUT_S) -> list[int]:
    offsets, confirmed = told(link, timeout_s)
    assert confirmed
    return offsets


def commit(offset: int) -> broker_pb2.CommitOffsetsRequest:
    item = broker_pb2.QueueOffset(topic="t", queue_id=0, offset=offset)
    return broker_pb2.CommitOffsetsRequest(group="g", offsets=[item])


def test_an_offset_is_told_once_all_replicas_in_sync_have_it(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master", min_in_sync=1) as cluster:
        master, slave = cluster.brokers
        with closing(BrokerLink(master.address)) as link:
            send(master, 10)
            link.call(link.stub.CommitOffsets, commit(3), TIMEOUT_S)
            assert committed(link) == [3]
            slave.pause()
            committing = link.stub.CommitOffsets.future(commit(7), timeout=TIMEOUT_S)

            def is_held_back() -> bool:
                try:
                    assert committed(link, 0.5) == [3]
                except DeadlineExceeded:  # the slave counts for longer than this
                    return True
                return False

            wait_until(is_held_back, TIMEOUT_S)
            slave.resume()
            committing.result()
            assert committed(link) == [7]
        with closing(BrokerLink(slave.address)) as link:
            wait_until(lambda: told(link) == ([7], False), TIMEOUT_S, what="a slave tells what it has, unconfirmed")
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


def test_a_master_without_a_lease_tells_none(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster:
        master, slave = cluster.brokers
        with closing(BrokerLink(master.address)) as link:
            send(master, 10)
            link.call(link.stub.CommitOffsets, commit(3), TIMEOUT_S)
            cluster.nameservers[0].pause()
            slave.pause()  # which would confirm the term

            def is_rejected() -> bool:
                try:
                    return committed(link) != [3]
                except NotMaster:
                    return True

            wait_until(is_rejected, TIMEOUT_S, what="the lease is over")
            slave.resume()
            cluster.nameservers[0].resume()
            wait_until(lambda: not is_rejected(), TIMEOUT_S, what="the lease is renewed")
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
