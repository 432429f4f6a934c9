"""A broker logs who has changed what."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from minimq import Admin, Credentials, LocalCluster, Message, Permission, Producer, PullConsumer
from support.users import Users
from support.waiting import wait_until

pytestmark = pytest.mark.system

LINE = re.compile(
    r"INFO +minimq_broker\.calls\.administration: administration: (.+) name=(\S+) old='(.*)' new='(.*)' "
    r"caller=127\.0\.0\.1:\d+ client=- user=-$",
    re.MULTILINE,
)


def test_every_administrative_call_is_one_line(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            admin.create_topic("orders", queues=2)
            admin.create_topic("orders", queues=2, if_not_exists=True)  # changes nothing
            admin.update_topic("orders", read_queues=3)
            producer.send(Message("orders", b"x"))
            admin.reset_offset("billing", "orders", "latest")
            admin.reset_offset("billing", "orders", 0)
            admin.delete_group("billing")
            admin.set_broker_permission("broker-a", Permission.READ)
            admin.delete_topic("orders")
        [broker] = cluster.brokers
        said = LINE.findall(broker.log_path.read_text())
    two, three = (f"{read} read queues, 2 write queues, read-write" for read in (2, 3))
    [(_, _, nothing, ends)] = [line for line in said if line[0] == "offsets set"][:1]
    assert nothing == "orders 0:- 1:- 2:-"
    assert said == [
        ("topic created", "orders", "-", two),
        ("topic changed", "orders", two, three),
        ("offsets set", "billing", nothing, ends),
        ("offsets set", "billing", ends, "orders 0:0 1:0 2:0"),
        ("group deleted", "billing", "offsets of 3 queues", "-"),
        ("broker permission set", "-", "read-write", "read"),
        ("topic deleted", "orders", three, "-"),
    ]


def test_every_change_has_its_line_however_many_there_are_and_names_the_client_that_made_it(
    cluster: LocalCluster, admin: Admin, new_name: Callable[[], str]
) -> None:
    broker, name = cluster.brokers[0], new_name()
    admin.create_topic(name, queues=1, brokers=[broker.name])
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(name, b"x"))
    with PullConsumer(cluster.nameserver, group=name, client_id="accountant", auto_commit=False) as consumer:
        consumer.subscribe(name)
        [message] = wait_until(lambda: consumer.poll(0.5))
        for _ in range(120):
            consumer.commit({message.queue: 1})
            consumer.seek(message.queue, 0)
            consumer.commit()
    said = broker.log_path.read_text()
    assert said.count(f"administration: offsets set name={name} old='{name} 0:1' new='{name} 0:0'") == 120
    line = rf"offsets set name={name} .* caller=127\.0\.0\.1:\d+ client=accountant user=-$"
    assert re.search(line, said, re.MULTILINE)
    admin.delete_topic(name)


def test_a_line_names_the_user_who_made_the_change(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path, secure=True) as cluster:
        text = Users(cluster).add("alice", ["allow manage topic *"])
        with Admin(credentials=Credentials.from_text(text)) as alice:
            alice.create_topic("orders", queues=1)
        said = cluster.brokers[0].log_path.read_text()
    assert re.search(r"administration: topic created name=orders .* client=- user=alice$", said, re.MULTILINE)
