"""Transactional producers at real brokers: blocks that commit and raise, and checks by whoever is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, TransactionalProducer, TransactionResolution
from minimq.errors import InvalidArgument, SendFailed, TransactionEnded, TransactionExpired
from minimq.features.half_messages.transactional_producer import CheckedTransaction
from support.command import Minimq
from support.reading import check_brokers, read_all
from support.waiting import wait_until

TIMEOUT_S = 30.0
#: Checks that tests need not wait for.
QUICK = {"check_back_after_s": 0.1, "max_check_backs": 3}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers that ask soon."""
    with LocalCluster(brokers=2, data_dir=tmp_path_factory.mktemp("quick"), broker_options=QUICK) as cluster:
        yield cluster
    check_brokers(cluster)


@pytest.fixture
def orders(quick: LocalCluster, new_name: Callable[[], str]) -> str:
    """A topic of its own."""
    name = new_name()
    with Admin(quick.nameserver) as admin:
        admin.create_topic(name, queues=2)
    return name


def never(message: Message) -> TransactionResolution:
    """Fail: nobody may be asked."""
    raise AssertionError(f"nobody may be asked about {message}")


def unknown(_: Message) -> TransactionResolution:
    return TransactionResolution.UNKNOWN


def in_a_block(
    producer: TransactionalProducer,
    *messages: Message,
    then: Callable[[CheckedTransaction], object] = lambda _: None,
    queues: Sequence[MessageQueue] = (),
) -> None:
    """Send messages in a transaction, and do something else."""
    with producer.transaction() as tx:
        for number, message in enumerate(messages):
            tx.send(message, queue=queues[number] if queues else None)
        then(tx)


def send_after_all(tx: CheckedTransaction) -> None:
    tx.rollback()
    tx.send(Message("t", b"never"))


def fail(_: CheckedTransaction) -> None:
    raise ZeroDivisionError


def stored(cluster: LocalCluster, topic: str) -> list[bytes]:
    return sorted(message.body for message in read_all(cluster.nameserver, topic))


def test_many_threads_have_transactions_at_once(cluster: LocalCluster, topic: str, new_name: Callable[[], str]) -> None:
    errors: list[BaseException] = []
    with TransactionalProducer(cluster.nameserver, group=new_name(), check=never) as producer:

        def work(number: int) -> None:
            try:
                for turn in range(10):
                    with producer.transaction() as tx:
                        tx.send(Message(topic, b"%d/%d" % (number, turn)))
                        if turn % 2:
                            tx.rollback()
            except BaseException as error:  # noqa: BLE001 - the test wants to see it
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert stored(cluster, topic) == sorted(
        b"%d/%d" % (number, turn) for number in range(16) for turn in range(0, 10, 2)
    )


def test_another_member_is_asked_when_the_producer_is_gone(tmp_path: Path) -> None:
    # Any number of checks: the producer is asked, too, while it is on its way out.
    options = {**QUICK, "max_check_backs": 10_000}
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster:
        for answer, wanted in (
            (TransactionResolution.COMMIT, [b"first", b"second"]),
            (TransactionResolution.ROLLBACK, []),
        ):
            asked: list[Message] = []

            def check(
                message: Message, answer: TransactionResolution = answer, asked: list[Message] = asked
            ) -> TransactionResolution:
                asked.append(message)
                if len(asked) == 1:
                    raise OSError("the database is offline")
                return answer if len(asked) > 2 else TransactionResolution.UNKNOWN

            topic = group = answer.name
            with Admin(cluster.nameserver) as admin:
                admin.create_topic(topic, queues=2)
            left_open(cluster, group, [Message(topic, b"first", keys=("o-17",)), Message(topic, b"second")])
            with TransactionalProducer(cluster.nameserver, group=group, check=check):
                wait_until(lambda: len(asked) >= 3, TIMEOUT_S)  # noqa: B023
                wait_until(lambda: not open_numbers(cluster, group), TIMEOUT_S)  # noqa: B023
                wait_until(lambda: stored(cluster, topic) == wanted, TIMEOUT_S)  # noqa: B023
            assert {(message.body, message.keys, message.topic) for message in asked} == {(b"first", ("o-17",), topic)}
            assert stored(cluster, topic) == wanted


def left_open(cluster: LocalCluster, group: str, messages: list[Message]) -> int:
    """Begin a transaction, and have its producer vanish; return the number."""
    producer = TransactionalProducer(cluster.nameserver, group=group, check=unknown)
    block = producer.transaction()
    block.__enter__()
    for message in messages:
        block.send(message)
    producer.close()
    return block.number


def open_numbers(cluster: LocalCluster, group: str) -> list[int]:
    with Admin(cluster.nameserver) as admin:
        return [each.number for each in admin.list_transactions(group).transactions]


def test_nobody_is_asked_while_the_block_runs(quick: LocalCluster, orders: str, new_name: Callable[[], str]) -> None:
    group = new_name()
    asked = threading.Event()

    def check(message: Message) -> TransactionResolution:
        if message.topic == orders:
            asked.set()
        return TransactionResolution.ROLLBACK

    with (
        TransactionalProducer(quick.nameserver, group=group, check=check) as producer,
        TransactionalProducer(quick.nameserver, group=group, check=check),
        Admin(quick.nameserver) as admin,
    ):
        with producer.transaction() as tx:
            tx.send(Message(orders, b"slow"))

            def is_undecided() -> bool:
                found = admin.list_transactions(group).transactions
                return bool(found) and found[0].is_undecided

            wait_until(is_undecided, TIMEOUT_S)  # it was asked for as often as ever
            assert not asked.is_set()
        assert stored(quick, orders) == [b"slow"]


def test_others_are_asked_once_the_producer_has_been_offline_for_a_while(tmp_path: Path) -> None:
    """It may be on its way back, as after a fail-over: its block runs, and nobody else may roll it back."""
    options = {"check_back_after_s": 1.5}
    asked = threading.Event()

    def check(_: Message) -> TransactionResolution:
        asked.set()
        return TransactionResolution.ROLLBACK

    with (
        LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster,
        Admin(cluster.nameserver) as admin,
    ):
        admin.create_topic("t", queues=1)
        with (
            TransactionalProducer(cluster.nameserver, group="g", check=check),
            TransactionalProducer(cluster.nameserver, group="g", check=never) as producer,
        ):
            block = producer.transaction()
            block.__enter__()
            block.send(Message("t", b"x"))
            wait_until(lambda: admin.list_transactions("g").transactions[0].checks, TIMEOUT_S)
            assert not asked.is_set()
            began = time.monotonic()
            producer.close()
            assert asked.wait(TIMEOUT_S)
            assert time.monotonic() - began > options["check_back_after_s"] - 0.5
            wait_until(lambda: not admin.list_transactions("g").transactions, TIMEOUT_S)


def test_a_check_that_rolls_back_before_the_commit_wins(
    quick: LocalCluster, orders: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    with (
        TransactionalProducer(quick.nameserver, group=group, check=never) as producer,
        Admin(quick.nameserver) as admin,
    ):

        def roll_back(tx: CheckedTransaction) -> None:
            assert (
                admin.end_transaction(group, tx.number, TransactionResolution.ROLLBACK)
                is TransactionResolution.ROLLBACK
            )

        def commit(tx: CheckedTransaction) -> None:
            assert admin.end_transaction(group, tx.number, TransactionResolution.COMMIT) is TransactionResolution.COMMIT
            with pytest.raises(TransactionEnded, match="was committed"):
                admin.end_transaction(group, tx.number, TransactionResolution.ROLLBACK)
            raise ZeroDivisionError

        with pytest.raises(TransactionEnded, match="was rolled back before"):
            in_a_block(producer, Message(orders, b"never"), then=roll_back)
        with pytest.raises(ZeroDivisionError):
            in_a_block(producer, Message(orders, b"by hand"), then=commit)
        with pytest.raises(TransactionExpired, match="no broker knows transaction 5"):
            admin.end_transaction(group, 5, TransactionResolution.COMMIT)
    assert stored(quick, orders) == [b"by hand"]


def test_wrong_use_is_rejected(cluster: LocalCluster, topic: str, new_name: Callable[[], str]) -> None:
    async def check(_: Message) -> TransactionResolution:
        return TransactionResolution.UNKNOWN

    with pytest.raises(InvalidArgument, match="check"):
        TransactionalProducer(cluster.nameserver, group="g", check=check)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="producer group"):
        TransactionalProducer(cluster.nameserver, group="a b", check=never)
    with TransactionalProducer(cluster.nameserver, group=new_name(), check=never) as producer:
        with pytest.raises(InvalidArgument, match="leave out its due time"), producer.transaction() as tx:
            tx.send(Message(topic, b"x", deliver_after_s=5))
        with pytest.raises(InvalidArgument, match="has ended"):
            tx.send(Message(topic, b"x"))
        with pytest.raises(InvalidArgument, match="body"), producer.transaction() as tx:
            tx.send(Message(topic, bytes((4 << 20) + 1)))
        with pytest.raises(SendFailed, match="rolled back"):
            in_a_block(producer, then=send_after_all)
        with pytest.raises(InvalidArgument, match="sequence of names"):
            producer.transaction(topics="orders")
    assert stored(cluster, topic) == []


def test_all_messages_of_a_transaction_go_to_one_broker(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str]
) -> None:
    other = new_name()
    a, b = (broker.name for broker in cluster.brokers[:2])
    with Admin(cluster.nameserver) as admin:
        admin.create_topic(other, queues=1, brokers=[b])
        queues = {queue.broker_name: queue for queue in admin.route(topic).write_queues()}
    with TransactionalProducer(cluster.nameserver, group=new_name(), check=never) as producer:
        for _ in range(4):
            with producer.transaction(topics=[topic, other]) as tx:
                tx.send(Message(topic, b"both"))
                tx.send(Message(other, b"both"))
        never_sent = Message(topic, b"never")
        with pytest.raises(InvalidArgument, match="name all topics ahead"):
            in_a_block(producer, never_sent, then=lambda tx: tx.send(Message(other, b"never")), queues=[queues[a]])
        with pytest.raises(InvalidArgument, match="at another broker"):
            in_a_block(producer, never_sent, never_sent, queues=[queues[a], queues[b]])
    assert stored(cluster, topic) == stored(cluster, other) == [b"both"] * 4
    assert {message.queue.broker_name for message in read_all(cluster.nameserver, topic)} == {b}


def test_all_transactions_are_listed_and_the_oldest_up_to_a_limit(
    cluster: LocalCluster, admin: Admin, group: str, new_name: Callable[[], str]
) -> None:
    """A broker lists the first messages up to 8 MiB; the transactions of all others are listed without."""
    topic = new_name()
    admin.create_topic(topic, queues=1, brokers=["broker-a"])
    count, body, minimq = 160, bytes(60_000), Minimq(cluster.nameserver)
    with TransactionalProducer(cluster.nameserver, group=group, check=unknown) as producer:
        blocks = [producer.transaction() for _ in range(count)]
        for number, block in enumerate(blocks):
            block.send(Message(topic, body, keys=[f"k{number}"]))
    numbers = [block.number for block in blocks]
    listed = admin.list_transactions(group)
    assert listed.count == count
    assert [each.number for each in listed.transactions] == numbers
    shown = {each.number: each.keys for each in listed.transactions if each.keys is not None}
    assert 100 < len(shown) < count
    assert shown == {number: (f"k{place}",) for place, number in enumerate(numbers) if number in shown}
    for options, most in ((), 100), (("--limit", "150"), 150):
        rows = minimq.json("transaction", "list", "--group", group, *options)
        assert [row["number"] for row in rows] == numbers[:most]
    assert "only the oldest 100 are shown" in minimq.with_stderr("transaction", "list", "--group", group)
    for number in numbers:
        assert admin.end_transaction(group, number, TransactionResolution.ROLLBACK) is TransactionResolution.ROLLBACK
    assert admin.list_transactions(group).count == 0


def test_the_command_lists_and_ends_transactions(quick: LocalCluster, orders: str, new_name: Callable[[], str]) -> None:
    group, minimq = new_name(), Minimq(quick.nameserver)
    message = Message(orders, b"body", keys=("o-17", "x"))
    numbers = [left_open(quick, group, [message]) for _ in range(2)]
    assert {row["number"] for row in minimq.json("transaction", "list", "--group", group)} == {*numbers}
    with TransactionalProducer(quick.nameserver, group=group, check=unknown):
        wait_until(lambda: minimq("transaction", "list", "--undecided").count(group) == 2, TIMEOUT_S)
    [first, _] = minimq.json("transaction", "list", "--group", group)
    assert {key: first[key] for key in ("group", "topics", "keys", "body", "batches", "checks", "state")} == {
        "group": group,
        "topics": [orders],
        "keys": ["o-17", "x"],
        "body": "body",
        "batches": 1,
        "checks": QUICK["max_check_backs"],
        "state": "undecided",
    }
    assert 0 < first["age_s"] < first["expires_s"]
    text = minimq("transaction", "list", "--group", group)
    assert all(part in text for part in (str(numbers[0]), "o-17, x", "undecided", orders))
    for verb, asked in (("commit", "Commit"), ("rollback", "Roll back")):
        status, said = minimq.on_terminal("transaction", verb, group, str(numbers[0]), answer=b"n\n")
        assert (status, f"{asked} transaction {numbers[0]} of producer group {group}? [y/N]" in said) == (1, True)
    assert len(minimq.json("transaction", "list", "--group", group)) == 2
    assert " committed" in minimq("transaction", "commit", group, str(numbers[0]))
    assert " committed" in minimq("transaction", "commit", group, str(numbers[0]))
    assert "was committed before" in minimq("transaction", "rollback", group, str(numbers[0]), status=1)
    assert " rolled back" in minimq("transaction", "rollback", group, str(numbers[1]))
    assert "no broker knows transaction 7" in minimq("transaction", "commit", group, "7", status=1)
    assert minimq.json("transaction", "list", "--group", group) == []
    assert stored(quick, orders) == [b"body"]
