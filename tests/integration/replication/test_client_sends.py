"""Producers over a fail-over: what is acknowledged is stored, once, and each queue has it in its order."""

from __future__ import annotations

import time
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path

import pytest

from minimq import Admin, Message, MessageQueue, Producer, ProducerOptions, SendReceipt, SendStatus, by_hash
from minimq_common.errors import NotEnoughReplicas, NotMaster, SendFailed
from minimq_nameserver.options import NameServerOptions
from support.client_replicas import leave_slaves_alone, send
from support.command import Minimq
from support.kernel_stores import numbered_batch
from support.raw_transactions import RawTransactions, decision
from support.reading import read_all
from support.replicas import TIMEOUT_S, find_master, queues, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until

#: So many messages in so many steps, each of which takes so long: 5,000 a second.
STEPS, PER_STEP, STEP_S = 600, 25, 0.005


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_master_is_killed_under_five_thousand_sends_a_second(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master", min_in_sync=1) as cluster:
        master, slave = cluster.brokers
        wanted = queues(cluster)
        sent: list[tuple[MessageQueue | None, bytes, Future[SendReceipt]]] = []
        with Producer(cluster.nameserver, send_timeout_s=TIMEOUT_S) as producer:
            began = time.monotonic()
            for step in range(STEPS):
                for place in range(PER_STEP):
                    body = b"%d" % (step * PER_STEP + place)
                    match place % 3:
                        case 0:  # to one queue
                            queue = wanted[step % 2]
                            sent.append((queue, body, producer.send_async(Message("t", body), queue=queue)))
                        case 1:  # by a key, which also means one queue
                            message = Message("t", body, keys=[str(step % 5)])
                            sent.append((None, body, producer.send_async(message, selector=by_hash())))
                        case _:  # anywhere
                            sent.append((None, body, producer.send_async(Message("t", body))))
                if step == STEPS // 4:
                    master.kill()
                time.sleep(max(began + (step + 1) * STEP_S - time.monotonic(), 0.0))
            receipts = {body: future.result(TIMEOUT_S) for _, body, future in sent}
        assert find_master(cluster) is slave
        stored = read_all(cluster.nameserver, "t")
        assert sorted(message.body for message in stored) == sorted(receipts)
        for found in stored:
            receipt = receipts[found.body]
            assert (receipt.queue, receipt.queue_offset) == (found.queue, found.queue_offset)
        for queue in wanted:
            numbers = [receipts[body].queue_offset for bound, body, _ in sent if bound == queue]
            assert all(one < other for one, other in pairwise(numbers)), queue
        master.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_plain_send_outlives_a_failover(tmp_path: Path) -> None:
    lease_s = NameServerOptions().term_lease_s
    assert ProducerOptions().send_timeout_s >= 2 * lease_s
    with replicas(tmp_path, lease_s=lease_s) as cluster, Producer(cluster.nameserver) as producer:
        send(cluster, 10)
        wait_caught_up(cluster)
        cluster.brokers[0].kill()
        assert producer.send(Message("t", b"x")).status is SendStatus.SEND_OK
        cluster.brokers[0].start()
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_a_send_waits_for_the_next_master_as_long_as_it_may(tmp_path: Path) -> None:
    with replicas(tmp_path, nameservers=2) as cluster, Producer(cluster.nameserver, send_timeout_s=2.0) as producer:
        send(cluster, 10)
        wait_caught_up(cluster)
        [queue, _] = queues(cluster)
        leave_slaves_alone(cluster)
        for bound in (queue, None):
            with pytest.raises(SendFailed, match=r"is offline|no master"):
                producer.send(Message("t", b"in vain"), queue=bound)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_with_too_few_replicas_messages_go_to_another_broker_or_wait(tmp_path: Path) -> None:
    with replicas(tmp_path, brokers=2, role="sync-master") as cluster, Admin(cluster.nameserver) as admin:
        _, slave_of_a, master_of_b, slave_of_b = cluster.brokers
        queue = next(queue for queue in admin.route("t").write_queues() if queue.broker_name == "broker-a")
        slave_of_a.kill()
        wait_until(lambda: (report := cluster.brokers[0].replication()) and report.in_sync == (0,), TIMEOUT_S)
        with (
            Producer(cluster.nameserver, send_timeout_s=TIMEOUT_S) as producer,
            Producer(cluster.nameserver, send_timeout_s=2.0) as hasty,
        ):
            assert {producer.send(Message("t", b"x")).queue.broker_name for _ in range(10)} == {"broker-b"}
            with pytest.raises(SendFailed, match="are in sync, and 2 are needed"):
                hasty.send(Message("t", b"x"), queue=queue)
        rows = {(row["broker"], row["replica"]): row for row in Minimq(cluster.nameserver).json("cluster", "status")}
        problem = rows["broker-a", 0]["problem"]
        assert problem == "accepts no messages: 1 in sync, 2 needed; replica 1 does not follow"
        assert problem in Minimq(cluster.nameserver)("cluster", "status")
        [follower] = rows["broker-b", 0]["replicas"]
        assert (follower["replica"], follower["in_sync"], follower["behind_bytes"]) == (1, True, 0)
        assert rows["broker-b", 1]["problem"] is None
        slave_of_a.start()
        with Producer(cluster.nameserver, send_timeout_s=TIMEOUT_S) as producer:
            producer.send(Message("t", b"x"), queue=queue)
        assert master_of_b.current_role == "master"
        assert slave_of_b.current_role == "slave"


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_topics_are_changed_over_a_failover(tmp_path: Path) -> None:
    with replicas(tmp_path, slaves=2, role="sync-master") as cluster:
        with Admin(cluster.nameserver, timeout_s=TIMEOUT_S) as admin:
            for change in (
                lambda: admin.create_topic("other", queues=2),
                lambda: admin.reset_offset("g", "other"),
                lambda: admin.delete_topic("other"),
            ):
                master = wait_for_master(cluster)
                wait_in_sync(cluster, *cluster.brokers)
                master.kill()
                change()
                master.start()
            assert admin.list_topics() == ["t"]
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)


# ---- The command `minimq produce` while nobody leads --------------------------------------------


def test_lines_that_come_while_there_is_no_master_wait_for_one(tmp_path: Path) -> None:
    with replicas(tmp_path, lease_s=3.0, role="sync-master", min_in_sync=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            cluster.brokers[0].kill()
            wait_until(lambda: admin.route("t").master_of("broker-a") is None, 60)
        told = Minimq(cluster.nameserver)("produce", "t", stdin=b"one\ntwo\n")
        assert told.startswith("sent 2 messages")
        assert sorted(message.body for message in read_all(cluster.nameserver, "t")) == [b"one", b"two"]
        cluster.brokers[0].start()


# ---- Transactions of a master that has too few replicas ------------------------------------------


@pytest.mark.timeout(120)
def test_a_transaction_is_decided_and_published_at_enough_replicas(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master") as cluster:
        master, slave = cluster.brokers
        wait_in_sync(cluster, master, slave)
        with RawTransactions(slave.address) as elsewhere:
            with pytest.raises(NotMaster):
                elsewhere.describe()
            with pytest.raises(NotMaster):
                elsewhere.commit(decision(0, {}))
        with RawTransactions(master.address) as transactions:
            transactions.stage(0, [(queue, numbered_batch(7, queue, b"%d" % queue)) for queue in (0, 1)])
            slave.kill()
            wait_in_sync(cluster, master)
            [rejected] = transactions.stage(0, [(0, numbered_batch(7, 2))])
            assert rejected.failure.code == NotEnoughReplicas.code
            wanted = decision(0, {master.broker_name: {7: [0, 1]}})
            with pytest.raises(NotEnoughReplicas, match="1 replicas of broker-a are in sync, and 2 are needed"):
                transactions.commit(wanted)
            about = transactions.describe()
            assert not about.HasField("decision")
            assert about.staged_batches == 2
            slave.start()
            wait_in_sync(cluster, master, slave)
            assert transactions.commit(wanted) == wanted
            assert sorted(message.body for message in read_all(cluster.nameserver, "t")) == [b"0", b"1"]
