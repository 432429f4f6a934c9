"""Actions of the console, from the form to their effect on the cluster."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from minimq import (
    Admin,
    Message,
    MessageQueue,
    Permission,
    Producer,
    PullConsumer,
    TransactionalProducer,
    TransactionResolution,
)
from minimq.local.local_cluster import LocalCluster
from minimq_cli.console import serving_console
from minimq_common.errors import TransactionEnded
from minimq_console import actions
from support.console_actions import confirmation_of, fill_in, make_dead_letters, rows_of, use
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
    settings = "3 queues, read-write, kept for 7d 0h"
    assert rows_of(described) == {f"{name} on broker-{each}": ("\N{EN DASH}", settings, "") for each in "ab"}
    assert name not in admin.list_topics()
    assert audit() == []

    done = visitor.post("/create-topic", confirmation_of(described))
    assert done.status == 303
    assert rows_of(visitor.get(done.headers["Location"])) == rows_of(described)
    topic = admin.describe_topic(name)
    assert [(each.read_queues, each.retention_s) for each in topic.settings] == [(3, 604_800.0)] * 2
    [line] = audit()
    assert "action=create-topic" in line
    assert "result=done" in line
    assert name in line
    admin.delete_topic(name)


def test_what_an_address_adds_to_a_form_is_confirmed_with_it(visitor: ConsoleVisitor, admin: Admin, topic: str) -> None:
    place = f"/topics/{topic}/delete"
    described = visitor.get(f"{place}?broker=broker-a&step=check")
    assert list(rows_of(described)) == [f"messages of {topic} on broker-a"]
    confirmed = confirmation_of(described, topic)
    assert visitor.post(place, confirmed | {"broker": "broker-b"}).status == 400, "that is not what was described"
    assert [each.broker_name for each in admin.describe_topic(topic).settings] == ["broker-a", "broker-b"]
    assert visitor.post(place, confirmed).status == 303
    wait_until(lambda: [each.broker_name for each in admin.describe_topic(topic).settings] == ["broker-b"])


def test_each_kind_of_topic_is_created_and_gets_its_messages(
    visitor: ConsoleVisitor, admin: Admin, new_name: Callable[[], str]
) -> None:
    fifo, compacted = new_name(), new_name()
    use(visitor, "/create-topic", name=fifo, queues="1", fifo="1", retention_bytes="1GiB")
    use(visitor, "/create-topic", name=compacted, queues="1", compact="1")
    [settings, _] = admin.describe_topic(fifo).settings
    assert (settings.fifo, settings.retention_bytes) == (True, 1 << 30)
    assert all(each.compaction is not None for each in admin.describe_topic(compacted).settings)

    assert "Message group" in visitor.get(f"/topics/{fifo}/produce").text
    assert fill_in(visitor, f"/topics/{fifo}/produce", body="x", message_group="g" * 65).status == 400
    use(visitor, f"/topics/{fifo}/produce", body="x", message_group="o-17")
    assert "Message group" not in visitor.get(f"/topics/{compacted}/produce").text
    use(visitor, f"/topics/{compacted}/produce", body="x", key="o-17")
    described = fill_in(visitor, f"/topics/{compacted}/produce", body="", key="o-17")
    assert "a tombstone: deletes its key" in described.text
    changed = visitor.post(f"/topics/{compacted}/produce", confirmation_of(described) | {"step": "fill"})
    assert 'name="key" value="o-17"' in changed.text
    assert visitor.post(f"/topics/{compacted}/produce", confirmation_of(described)).status == 303
    assert [admin.describe_topic(name).messages for name in (fifo, compacted)] == [1, 2]
    for name in (fifo, compacted):
        admin.delete_topic(name)


def test_a_topic_is_resized(visitor: ConsoleVisitor, admin: Admin, topic: str) -> None:
    assert 'value="4"' in visitor.get(f"/topics/{topic}/resize").text
    done = use(visitor, f"/topics/{topic}/resize", queues="6")
    assert rows_of(done)[f"read queues of {topic} on broker-a"] == ("4", "6", "")
    assert [each.write_queues for each in admin.describe_topic(topic).settings] == [6, 6]


def test_an_action_that_takes_long_is_followed_on_its_page(
    visitor: ConsoleVisitor, admin: Admin, topic: str, audit: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, going_on, change = f"/topics/{topic}/resize", threading.Event(), Admin.update_topic

    def hang(self: Admin, *args: Any, **named: Any) -> object:
        going_on.wait(60)
        return change(self, *args, **named)

    monkeypatch.setattr(Admin, "update_topic", hang)
    place = visitor.post(address, confirmation_of(fill_in(visitor, address, queues="6"))).headers["Location"]
    try:
        assert 'data-state="under-way"' in visitor.get(place).text
        assert audit() == []
    finally:
        going_on.set()
    wait_until(lambda: 'data-state="done"' in visitor.get(place).text)
    assert [each.read_queues for each in admin.describe_topic(topic).settings] == [6, 6]
    assert len(audit()) == 1


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
    [row] = rows_of(described).values()
    assert row[:2] == ("3", f"sent to {topic}")
    confirmed = confirmation_of(described)
    places = {visitor.post(f"/dead-letters/{group}/resend", confirmed).headers["Location"] for _ in range(2)}
    assert len(places) == 1
    assert rows_of(visitor.get(places.pop()))[f"dead letters of {group} resent"][1] == "3"
    assert admin.describe_topic(topic).messages == stored + 3
    assert list(admin.dead_letters(group)) == []
    assert len(audit()) == 1


def test_dead_letters_are_dropped_one_by_one_or_all(
    visitor: ConsoleVisitor, cluster: LocalCluster, admin: Admin, producer: Producer, topic: str, group: str
) -> None:
    make_dead_letters(cluster, producer, topic, group, 3)
    [one, *_] = visitor.json(f"/dead-letters/{group}")["letters"]
    [link] = [each["address"] for each in one["actions"] if each["action"] == "delete-letters"]
    described = visitor.get(link)
    assert [row[0] for row in rows_of(described).values()] == ["1"]
    done = visitor.post(link.partition("?")[0], confirmation_of(described, group))
    assert rows_of(visitor.get(done.headers["Location"]))[f"dead letters of {group} deleted"][1] == "1"
    use(visitor, f"/dead-letters/{group}/delete", typed=group)
    assert list(admin.dead_letters(group)) == []
    assert rows_of(fill_in(visitor, f"/dead-letters/{group}/resend")) == {}


def test_a_dead_letter_of_a_later_time_is_not_among_those_confirmed(
    visitor: ConsoleVisitor, cluster: LocalCluster, admin: Admin, producer: Producer, topic: str, group: str
) -> None:
    make_dead_letters(cluster, producer, topic, group, 1)
    described = fill_in(visitor, f"/dead-letters/{group}/delete")
    make_dead_letters(cluster, producer, topic, group, 2, already=1)
    visitor.post(f"/dead-letters/{group}/delete", confirmation_of(described, group))
    assert len(list(admin.dead_letters(group))) == 2
    admin.delete_dead_letters(group, all=True)
    described = fill_in(visitor, f"/dead-letters/{group}/delete")
    assert rows_of(described) == {}
    make_dead_letters(cluster, producer, topic, group, 1)
    visitor.post(f"/dead-letters/{group}/delete", confirmation_of(described, group))
    assert len(list(admin.dead_letters(group))) == 1


def test_dead_letters_that_cannot_be_counted_in_time_are_described_all_the_same(
    visitor: ConsoleVisitor,
    cluster: LocalCluster,
    admin: Admin,
    producer: Producer,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_dead_letters(cluster, producer, topic, group, 2)
    monkeypatch.setattr(actions, "_PLAN_TIME_SHARE", 0.0)
    address = f"/dead-letters/{group}/delete"
    assert "at least: others could not be counted in time" in fill_in(visitor, address).text
    use(visitor, address, typed=group)
    assert list(admin.dead_letters(group)) == []


def test_the_retention_of_a_topic_is_changed(visitor: ConsoleVisitor, admin: Admin, topic: str) -> None:
    address = f"/topics/{topic}/change"
    assert "nothing to change" in fill_in(visitor, address).text
    assert "give a time such as 12h" in fill_in(visitor, address, retention="12 moons").text
    described = fill_in(visitor, address, retention="12h", retention_bytes="10MiB")
    now, then, _ = rows_of(described)[f"retention of {topic} on broker-a"]
    assert (now, then) == ("that of the broker", "12h 0m")
    use(visitor, address, retention="12h", retention_bytes="10MiB")
    settings = admin.describe_topic(topic).settings
    assert [(each.retention_s, each.retention_bytes) for each in settings] == [(43_200.0, 10 << 20)] * 2
    use(visitor, address, retention="default")
    assert [each.retention_s for each in admin.describe_topic(topic).settings] == [0.0, 0.0]


def test_sending_and_reading_are_paused(visitor: ConsoleVisitor, admin: Admin, topic: str) -> None:
    address = f"/topics/{topic}/pause"
    assert '<option value="read-write" selected>' in visitor.get(address).text
    described = fill_in(visitor, address, permission="read")
    row = ("read-write", "read", "producers cannot send")
    assert rows_of(described)[f"permission of {topic} on broker-a"] == row
    for permission in ("READ", "WRITE", "NONE", "READ_WRITE"):
        use(visitor, address, permission=permission.lower().replace("_", "-"))
        labels = {each["label"] for each in visitor.json(f"/topics/{topic}")["actions"]}
        assert ("Pause sending" in labels) is bool(Permission[permission] & Permission.WRITE)
        assert ("Resume reading" in labels) is not bool(Permission[permission] & Permission.READ)
        assert {each.permission for each in admin.describe_topic(topic).settings} == {Permission[permission]}


def test_a_broker_is_paused(visitor: ConsoleVisitor, admin: Admin) -> None:
    page = wait_until(lambda: visitor.json("/")["replicas"])
    assert [each["label"] for each in page[1]["actions"]] == ["Pause sending", "Pause reading"]
    assert list(rows_of(visitor.get(page[1]["actions"][0]["address"]))) == ["permission of broker-b"]
    try:
        use(visitor, "/brokers/broker-b/pause", permission="read")
        assert {each.report.permission for each in admin.broker_status() if each.report} == {
            Permission.READ,
            Permission.READ_WRITE,
        }
    finally:
        admin.set_broker_permission("broker-b", Permission.READ_WRITE)
    assert visitor.get("/brokers/no-such/pause").status == 400


def test_a_topic_is_deleted_once_its_name_is_typed(
    visitor: ConsoleVisitor,
    cluster: LocalCluster,
    admin: Admin,
    producer: Producer,
    topic: str,
    group: str,
    audit: Callable[[], list[str]],
) -> None:
    producer.send_many([Message(topic, b"x") for _ in range(1_200)])
    with PullConsumer(cluster.nameserver, group=group, start="earliest") as consumer:
        consumer.subscribe(topic)
        consumer.poll(10)
        consumer.commit()
    address = f"/topics/{topic}/delete"
    wait_until(lambda: group in visitor.get(address).text)
    described = visitor.get(address)
    rows = rows_of(described)
    stored = [int(rows[f"messages of {topic} on broker-{each}"][0].replace(",", "")) for each in "ab"]
    assert sum(stored) == 1_200
    assert f"unread by group {group}" in rows

    mistyped = visitor.post(address, confirmation_of(described, "orders"))
    assert mistyped.status == 400
    assert f"type {topic}" in mistyped.text
    assert topic in admin.list_topics()
    assert visitor.post(address, confirmation_of(mistyped, topic)).status == 303
    assert topic not in admin.list_topics()
    assert [line.partition("result=")[2].split()[0] for line in audit()] == ["rejected", "done"]
    assert visitor.get(address).status == 404


def test_offsets_are_reset(
    visitor: ConsoleVisitor, cluster: LocalCluster, admin: Admin, producer: Producer, topic: str, group: str
) -> None:
    address = f"/groups/{group}/reset"
    queue = MessageQueue(topic, "broker-a", 0)
    for _ in range(100):
        producer.send(Message(topic, b"x"), queue=queue)
    with PullConsumer(cluster.nameserver, group=group, start="earliest") as consumer:
        consumer.subscribe(topic)
        wait_until(lambda: consumer.poll(0.1))
        consumer.commit()
        rejected = fill_in(visitor, address, topic=topic, to="earliest")
        assert "members of group" in rejected.text
        warned = fill_in(visitor, address, topic=topic, to="earliest", force="1")
        assert rows_of(warned)["connected members"][0] == "1"

    described = fill_in(visitor, address, topic=topic, to="earliest")
    assert rows_of(described)[str(queue)] == ("100", "0", "100 delivered again")
    assert admin.committed_offsets(group, topic)[queue] == 100
    use(visitor, address, typed=group, topic=topic, to="earliest")
    assert admin.committed_offsets(group, topic)[queue] == 0

    assert "it must be" in fill_in(visitor, address, topic=topic, to="yesterday").text
    assert "empty" in fill_in(visitor, address, topic=topic, to="").text
    assert "is not in" in fill_in(visitor, address, topic=topic, to="500").text
    described = fill_in(visitor, address, topic=topic, to="40", queue="broker-a:0")
    assert "40 skipped without delivery" in described.text
    use(visitor, address, typed=group, topic=topic, to="40", queue="broker-a:0")
    assert admin.committed_offsets(group, topic)[queue] == 40
    use(visitor, address, typed=group, topic=topic, to="-1h")
    assert admin.committed_offsets(group, topic)[queue] == 0
    use(visitor, address, typed=group, topic=topic, to="latest")
    assert admin.committed_offsets(group, topic)[queue] == 100


def test_a_group_is_deleted(
    visitor: ConsoleVisitor, cluster: LocalCluster, admin: Admin, producer: Producer, topic: str, group: str
) -> None:
    producer.send(Message(topic, b"x"))
    with PullConsumer(cluster.nameserver, group=group, start="earliest") as consumer:
        consumer.subscribe(topic)
        wait_until(lambda: consumer.poll(0.1))
        rejected = fill_in(visitor, f"/groups/{group}/delete")
        assert rejected.status == 409
        assert "are connected" in rejected.text
        consumer.commit()
    use(visitor, f"/groups/{group}/delete", typed=group)
    assert group not in admin.list_groups()


def test_a_message_is_sent_once(
    visitor: ConsoleVisitor, admin: Admin, topic: str, audit: Callable[[], list[str]]
) -> None:
    address = f"/topics/{topic}/produce"
    body = "first\r\n<b>secret</b>"
    described = fill_in(visitor, address, body=body, key="o-17", tag="paid", properties="region=eu\r\nlane=2")
    assert "19 bytes" in described.text
    assert "<b>" not in described.text
    confirmed = confirmation_of(described)
    with ThreadPoolExecutor(4) as threads:
        sent = list(threads.map(lambda _: ConsoleVisitor.post(visitor, address, confirmed), range(4)))
    assert {each.status for each in sent} == {303}
    [place] = {each.headers["Location"] for each in sent}
    assert admin.describe_topic(topic).messages == 1
    [to] = re.findall(r'id="go-on" href="([^"]+)"', visitor.get(place).text)
    stored = visitor.json(to)
    assert (stored["message"]["keys"], stored["message"]["tag"]) == (["o-17"], "paid")
    assert stored["properties"] == {"region": "eu", "lane": "2"}
    assert visitor.get(f"{to}/body").text == "first\n<b>secret</b>"
    [line] = audit()
    assert "secret" not in line
    assert "region" not in line
    assert "o-17" in line
    changed = visitor.post(address, {**confirmed, "step": "fill"})
    assert "&lt;b&gt;secret" in changed.text
    forgotten = visitor.post(address, {**confirmed, "step": "fill", "confirm": "forgotten"})
    assert forgotten.status == 400, "nothing tells what was filled in"
    assert "open the form again" in forgotten.text

    use(visitor, address, body="00 ff", form="hex")
    assert admin.describe_topic(topic).messages == 2
    for wrong in (
        {"body": "0g", "form": "hex"},
        {"body": "x", "properties": "region"},
        {"body": "x", "properties": "a=1\na=2"},
        {"body": "x", "delay": "soon"},
        {"body": "x", "delay": "400d"},
        {"body": "x", "tag": "t" * 256},
        {"body": "x" * 200_001},
        {"body": "x", "key": "a\0b"},
    ):
        assert fill_in(visitor, address, **wrong).status == 400, wrong
    assert admin.describe_topic(topic).messages == 2
    assert visitor.get("/topics/%25DLQ%25g/produce").status == 400


def test_a_delayed_message_is_recalled(visitor: ConsoleVisitor, admin: Admin, topic: str) -> None:
    done = use(visitor, f"/topics/{topic}/produce", body="later", delay="1h")
    assert "waits on" in done
    [waiting] = visitor.json(f"/delayed/{topic}")["waiting"]
    [link] = [each["address"] for each in waiting["actions"]]
    described = visitor.get(link)
    assert next(iter(rows_of(described))).startswith(f"message for {topic} on ")
    place = visitor.post(link.partition("?")[0], confirmation_of(described)).headers["Location"]
    assert "recalled" in visitor.get(place).text
    assert list(admin.delayed_messages(topic)) == []
    handle = dict(parse_qsl(urlsplit(link).query))["handle"]
    assert "of topic" in fill_in(visitor, "/delayed/other/recall", handle=handle).text
    assert "no recall handle" in fill_in(visitor, f"/delayed/{topic}/recall", handle="<b>").text


@pytest.mark.parametrize(("resolution", "count"), [("commit", 1), ("rollback", 0)])
def test_a_transaction_is_ended_by_hand(
    visitor: ConsoleVisitor, cluster: LocalCluster, admin: Admin, topic: str, group: str, resolution: str, count: int
) -> None:
    with TransactionalProducer(
        cluster.nameserver, group=group, check=lambda _: TransactionResolution.UNKNOWN
    ) as producer:
        transaction = producer.transaction()
        with suppress(TransactionEnded), transaction as begun:
            begun.send(Message(topic, b"half"))
            [row] = visitor.json(f"/transactions?group={group}")["transactions"]
            [offer] = [each for each in row["actions"] if each["action"] == f"{resolution}-transaction"]
            assert visitor.get(offer["address"]).status == 200
            done = use(visitor, offer["address"])
            assert ("committed" if count else "rolled back") in done
    wait_until(lambda: admin.describe_topic(topic).messages == count)
    assert "it has ended before" in visitor.get(offer["address"]).text
    assert "whole number" in visitor.get(f"/transactions/{group}/x/commit").text


def test_a_replica_is_promoted(tmp_path: Path) -> None:
    with (
        LocalCluster(1, 1, data_dir=tmp_path) as cluster,
        Admin(cluster.nameserver) as admin,
        serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2, allow_changes=True) as served,
    ):
        visitor = ConsoleVisitor(served.address)

        def roles() -> dict[int, str]:
            reports = [each.report.replication for each in admin.broker_status() if each.report is not None]
            return {each.replica_id: each.role for each in reports}

        before = wait_until(lambda: roles() if sorted(roles().values()) == ["master", "slave"] else {})
        [slave] = [number for number, role in before.items() if role == "slave"]
        wait_until(lambda: f"replica {slave}" in visitor.get("/").text)
        wait_until(lambda: "not in sync" not in visitor.get("/brokers/broker-a/promote").text)
        described = fill_in(visitor, "/brokers/broker-a/promote", replica=str(slave))
        assert rows_of(described)["master of broker-a"][1] == f"replica {slave}"
        assert fill_in(visitor, "/brokers/broker-a/promote", replica="17").status == 400
        confirmed = visitor.post("/brokers/broker-a/promote", confirmation_of(described, "broker-a"))
        assert confirmed.status == 303, confirmed.text
        wait_until(lambda: 'data-state="done"' in visitor.get(confirmed.headers["Location"]).text)
        wait_until(lambda: roles().get(slave) == "master")
