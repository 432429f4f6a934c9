"""Transactions over two brokers, as a connector stages and commits them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, MessageQueue, SendStatus
from minimq.features.transactions.decisions import Decision, StagedPart, Transaction, staged_parts
from minimq.features.transactions.transactions import RecordsSender, TransactionCommitter
from minimq.local.server_process import ServerProcess
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt
from minimq_common.batch.builder import BatchBuilder
from minimq_common.errors import BufferFull, Closed, SendFailed, TransactionEnded, Unavailable
from minimq_common.model import Message
from minimq_common.wire.convert import to_wire
from minimq_proto.v1 import staged_pb2
from minimq_proto.v1.staged_pb2_grpc import StagedStub
from support.broker_link import BrokerLink
from support.reading import check_brokers, read_all
from support.relay import Relay
from support.replicas import replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until

TIMEOUT_S = 40.0
_names = itertools.count()


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    """For tests that leave its brokers alone."""
    with LocalCluster(brokers=2) as made:
        yield made


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two brokers that may be killed."""
    with LocalCluster(brokers=2, data_dir=tmp_path) as made:
        yield made
    check_brokers(made)


@pytest.fixture
def name() -> str:
    return f"row-{next(_names)}"


@pytest.fixture
def topic(shared: LocalCluster) -> str:
    return make_topic(shared)


def make_topic(cluster: LocalCluster) -> str:
    topic = f"t-{next(_names)}"
    with Admin(cluster.nameserver) as admin:
        admin.create_topic(topic, queues=2)
    return topic


def records(*bodies: bytes) -> BatchBuilder:
    made = BatchBuilder(1 << 20)
    made.add([Message("any", body) for body in bodies])
    return made


def parts_of(futures: Sequence[Future[BatchReceipt]]) -> tuple[StagedPart, ...]:
    return staged_parts(future.result(TIMEOUT_S) for future in futures)


def stage(sender: RecordsSender, topic: str, transaction: Transaction, *bodies: bytes) -> tuple[StagedPart, ...]:
    """Stage each body once in every queue of a topic."""
    return parts_of(
        [
            sender.send(topic, queue, records(body), transaction=transaction)
            for body in bodies
            for queue in sender.queues(topic)
        ]
    )


def bodies_in(cluster: LocalCluster, topic: str) -> list[tuple[str, int, bytes]]:
    """Return broker name, queue id and body of all that readers see, queue by queue."""
    found = [
        (message.queue.broker_name, message.queue.queue_id, message.body)
        for message in read_all(cluster.nameserver, topic)
    ]
    return sorted(found, key=lambda at: at[:2])


def in_each(*bodies: bytes) -> list[tuple[str, int, bytes]]:
    return [(broker, queue_id, body) for broker in ("broker-a", "broker-b") for queue_id in (0, 1) for body in bodies]


def decide(broker: ServerProcess, name: str, decision: Decision) -> None:
    """Tell one broker alone, as does a writer that dies then."""
    link = BrokerLink(broker.address)
    try:
        wire = to_wire(staged_pb2.Decision, decision)
        request = staged_pb2.CommitTransactionRequest(name=name, decision=wire)
        link.call(link.of(StagedStub).CommitTransaction, request, TIMEOUT_S)
    finally:
        link.close()


# ---- as long as nothing fails -------------------------------------------------------------------


def test_after_its_end_a_transaction_takes_nothing_more_and_says_how_it_ended(
    shared: LocalCluster, topic: str, name: str
) -> None:
    transaction = Transaction(name, 3)
    with RecordsSender(shared.nameserver) as sender, TransactionCommitter(shared.nameserver) as ends:
        parts = stage(sender, topic, transaction, b"1")
        decision = ends.commit(transaction, [topic], parts)
        for number in (2, 3):
            late = sender.send(topic, None, records(b"late"), transaction=Transaction(name, number))
            assert isinstance(late.exception(TIMEOUT_S), TransactionEnded)
        assert ends.commit(transaction, [topic], (), decided=True) == decision
        with pytest.raises(TransactionEnded, match=r"number 2 has ended: broker .* has decided number 3"):
            ends.commit(Transaction(name, 2), [topic], ())
    assert bodies_in(shared, topic) == in_each(b"1")


def test_a_transaction_of_which_one_broker_has_nothing_is_decided_there_as_well(
    shared: LocalCluster, topic: str, name: str
) -> None:
    transaction = Transaction(name, 0)
    queue = MessageQueue(topic, "broker-b", 0)
    with RecordsSender(shared.nameserver) as sender, TransactionCommitter(shared.nameserver) as ends:
        stage(sender, topic, transaction, b"left over")
        future = sender.send(topic, queue, records(b"1"), transaction=transaction)
        ends.commit(transaction, [topic], parts_of([future]))
        rejected = sender.send(topic, MessageQueue(topic, "broker-a", 0), records(b"2"), transaction=transaction)
        assert isinstance(rejected.exception(TIMEOUT_S), TransactionEnded)
    assert bodies_in(shared, topic) == [("broker-b", 0, b"1")]


# ---- when something does ------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.parametrize("restart", ["none", "before", "between"])
def test_a_second_attempt_ends_what_the_first_has_decided(pair: LocalCluster, name: str, restart: str) -> None:
    """The first writer died after the coordinator had heard its decision; brokers may have been killed meanwhile."""
    topic, transaction = make_topic(pair), Transaction(name, 0)
    coordinator, other = pair.brokers

    def kill_all() -> None:
        for broker in (coordinator, other):
            broker.kill()
            broker.start()

    with RecordsSender(pair.nameserver) as sender, TransactionCommitter(pair.nameserver) as ends:
        first = stage(sender, topic, transaction, b"first")
        if restart == "before":
            kill_all()
        decision = Decision(0, first, ("broker-a", "broker-b"))
        second = stage(sender, topic, transaction, b"second")
        decide(coordinator, name, decision)
        assert {broker for broker, _, _ in bodies_in(pair, topic)} == {"broker-a"}
        if restart == "between":
            kill_all()
        assert ends.commit(transaction, [topic], second) == decision
    assert bodies_in(pair, topic) == in_each(b"first")


@pytest.mark.fault
def test_a_broker_that_is_offline_is_named_and_nothing_is_decided_without_it(pair: LocalCluster, name: str) -> None:
    topic, transaction = make_topic(pair), Transaction(name, 0)
    offline = pair.brokers[1]
    with RecordsSender(pair.nameserver) as sender, TransactionCommitter(pair.nameserver, max_wait_s=1.0) as ends:
        parts = stage(sender, topic, transaction, b"1")
        offline.kill()
        with pytest.raises(Unavailable, match=r"not ended within 1 s .*broker broker-b: .*not known whether it is dec"):
            ends.commit(transaction, [topic], parts)
        assert bodies_in(pair, topic) == []
        offline.start()
        ends.commit(transaction, [topic], parts)
        assert bodies_in(pair, topic) == in_each(b"1")

        later = Transaction(name, 1)
        here = sender.send(topic, MessageQueue(topic, "broker-a", 0), records(b"2"), transaction=later)
        parts = parts_of([here])
        offline.kill()  # it has nothing of this one, but an earlier attempt may have
        with pytest.raises(Unavailable, match="broker broker-b: no name server knows a master of it"):
            ends.commit(later, [topic], parts)
        offline.start()
        ends.commit(later, [topic], parts)
    assert bodies_in(pair, topic)[:2] == [("broker-a", 0, b"1"), ("broker-a", 0, b"2")]


@pytest.mark.fault
def test_a_commit_waits_for_a_broker_that_hangs_after_the_decision(pair: LocalCluster, name: str) -> None:
    topic, transaction = make_topic(pair), Transaction(name, 0)
    hanging = pair.brokers[1]
    with RecordsSender(pair.nameserver) as sender:
        parts = stage(sender, topic, transaction, b"1")
        decide(pair.brokers[0], name, Decision(0, parts, ("broker-a", "broker-b")))
        hanging.pause()
        with (
            TransactionCommitter(pair.nameserver, timeout_s=1.0, max_wait_s=3.0) as hasty,
            TransactionCommitter(pair.nameserver) as ends,
        ):
            with pytest.raises(Unavailable, match="it is decided, and not published there yet"):
                hasty.commit(transaction, [topic], parts)
            hanging.resume()
            ends.commit(transaction, [topic], parts)
    assert bodies_in(pair, topic) == in_each(b"1")


def test_a_broker_is_taken_out_of_service_by_one_more_transaction(pair: LocalCluster, name: str) -> None:
    """Also the one that has decided so far."""
    topic, leaving = make_topic(pair), pair.brokers[0]
    with TransactionCommitter(pair.nameserver, max_wait_s=5.0) as ends, Admin(pair.nameserver) as admin:
        for number in (0, 1, 2):
            transaction = Transaction(name, number)
            with RecordsSender(pair.nameserver) as sender:
                decision = ends.commit(transaction, [topic], stage(sender, topic, transaction, b"%d" % number))
            if number == 0:
                assert decision.broker_names == ("broker-a", "broker-b")
                admin.delete_topic(topic, brokers=[leaving.name])
            else:
                assert decision.broker_names == ("broker-b",)
                leaving.stop()
    assert bodies_in(pair, topic) == [("broker-b", queue, body) for queue in (0, 1) for body in (b"0", b"1", b"2")]
    leaving.start()


@pytest.mark.fault
def test_the_next_master_commits_what_the_last_one_has_staged(tmp_path: Path, name: str) -> None:
    with replicas(tmp_path, role="sync-master") as cluster:
        options = ProducerOptions(send_timeout_s=TIMEOUT_S)
        with RecordsSender(cluster.nameserver, options) as sender, TransactionCommitter(cluster.nameserver) as ends:
            transaction = Transaction(name, 0)
            parts = stage(sender, "t", transaction, b"0")
            last = wait_for_master(cluster)
            last.kill()
            wait_for_master(cluster, last)
            last.start()  # as a batch does, a decision needs a slave
            ends.commit(transaction, ["t"], parts)
            later = Transaction(name, 1)
            ends.commit(later, ["t"], stage(sender, "t", later, b"1"))
        assert bodies_in(cluster, "t") == [("broker-a", queue, body) for queue in (0, 1) for body in (b"0", b"1")]
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)


@pytest.mark.parametrize("bound", [True, False])
def test_what_is_staged_twice_after_a_lost_answer_is_published_once(
    pair: LocalCluster, tmp_path: Path, name: str, bound: bool
) -> None:
    """At the same broker again when it has to go to its queue, at another one when it may."""
    topic, transaction = make_topic(pair), Transaction(name, 0)
    broker = ServerProcess("broker", "broker-x", tmp_path, flags=lambda *_: flags, settled=lambda: None)
    with Relay(broker.address) as relay, Admin(pair.nameserver) as admin:
        flags = [f"--name={broker.name}", f"--listen={broker.address}", f"--advertise={relay.address}"]
        flags += [f"--data-dir={broker.data_dir}", f"--nameserver={pair.nameserver}"]
        direct = BrokerLink(broker.address)

        def staged() -> int:
            request = staged_pb2.CommitTransactionRequest(name=name)
            return direct.call(direct.of(StagedStub).CommitTransaction, request, TIMEOUT_S).staged_batches

        try:
            broker.start()
            wait_until(lambda: broker.name in [known.broker_name for known in admin.cluster()], TIMEOUT_S)
            admin.create_topic(topic, queues=2)
            queue = MessageQueue(topic, broker.name, 0) if bound else None
            with RecordsSender(pair.nameserver, ProducerOptions(send_timeout_s=TIMEOUT_S)) as sender:
                wait_until(lambda: len(sender.queues(topic)) == 6, TIMEOUT_S)
                sender.send(topic, MessageQueue(topic, broker.name, 1), records(b"0")).result(TIMEOUT_S)
                relay.lose_answers()
                # Free ones take turns over the six queues, so that some come by.
                futures = [
                    sender.send(topic, queue, records(b"%d" % number), transaction=transaction)
                    for number in range(1, 7)
                ]
                wait_until(staged, TIMEOUT_S)
                assert not all(future.done() for future in futures)
                relay.cut()
                parts = parts_of(futures)
                statuses = [future.result().status for future in futures]
                assert (SendStatus.ALREADY_STORED in statuses) == bound
                with TransactionCommitter(pair.nameserver) as ends:
                    ends.commit(transaction, [topic], parts)
            found = [message for message in read_all(pair.nameserver, topic) if message.body != b"0"]
            assert sorted(message.body for message in found) == [b"%d" % number for number in range(1, 7)]
            assert {message.queue.broker_name for message in found} == {part.broker_name for part in parts}
            assert staged() == 0
        finally:
            direct.close()
            broker.stop()


@pytest.mark.fault
def test_what_is_on_its_way_is_bounded(pair: LocalCluster, name: str) -> None:
    topic, transaction = make_topic(pair), Transaction(name, 0)
    options = ProducerOptions(buffer_bytes=4 << 20, block_when_full=False, send_timeout_s=TIMEOUT_S)
    sender = RecordsSender(pair.nameserver, options)
    for broker in pair.brokers:
        broker.pause()
    large = records(bytes(1 << 20))
    taken = [sender.send(topic, None, large, transaction=transaction) for _ in range(4)]
    with pytest.raises(BufferFull):
        sender.send(topic, None, large, transaction=transaction)
    for broker in pair.brokers:
        broker.resume()
    assert sum(len(part.sequences) for part in parts_of(taken)) == 4
    sender.send(topic, None, records(b"x"), transaction=transaction).result(TIMEOUT_S)
    for broker in pair.brokers:
        broker.kill()
    left = sender.send(topic, None, records(b"x"), transaction=transaction)
    with pytest.raises(SendFailed, match=r"^1 message was not acknowledged"):
        sender.close(0.1)
    assert isinstance(left.exception(TIMEOUT_S), Closed)
    for broker in pair.brokers:
        broker.start()
