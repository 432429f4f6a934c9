"""The plan of every operation that changes something, as rows that all interfaces show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minimq import Cluster, LocalCluster, Message, Permission, Producer, TransactionalProducer, TransactionResolution
from minimq.admin.operation import operations_of
from minimq_common.errors import InvalidArgument
from minimq_console.produce import Sender
from support.cases import for_each
from support.command import Minimq
from support.console_actions import make_dead_letters
from support.waiting import wait_until

pytestmark = pytest.mark.system


class World:
    """A broker with a topic, a group that lags, a dead letter, a delayed message and an open transaction."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.admin = Sender(Cluster(cluster.nameserver), timeout_s=10.0)
        self.admin.create_topic("orders", queues=2)
        with Producer(cluster.nameserver) as producer:
            make_dead_letters(cluster, producer, "orders", "billing", 3)
            for queue in self.admin.route("orders").write_queues():
                producer.send(Message("orders", b"y"), queue=queue)
            later = producer.send(Message("orders", b"x", deliver_after_s=86_400, recallable=True))
        self.admin.reset_offset("billing", "orders", "earliest")
        self.names: dict[str, Any] = {"handle": later.recall_handle, "number": 0}

    def plan(self, operation: str, arguments: dict[str, Any]) -> list[tuple[object, ...]]:
        given = {name: self.names.get(value, value) for name, value in arguments.items()}
        [found] = [each for each in operations_of(Sender) if each.name == operation]
        plan = found.planned(self.admin, found.given(**given))
        assert plan is not None
        return [(row.what, row.now, row.then, row.note) for row in plan.rows]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with (
        LocalCluster(brokers=1) as cluster,
        TransactionalProducer(
            cluster.nameserver, group="shop", check=lambda _: TransactionResolution.UNKNOWN
        ) as producer,
        producer.transaction() as open_one,
    ):
        world = World(cluster)
        open_one.send(Message("orders", b"held"))
        [listed] = wait_until(lambda: world.admin.list_transactions("shop").transactions)
        world.names["number"] = listed.number
        yield world
        world.admin.close()
        open_one.rollback()


ORDERS, HALF = {"name": "orders"}, {"group": "shop", "number": "number"}
#: What each operation would change: what, now, then, and a part of the note.
PLANS: list[tuple[str, dict[str, Any], list[tuple[object, ...]]]] = [
    ("topic create", {"name": "new", "queues": 4}, [("new on broker-a", None, "4 queues, read-write", "")]),
    (
        "topic create",
        {**ORDERS, "if_not_exists": True},
        [("orders on broker-a", "2 queues, read-write", "2 queues, read-write", "exists already")],
    ),
    (
        "topic update",
        {**ORDERS, "queues": 4},
        [
            ("read queues of orders on broker-a", 2, 4, ""),
            ("write queues of orders on broker-a", 2, 4, "keys may go to other queues"),
        ],
    ),
    (
        "topic update",
        {**ORDERS, "queues": 1, "force": True},
        [
            ("read queues of orders on broker-a", 2, 1, "stored messages? hidden from new groups"),
            ("write queues of orders on broker-a", 2, 1, "keys may go"),
            ("group billing: unread in removed queues", None, None, "hidden from it"),
        ],
    ),
    (
        "topic update",
        {**ORDERS, "permission": Permission.READ, "retention_s": 60.0, "retention_bytes": 1 << 30},
        [
            ("permission of orders on broker-a", "read-write", "read", "producers cannot send"),
            ("retention of orders on broker-a", "that of the broker", "1m 0s", "can no longer be read"),
            ("size limit of orders on broker-a", "no limit", "1.1 GB", "can no longer be read"),
        ],
    ),
    (
        "topic delete",
        ORDERS,
        [("messages of orders on broker-a", 5, None, ""), ("unread by group billing", 5, None, "")],
    ),
    (
        "group reset-offset",
        {"group": "billing", "topic": "orders", "to": "latest"},
        [("orders/broker-a/0", 0, None, ""), ("orders/broker-a/1", 0, None, "")],
    ),
    (
        "group delete",
        {"group": "billing"},
        [
            ("offsets of billing", 2, None, "is a new one"),
            ("unread by billing", 5, None, "stay in their topics"),
            ("waiting for a retry by billing", 0, None, ""),
            ("dead letters of billing", 3, 3, "stay in topic %DLQ%billing"),
        ],
    ),
    ("cluster delete-broker", {"broker_name": "broker-x"}, [("broker broker-x", "offline", None, "its data stays")]),
    (
        "cluster permission",
        {"broker_name": "broker-a", "permission": Permission.WRITE},
        [("permission of broker-a", "read-write", "write", "consumers cannot read")],
    ),
    (
        "dlq resend",
        {"group": "billing", "all": True},
        [("open dead letters for orders", 3, "sent to orders", "each once; all groups")],
    ),
    (
        "dlq delete",
        {"group": "billing", "all": True},
        [("open dead letters for orders", 3, "deleted", "disk space is freed later")],
    ),
    ("delayed recall", {"handle": "handle"}, [("message for orders on broker-a", "due ", "recalled", "")]),
    (
        "transaction commit",
        HALF,
        [("transaction ", "open for ", "committed", "1 batch for orders; its producer group")],
    ),
    ("transaction rollback", HALF, [("transaction ", "open for ", "rolled back", "1 batch for orders")]),
    (
        "message send",
        {"topic": "orders", "body": "hello", "key": "k-1", "property_lines": "region=eu"},
        [
            ("message to orders on broker-a", None, "5 bytes", "hello"),
            ("key", None, "k-1", ""),
            ("region", None, "eu", ""),
        ],
    ),
]


@for_each(("operation", "arguments", "rows"), PLANS)
def test_a_plan_is_rows(
    world: World, operation: str, arguments: dict[str, Any], rows: list[tuple[object, ...]]
) -> None:
    found = world.plan(operation, arguments)
    assert len(found) == len(rows), found
    for (what, now, then, note), (own_what, own_now, own_then, own_note) in zip(found, rows, strict=True):
        assert str(what).startswith(str(own_what))
        assert now == own_now or own_now is None or str(now).startswith(str(own_now)), what
        assert then == own_then or own_then is None, what
        assert re.search(str(own_note), str(note)), what


def test_each_operation_that_changes_something_has_a_plan() -> None:
    planned = {name for name, _, _ in PLANS} | {"cluster promote"}  # that one needs replicas
    assert {each.name for each in operations_of(Sender) if not each.reads} == planned


def test_python_and_the_command_show_the_same_rows_before_and_after(world: World) -> None:
    minimq, admin = Minimq(world.cluster.nameserver), world.admin
    change = ("topic", "update", "orders", "--retention", "30d")
    planned = admin.plan("topic update", name="orders", retention_s=30 * 86_400.0)
    rows = minimq.json(*change, "--dry-run")
    assert [(row["what"], row["now"], row["then"], row["note"]) for row in rows] == [
        (row.what, row.now, row.then, row.note) for row in planned.rows
    ]
    assert admin.describe_topic("orders").settings[0].retention_s == 0, "nothing was changed"
    assert minimq.json(*change) == rows
    assert admin.describe_topic("orders").settings[0].retention_s == 30 * 86_400
    with pytest.raises(InvalidArgument, match="no operation 'topic list' changes anything"):
        admin.plan("topic list")


def test_a_question_shows_the_rows_first(world: World) -> None:
    minimq = Minimq(world.cluster.nameserver)
    status, said = minimq.on_terminal("topic", "delete", "orders", answer=b"n\n")
    assert status == 1
    assert re.search(r"messages of orders on broker-a +\d+ +-", said)
    assert "Delete topic orders?" in said
    assert "orders" in world.admin.list_topics()


def test_changes_of_users_show_rows_as_well(tmp_path: Path) -> None:
    minimq, secrets = Minimq("127.0.0.1:1"), str(tmp_path / "secrets")
    minimq("secure", "init", secrets, "--host", "localhost")

    def change(*arguments: str) -> list[tuple[object, ...]]:
        rows = minimq.json("user", *arguments, "--secrets", secrets)
        return [(row["what"], row["now"], row["then"]) for row in rows]

    planned = minimq("user", "add", "alice", "--write", "orders*", "--dry-run", "--secrets", secrets)
    assert "rule of alice" in planned
    assert [row["user"] for row in minimq.json("user", "list", "--secrets", secrets)] == ["admin"]
    minimq("user", "add", "alice", "--write", "orders*", "--secrets", secrets)
    rule = ("rule of alice", None, "allow read topic bills")
    for dry_run in (("--dry-run",), ()):
        assert change("allow", "alice", "--read", "bills", *dry_run) == [rule]
    for dry_run in (("--dry-run",), ()):
        rows = change("remove", "alice", *dry_run)
        assert [what for what, _, _ in rows] == ["key of alice", "rule of alice", "rule of alice"]
        assert {then for _, _, then in rows} == {None}
    assert [row["user"] for row in minimq.json("user", "list", "--secrets", secrets)] == ["admin"]
