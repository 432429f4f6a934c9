"""Users without a right: each way of use says which one is lacking, and how it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer, TransactionalProducer, TransactionResolution
from minimq.errors import AccessDenied, NotDrained
from minimq_cli.main import main
from support.command import Minimq
from support.users import Users
from support.waiting import wait_until

pytestmark = pytest.mark.system

NewUser = Callable[..., Path]


@pytest.fixture(scope="module")
def admin(secure: LocalCluster) -> Iterator[Admin]:
    with Admin(credentials=secure.credentials) as made:
        yield made


@pytest.fixture(scope="module")
def users(secure: LocalCluster) -> Users:
    return Users(secure)


@pytest.fixture
def new_user(users: Users, tmp_path: Path) -> NewUser:
    """Add a user with rules; return the credentials."""

    def add(name: str, *rules: str) -> Path:
        file = tmp_path / f"{name}.minimq"
        file.write_text(users.add(name, rules))
        return file

    return add


def test_consume_says_that_the_right_to_the_group_is_lacking_though_there_is_nothing_to_read(
    secure: LocalCluster, admin: Admin, users: Users, new_user: NewUser
) -> None:
    admin.create_topic("nothing", queues=1)
    file = new_user("newcomer", "allow read topic nothing")
    minimq = Minimq(secure.nameserver)
    arguments = ("--credentials", str(file), "consume", "nothing", "--group", "g-newcomer", "--exit-at-end")
    assert "`minimq user allow newcomer --group g-newcomer`" in minimq(*arguments, status=1)
    users.allow("newcomer", "allow read group g-newcomer")
    assert minimq(*arguments) == ""


def test_who_may_not_describe_the_cluster_does_not_see_its_status_and_uses_it_all_the_same(
    secure: LocalCluster, admin: Admin, users: Users, new_user: NewUser
) -> None:
    admin.create_topic("plain", queues=1)
    file = new_user("watcher", "allow write topic plain")

    def status() -> str:
        return CliRunner().invoke(main, ["--credentials", str(file), "cluster", "status"]).output

    assert status() == (
        "error: user watcher may not describe cluster: an administrator can grant it with `minimq user allow watcher "
        "--right 'describe cluster'`\n"
    )
    users.allow("watcher", "allow describe cluster")
    assert secure.brokers[0].address in status()
    users.allow("watcher", "deny describe cluster")
    assert "may not describe cluster, whatever else is allowed" in status()
    with Producer(credentials=file) as producer:
        producer.send(Message("plain", b"x"))


def test_a_rejection_names_the_rule_that_denies(secure: LocalCluster, users: Users, new_user: NewUser) -> None:
    file = new_user("vera", "allow write topic orders", "deny write topic ord*")
    with Producer(credentials=file) as producer:
        with pytest.raises(AccessDenied, match=r"rule 'deny write topic ord\*' of user vera denies it; .* access.toml"):
            producer.send(Message("orders", b"x"))
        users.delete_rules("vera", "deny write topic ord*")
        producer.send(Message("orders", b"x"))


# ---- What may be found and traced ----------------------------------------------------------------


def test_groups_are_traced_for_those_who_may_describe_them(secure: LocalCluster, new_user: NewUser) -> None:
    with Admin(credentials=secure.credentials) as admin, Producer(credentials=secure.credentials) as producer:
        admin.create_topic("traced", queues=1)
        receipt = producer.send(Message("traced", b"x", keys=("k",)))
        for group in ("seen", "secret"):
            with PullConsumer(credentials=secure.credentials, group=group, start="earliest") as consumer:
                consumer.subscribe("traced")
                wait_until(partial(consumer.poll, 0.1))
                consumer.commit()
        assert {each.group for each in admin.trace_message(receipt.message_id, topic="traced").groups} == {
            "seen",
            "secret",
        }
        finder, describer = (
            new_user(name, *rules)
            for name, rules in (
                ("finder", ["allow read topic traced", "allow read group seen"]),
                ("describer", ["allow describe topic traced"]),
            )
        )
    with Admin(credentials=finder) as admin:
        assert [each.body for each in admin.find_messages("traced", key="k").messages] == [b"x"]
        assert [each.group for each in admin.trace_message(receipt.message_id).groups] == ["seen"]
    with Admin(credentials=describer) as admin:
        for rejected in (
            lambda: admin.find_messages("traced", key="k"),
            lambda: admin.message_at(f"{receipt.queue}@{receipt.queue_offset}"),
            lambda: admin.trace_message(receipt.message_id, topic="traced"),
        ):
            with pytest.raises(AccessDenied, match="may not read topic traced"):
                rejected()


def test_a_list_of_transactions_shows_no_message_that_its_user_may_not_read(
    secure: LocalCluster, admin: Admin, new_user: NewUser
) -> None:
    for topic in ("payroll", "sales"):
        admin.create_topic(topic, queues=1)
    with TransactionalProducer(
        credentials=secure.credentials, group="payers", check=lambda _: TransactionResolution.UNKNOWN
    ) as producer:
        block = producer.transaction()
        block.__enter__()
        for topic in ("payroll", "sales"):
            block.send(Message(topic, b"secret", keys=("key",)))
    rule = "allow describe transaction payers"
    for name, more, topics, body in (
        ("half-watcher", "allow describe topic sales", ["sales"], None),
        ("half-reader", "allow read topic payroll", ["payroll"], b"secret"),
        ("half-payer", "allow write transaction payers", ["payroll", "sales"], b"secret"),
    ):
        with Admin(credentials=new_user(name, rule, more)) as asking:
            [listed] = asking.list_transactions().transactions
        assert ([*listed.topics], listed.body, listed.keys) == (topics, body, body and ("key",)), name
    admin.end_transaction("payers", block.number, TransactionResolution.ROLLBACK)


def test_an_error_about_unread_messages_names_no_group_that_its_user_may_not_see(
    secure: LocalCluster, admin: Admin, new_user: NewUser
) -> None:
    admin.create_topic("shrunk", queues=2)
    queues = admin.route("shrunk").read_queues()
    with Producer(credentials=secure.credentials) as producer:
        for queue in queues:
            producer.send(Message("shrunk", b"x"), queue=queue)
    for group in ("open-group", "covert-a", "covert-b"):
        with PullConsumer(credentials=secure.credentials, group=group, auto_commit=False) as consumer:
            consumer.assign(queues)
            consumer.commit(dict.fromkeys(queues, 0))
    file = new_user("shrinker", "allow manage topic shrunk", "allow describe group open-group")
    with Admin(credentials=file) as asking, pytest.raises(NotDrained) as raised:
        asking.update_topic("shrunk", read_queues=1, write_queues=1)
    assert "group open-group has not read" in raised.value.message
    assert "2 groups that you may not see have not read" in raised.value.message
    assert "covert" not in raised.value.message
