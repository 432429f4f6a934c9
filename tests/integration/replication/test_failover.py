"""A slave takes the place of a master that is gone; what was acknowledged is there, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq.local.server_process import BrokerProcess
from minimq_common.errors import MinimqError, NotEnoughReplicas, NotMaster
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import broker_pb2
from support.command import Minimq
from support.fake_broker import registered
from support.kernel_stores import make_batch
from support.raw_popper import Popped, RawPopper
from support.raw_sender import RawSender
from support.reading import read_all
from support.replicas import LEASE_S, TIMEOUT_S, find_master, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until

#: After so many seconds a container that was told to stop is killed, unless something else is said.
KILLED_AFTER_S = 10.0


class Sending:
    """Messages sent one after the other while a test does something else."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.failures: list[MinimqError] = []
        self.ended = False

    def run(self, nameserver: str) -> None:
        number = 0
        with Producer(nameserver) as producer:
            while not self.ended:
                body = b"%d" % number
                try:
                    producer.send(Message("t", body))
                    self.acknowledged.append(body)
                except MinimqError as error:
                    self.failures.append(error)
                number += 1

    def wait_for_more(self) -> None:
        """Return when messages are acknowledged that are sent from now on."""
        enough = len(self.acknowledged) + 20
        wait_until(lambda: len(self.acknowledged) >= enough, TIMEOUT_S, what=f"sends; failed: {self.failures[-1:]}")


@contextmanager
def sending(cluster: LocalCluster) -> Iterator[Sending]:
    """Send beside the block; then all that was acknowledged is stored, once."""
    sender = Sending()
    thread = threading.Thread(target=sender.run, args=(cluster.nameserver,))
    thread.start()
    try:
        yield sender
    finally:
        sender.ended = True
        thread.join()
    stored = [message.body for message in read_all(cluster.nameserver, "t")]
    assert len(stored) == len(set(stored))
    missing = set(sender.acknowledged) - set(stored)
    assert not missing, f"{len(missing)} of {len(sender.acknowledged)}"


def send_to(broker: BrokerProcess, *bodies: bytes) -> None:
    """Send to one broker, whatever it is. Raises what it answers."""
    with RawSender(broker.address) as sender:
        for result in sender.send("t", [(0, make_batch([body])) for body in bodies]):
            if result.failure.code:
                raise from_failure(result.failure)


@pytest.mark.replaced_by("contract")
@pytest.mark.fault
def test_nothing_acknowledged_is_lost_when_masters_are_killed_one_after_the_other(tmp_path: Path) -> None:
    with replicas(tmp_path, slaves=2, role="sync-master") as cluster:
        with sending(cluster) as sender:
            for _ in range(3):
                sender.wait_for_more()
                master = wait_for_master(cluster)
                wait_in_sync(cluster, *cluster.brokers)
                master.kill()
                wait_for_master(cluster, master)
                sender.wait_for_more()
                master.start()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)


def test_a_master_that_stops_hands_over_at_once(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master", lease_s=60.0, slaves=2) as cluster:
        with sending(cluster) as sender:
            sender.wait_for_more()
            master = wait_for_master(cluster)
            master.stop()
            successor = wait_for_master(cluster, master)  # much earlier than its lease would have been over
            sender.wait_for_more()
            master.start()
            wait_in_sync(cluster, *cluster.brokers)
        assert find_master(cluster) is successor
        wait_caught_up(cluster)


@pytest.mark.fault
def test_a_master_that_stops_waits_for_its_slave_and_acknowledges_what_it_has_taken(tmp_path: Path) -> None:
    batches = [(0, make_batch([b"%d" % number])) for number in range(20)]
    with (
        replicas(tmp_path, role="sync-master", lease_s=60.0) as cluster,
        RawSender(cluster.brokers[0].address) as sender,
    ):
        master, slave = cluster.brokers
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        slave.pause()
        with ThreadPoolExecutor(1) as beside:
            answers = beside.submit(sender.send, "t", batches)
            size = sum(len(data) for _, data in batches)
            wait_until(lambda: (report := master.replication()) and report.replicas[0].behind_bytes > size, TIMEOUT_S)
            master.ask_to_stop()
            wait_until(lambda: all(data.master is None for data in registered(cluster.nameserver)), TIMEOUT_S)
            for _ in range(5):  # it has left the routes, and leads on all the same
                assert master.current_role == "master"
            assert not answers.done()
            slave.resume()
            assert [answer.failure.code for answer in answers.result(TIMEOUT_S)] == [""] * len(batches)
        master.wait_stopped()
        assert wait_for_master(cluster, master) is slave
        master.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        assert len(read_all(cluster.nameserver, "t")) == len(batches)


@pytest.mark.fault
def test_a_master_that_stops_ends_by_itself_though_its_slave_and_its_controller_hang(tmp_path: Path) -> None:
    batches = [(0, make_batch([b"%d" % number])) for number in range(20)]
    with (
        replicas(tmp_path, role="sync-master", lease_s=10.0) as cluster,
        RawSender(cluster.brokers[0].address) as sender,
    ):
        master, slave = cluster.brokers
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        [nameserver] = cluster.nameservers
        slave.pause()
        with ThreadPoolExecutor(1) as beside:
            answers = beside.submit(sender.send, "t", batches)
            size = sum(len(data) for _, data in batches)
            wait_until(lambda: (report := master.replication()) and report.replicas[0].behind_bytes > size, TIMEOUT_S)
            nameserver.pause()
            try:
                master.ask_to_stop()
                wait_until(lambda: not master.running, KILLED_AFTER_S, what="the master ends by itself")
            finally:
                nameserver.resume()
            assert answers.exception(TIMEOUT_S) or all(answer.failure.code for answer in answers.result())
        assert "Traceback" not in master.log_path.read_text()
        slave.resume()
        master.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        # What was not answered may be stored all the same.
        assert len(read_all(cluster.nameserver, "t")) in (0, len(batches))


@pytest.mark.fault
def test_a_master_that_hangs_is_replaced_and_acknowledges_nothing_when_it_goes_on(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master", slaves=2) as cluster:
        with sending(cluster) as sender:
            sender.wait_for_more()
            master = wait_for_master(cluster)
            master.pause()
            successor = wait_for_master(cluster, master)
            sender.wait_for_more()
            master.resume()
            wait_in_sync(cluster, *cluster.brokers)
            sender.wait_for_more()
        assert find_master(cluster) is successor
        with pytest.raises(NotMaster):
            send_to(master, b"late")
        wait_caught_up(cluster)


def test_a_former_master_takes_back_what_no_other_has(tmp_path: Path) -> None:
    """An asynchronous master acknowledges what it alone has: that is what its word is worth."""
    with replicas(tmp_path) as cluster:
        master, slave = cluster.brokers
        send_to(master, b"before")
        wait_caught_up(cluster)
        slave.pause()
        for number in range(16):  # more than fits into what lies between the two
            send_to(master, b"%d" % number * (1 << 19))
        master.kill()
        slave.resume()
        assert wait_for_master(cluster, master) is slave
        send_to(slave, b"after")
        master.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        assert "truncating what the master does not have" in master.log_path.read_text()
        stored = [message.body for message in read_all(cluster.nameserver, "t")]
        assert {b"before", b"after"} <= set(stored)
        assert len(stored) < 18


def test_a_slave_takes_no_message_and_says_who_does(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster:
        master, slave = cluster.brokers
        with pytest.raises(NotMaster, match=master.address):
            send_to(slave, b"astray")


def test_a_synchronous_master_with_too_few_replicas_in_sync_writes_nothing(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master") as cluster:
        master, slave = cluster.brokers
        slave.pause()
        with pytest.raises(NotEnoughReplicas):
            send_to(master, b"waits in vain")  # until the slave no longer counts, or for longer than it may
        wait_in_sync(cluster, master)
        before = master.replication()
        with pytest.raises(NotEnoughReplicas, match="1 replicas of broker-a are in sync, and 2 are needed"):
            send_to(master, b"rejected")
        after = master.replication()
        assert before is not None
        assert after is not None
        assert after.confirmed == before.confirmed
        slave.resume()
        wait_in_sync(cluster, master, slave)
        send_to(master, b"accepted")
        wait_caught_up(cluster)
        assert b"rejected" not in [message.body for message in read_all(cluster.nameserver, "t")]


def test_as_many_have_to_be_in_sync_as_the_master_was_told(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master", slaves=2, min_in_sync=3) as cluster:
        master, slave, other = cluster.brokers
        wait_in_sync(cluster, master, slave, other)
        send_to(master, b"before")
        other.kill()
        wait_in_sync(cluster, master, slave)
        with pytest.raises(NotEnoughReplicas, match="2 replicas of broker-a are in sync, and 3 are needed") as rejected:
            send_to(master, b"rejected")
        assert rejected.value.retriable
        other.start()
        wait_in_sync(cluster, master, slave, other)
        send_to(master, b"after")
        wait_caught_up(cluster)
        assert [message.body for message in read_all(cluster.nameserver, "t")] == [b"before", b"after"]


def test_with_a_slave_less_than_it_takes_groups_go_on_all_the_same(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master") as cluster:
        master, slave = cluster.brokers
        send_to(master, b"a message")
        slave.kill()
        wait_in_sync(cluster, master)
        with PullConsumer(cluster.nameserver, group="g") as consumer:
            consumer.assign([message.queue for message in read_all(cluster.nameserver, "t")])
            consumer.poll(5.0)
            consumer.commit()
        slave.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


@pytest.mark.fault
def test_a_master_goes_on_without_its_controller_while_all_in_sync_confirm_it(tmp_path: Path) -> None:
    with replicas(tmp_path, slaves=2) as cluster:
        master, slave, other = cluster.brokers
        [controller] = cluster.nameservers
        wait_in_sync(cluster, *cluster.brokers)

        def is_rejected() -> bool:
            try:
                send_to(master, b"meanwhile")
            except NotMaster:
                return True
            return False

        def by_replicas_s() -> float:
            report = master.replication()
            return report.by_replicas_s if report is not None else 0.0

        controller.pause()
        wait_until(lambda: by_replicas_s() > 2 * LEASE_S, TIMEOUT_S, what="it goes on, though nothing is sent")
        assert not is_rejected()
        report = slave.replication()
        assert report is not None
        assert report.controller_silent_s > 0
        slave.pause()
        wait_until(is_rejected, TIMEOUT_S, what="one of those that could be elected confirms it no more")
        report = master.replication()
        assert report is not None
        assert (report.lease_s, report.by_replicas_s) == (0, 0)
        slave.resume()
        wait_until(lambda: not is_rejected(), TIMEOUT_S, what="all confirm it again")
        other.pause()
        wait_until(is_rejected, TIMEOUT_S, what="the other one does not")
        controller.resume()
        wait_until(lambda: not is_rejected(), TIMEOUT_S, what="the lease is renewed")
        wait_in_sync(cluster, master, slave)
        other.resume()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)


@pytest.mark.fault
def test_the_cluster_status_says_that_the_controller_does_not_answer(tmp_path: Path) -> None:
    with replicas(tmp_path, nameservers=2) as cluster:
        master, slave = cluster.brokers
        controller = cluster.nameservers[0]
        minimq = Minimq(cluster.nameserver)
        wait_in_sync(cluster, master, slave)

        def lines_with(text: str) -> list[str]:
            """Return the first words of the lines of brokers that have a text."""
            lines = minimq("cluster", "status").splitlines()
            return [" ".join(line.split()[:2]) for line in lines if text in line]

        def shown(broker: BrokerProcess, text: str) -> bool:
            return lines_with(text) == [f"broker-a {broker.broker_id}"]

        assert lines_with("controller") == []
        controller.kill()
        wait_until(lambda: shown(slave, "its controller has not answered for "), TIMEOUT_S)
        confirmed = "has served without its controller for "
        wait_until(lambda: shown(master, confirmed), TIMEOUT_S, what="all in-sync replicas confirm it")
        slave.pause()
        rejecting = "accepts no messages: its controller does not answer, and not all in-sync replicas confirm it"
        wait_until(lambda: shown(master, rejecting), TIMEOUT_S, what="one of them does not")
        slave.resume()
        wait_until(lambda: shown(master, confirmed), TIMEOUT_S, what="it confirms it again")
        controller.start()
        wait_until(lambda: not lines_with("controller"), TIMEOUT_S, what="the controller answers")
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


@pytest.mark.fault
def test_a_master_that_is_alone_in_its_set_goes_on_without_its_controller(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster:
        master, slave = cluster.brokers
        [controller] = cluster.nameservers
        slave.kill()
        wait_in_sync(cluster, master)
        controller.pause()

        def is_alone() -> bool:
            report = master.replication()
            return report is not None and report.by_replicas_s > 2 * LEASE_S

        wait_until(is_alone, TIMEOUT_S, what="its lease is over")
        send_to(master, b"meanwhile")
        controller.resume()
        slave.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


@pytest.mark.replaced_by("contract")
def test_offsets_of_groups_are_there_after_a_failover(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master", slaves=2) as cluster, Admin(cluster.nameserver) as admin:
        master = wait_for_master(cluster)
        with Producer(cluster.nameserver) as producer:
            for number in range(100):
                producer.send(Message("t", b"%d" % number))
        read: list[bytes] = []
        with PullConsumer(cluster.nameserver, group="g", auto_commit=False, start="earliest") as consumer:
            consumer.subscribe("t")
            while len(read) < 60:
                read += [message.body for message in consumer.poll(1.0, max_messages=10)]
            consumer.commit()
        committed = admin.describe_group("g")
        master.kill()
        wait_for_master(cluster, master)
        with PullConsumer(cluster.nameserver, group="g", auto_commit=False, start="earliest") as consumer:
            consumer.subscribe("t")
            deadline = time.monotonic() + TIMEOUT_S
            while len(read) < 100 and time.monotonic() < deadline:
                read += [message.body for message in consumer.poll(0.1)]
        assert sorted(read) == sorted(b"%d" % number for number in range(100))
        assert committed is not None
        master.start()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)


@pytest.mark.replaced_by("contract")
def test_a_member_of_a_group_goes_on_over_a_failover(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master", slaves=2) as cluster:
        master = wait_for_master(cluster)
        read: set[bytes] = set()
        with (
            PullConsumer(cluster.nameserver, group="g", start="earliest") as consumer,
            Producer(cluster.nameserver) as producer,
        ):
            consumer.subscribe("t")

            def has_read(body: bytes) -> bool:
                read.update(message.body for message in consumer.poll(0.1))
                return body in read

            producer.send(Message("t", b"before"))
            wait_until(lambda: has_read(b"before"), TIMEOUT_S)
            master.kill()
            producer.send(Message("t", b"after"))
            wait_until(lambda: has_read(b"after"), TIMEOUT_S)
        master.start()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)


# ---- Messages that are taken one by one at a master that dies: its slave knows who has what -----


@pytest.mark.replaced_by("machine")
@pytest.mark.timeout(180)
def test_a_fail_over_frees_nothing_early_and_hands_nothing_out_again(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master") as cluster:
        master, slave = cluster.brokers
        wait_in_sync(cluster, master, slave)
        with Producer(cluster.nameserver) as producer:
            producer.send_many([Message("t", b"%d" % number) for number in range(1_000)])
        with RawPopper(master.address, "g", "a") as popper:
            held: list[list[Popped]] = []
            while messages := popper.take(100, invisible_s=3600):
                held.append(messages)
                if len(held) == 6:
                    break
            for messages in held[:3]:
                assert popper.settle(messages) == []
            assert popper.settle(held[3][:7], broker_pb2.POP_OUTCOME_FREE) == []
            freed = {message[:2] for message in held[3][:7]}
            del held[3][:7]
            master.kill()
        other = wait_for_master(cluster, master)
        with RawPopper(other.address, "g", "a") as popper:
            for messages in held[3:]:
                assert popper.settle(messages) == []  # it has them still
            taken = {message[:2] for messages in held for message in messages}
            while messages := popper.take(100, invisible_s=3600):
                places = {message[:2] for message in messages}
                assert not taken & places, "handed out again, or early"
                assert {message.delivery_count for message in messages} == {2 if places <= freed else 1}
                taken |= places
                assert popper.settle(messages) == []
            assert len(taken) == 1_000
        master.start()
        wait_in_sync(cluster, other, master)
