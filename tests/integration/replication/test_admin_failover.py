"""Calls of `Admin` while the master of a broker changes: each looks the new one up and goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from minimq import (
    Admin,
    LocalCluster,
    Message,
    MessageQueue,
    Permission,
    Producer,
    TransactionalProducer,
    TransactionResolution,
)
from minimq.admin.operation import Operation, operations_of
from minimq.errors import GroupNotFound
from support.replicas import TIMEOUT_S, replicas, wait_for_master, wait_in_sync
from support.waiting import wait_until

QUEUES = [MessageQueue("t", "broker-a", queue_id) for queue_id in range(2)]


def test_all_calls_go_on_at_the_next_master(tmp_path: Path) -> None:
    with replicas(tmp_path, slaves=2) as cluster:
        wait_in_sync(cluster, *cluster.brokers)
        number, handle = leave_something(cluster)
        calls = repeatable_calls(number, handle)
        stop, begun = threading.Event(), [threading.Event() for _ in calls]
        with ThreadPoolExecutor(len(calls) + 1) as pool:
            running = [
                pool.submit(call_again_and_again, cluster, call, stop, each)
                for call, each in zip(calls.values(), begun, strict=True)
            ]
            try:
                for each in begun:
                    assert each.wait(TIMEOUT_S)
                master = wait_for_master(cluster)
                master.kill()
                deletion = pool.submit(delete_group, cluster)  # cannot be repeated: it begins without a master
                successor = wait_for_master(cluster, master)
                wait_for_more(running, begun)
                master.start()
                wait_in_sync(cluster, *cluster.brokers)
                with Admin(cluster.nameserver) as admin:
                    other = next(each for each in cluster.brokers if each not in (master, successor))
                    admin.promote("broker-a", other.broker_id)
                wait_for_more(running, begun)
            finally:
                stop.set()
            deletion.result(TIMEOUT_S)
            failed = {name: error for name, each in zip(calls, running, strict=True) if (error := each.exception())}
        assert failed == {}
        wait_in_sync(cluster, *cluster.brokers)


def test_a_plan_waits_for_the_next_master_as_its_call_does(tmp_path: Path) -> None:
    values: dict[str, dict[str, Any]] = {
        "cluster permission": {"broker_name": "broker-a", "permission": Permission.READ},
        "topic update": {"name": "t", "retention_s": 3600.0},
        "topic create": {"name": "new", "queues": 2},
        "group reset-offset": {"group": "g", "topic": "t", "to": "earliest"},
    }
    operations = [each for each in operations_of(Admin) if each.name in values]

    def perform(operation: Operation) -> None:
        with Admin(cluster.nameserver, timeout_s=TIMEOUT_S) as admin:
            given = operation.given(**values[operation.name])
            operation.planned(admin, given)
            operation.run(admin, given)

    with replicas(tmp_path, slaves=2) as cluster, ThreadPoolExecutor(len(values)) as pool:
        wait_in_sync(cluster, *cluster.brokers)
        with Admin(cluster.nameserver) as admin:
            admin.reset_offset("g", "t")
        master = wait_for_master(cluster)
        master.kill()
        list(pool.map(perform, operations))
        master.start()
        wait_in_sync(cluster, *cluster.brokers)


def leave_something(cluster: LocalCluster) -> tuple[int, str]:
    """Leave a transaction open and a message delayed. Returns the number of the one, and the handle of the other."""
    with (
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver) as producer,
        TransactionalProducer(
            cluster.nameserver, group="sellers", check=lambda _: TransactionResolution.UNKNOWN
        ) as sellers,
    ):
        admin.reset_offset("g", "t")
        admin.reset_offset("ends", "t")
        admin.create_topic("sized", queues=2)
        handle = producer.send(Message("t", b"later", deliver_after_s=3600, recallable=True)).recall_handle
        block = sellers.transaction()
        block.__enter__()  # and nobody leaves it
        block.send(Message("t", b"half"))
        assert handle is not None
        return block.number, handle


def repeatable_calls(number: int, handle: str) -> dict[str, Callable[[Admin], object]]:
    """Return calls that may be made again and again, by a name for each."""

    def create_and_delete(admin: Admin) -> None:
        admin.create_topic("new", queues=1, if_not_exists=True)
        admin.delete_topic("new", if_exists=True)

    def resize(admin: Admin) -> None:
        for queues in (3, 2):
            admin.update_topic("sized", queues=queues, force=True)

    return {
        "create_topic": create_and_delete,
        "update_topic": lambda admin: admin.update_topic("t", permission=Permission.READ_WRITE),
        "update_topic, queues": resize,
        "describe_topic": lambda admin: admin.describe_topic("t").queues[1],
        "list_groups": lambda admin: admin.list_groups().index("g"),
        "describe_group": lambda admin: admin.describe_group("g").queues[1],
        "reset_offset": lambda admin: admin.reset_offset("g", "t")[QUEUES[1]],
        "committed_offsets": lambda admin: admin.committed_offsets("g")[QUEUES[1]],
        "offsets_at": lambda admin: admin.offsets_at(QUEUES, "-1h"),
        "set_broker_permission": lambda admin: admin.set_broker_permission("broker-a", Permission.READ_WRITE),
        "list_transactions": lambda admin: admin.list_transactions("sellers"),
        "end_transaction": lambda admin: admin.end_transaction("sellers", number, TransactionResolution.COMMIT),
        "delayed_totals": lambda admin: admin.delayed_totals(["t"]),
        "delayed_messages": lambda admin: list(admin.delayed_messages("t")),
        "recall": lambda admin: admin.recall(handle),
        "count_dead_letters": lambda admin: admin.count_dead_letters("g"),
    }


def call_again_and_again(
    cluster: LocalCluster, call: Callable[[Admin], object], stop: threading.Event, made: threading.Event
) -> None:
    with Admin(cluster.nameserver, timeout_s=TIMEOUT_S) as admin:
        while not stop.is_set():
            call(admin)
            made.set()


def wait_for_more(running: list[Future[Any]], made: list[threading.Event]) -> None:
    """Return when each call has been made once more, or has failed."""
    for each in made:
        each.clear()
    for future, each in zip(running, made, strict=True):
        wait_until(lambda each=each, future=future: each.is_set() or future.done(), TIMEOUT_S)  # type: ignore[misc]


def delete_group(cluster: LocalCluster) -> None:
    with Admin(cluster.nameserver, timeout_s=TIMEOUT_S) as admin:
        try:
            admin.delete_group("ends")
        except GroupNotFound:  # the answer was lost
            assert "ends" not in admin.list_groups()
