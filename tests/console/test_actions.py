"""Actions of the console, from the form to their effect on the cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from minimq import Admin, ConsumeResult, Message, Producer, PushConsumer
from minimq.cli.console import serving_console
from minimq.local.local_cluster import LocalCluster
from support.console_actions import confirmation_of, fill_in, use
from support.console_visitor import ConsoleVisitor
from support.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def address(cluster: LocalCluster) -> Iterator[str]:
    with serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2, allow_changes=True) as served:
        yield served.address


@pytest.fixture
def visitor(address: str) -> ConsoleVisitor:
    return ConsoleVisitor(address)


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the lines about actions since the last call."""
    caplog.set_level(logging.INFO, "minimq.audit")

    def lines() -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.name == "minimq.audit"]
        caplog.clear()
        return [each for each in found if "an action" in each]

    return lines


def test_a_topic_is_created(
    visitor: ConsoleVisitor, admin: Admin, new_name: Callable[[], str], audit: Callable[[], list[str]]
) -> None:
    name = new_name()
    described = fill_in(visitor, "/create-topic", name=name, queues="3", retention="7d")
    assert f"Creates the topic {name} with 3 queues on broker-a and broker-b, 6 queues in all." in described.text
    assert name not in admin.list_topics()
    assert audit() == []

    done = visitor.post("/create-topic", confirmation_of(described))
    assert done.status == 303
    assert f"Topic {name} was created." in visitor.get(done.headers["Location"]).text
    topic = admin.describe_topic(name)
    assert [(each.read_queues, each.retention_s) for each in topic.settings] == [(3, 604_800.0)] * 2
    [line] = audit()
    assert "action=create-topic" in line
    assert "result=done" in line
    assert name in line
    admin.delete_topic(name)


def test_a_topic_is_resized(visitor: ConsoleVisitor, admin: Admin, topic: str) -> None:
    assert 'value="4"' in visitor.get(f"/topics/{topic}/resize").text
    done = use(visitor, f"/topics/{topic}/resize", queues="6")
    assert f"Topic {topic} has 6 queues on each broker." in done
    assert [each.write_queues for each in admin.describe_topic(topic).settings] == [6, 6]


def test_dead_letters_are_resent_once(
    visitor: ConsoleVisitor,
    cluster: LocalCluster,
    admin: Admin,
    producer: Producer,
    topic: str,
    group: str,
    audit: Callable[[], list[str]],
) -> None:
    make_dead_letters(cluster, producer, topic, group, 3)
    page = visitor.get(f"/dead-letters/{group}").text
    assert page.count('data-action="resend-letters"') == 4
    stored = admin.describe_topic(topic).messages

    described = fill_in(visitor, f"/dead-letters/{group}/resend")
    assert f"Resends 3 dead letters of group {group}." in described.text
    assert f"3 messages to topic {topic}." in described.text
    confirmed = confirmation_of(described)
    places = {visitor.post(f"/dead-letters/{group}/resend", confirmed).headers["Location"] for _ in range(2)}
    assert len(places) == 1
    assert "3 dead letters" in visitor.get(places.pop()).text
    assert admin.describe_topic(topic).messages == stored + 3
    assert list(admin.dead_letters(group)) == []
    assert len(audit()) == 1


def make_dead_letters(cluster: LocalCluster, producer: Producer, topic: str, group: str, count: int) -> None:
    """Have a group give up some messages."""
    producer.send_many([Message(topic, b"%d" % number) for number in range(count)])

    def fail(messages: object) -> ConsumeResult:
        raise ValueError("unusable")

    with PushConsumer(cluster.nameserver, group=group, start="earliest", max_tries=0) as consumer:
        consumer.subscribe(topic)
        consumer.start(fail)
        with Admin(cluster.nameserver) as admin:
            wait_until(lambda: len(list(admin.dead_letters(group))) == count)
