"""Actions of the console, from the form to their effect on the cluster."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import parse_qsl, urlsplit

import pytest

from minimq import Admin, Message, MessageQueue, Producer, PullConsumer, TransactionalProducer, TransactionResolution
from minimq.local.local_cluster import LocalCluster
from minimq_cli.console import serving_console
from minimq_common.errors import TransactionEnded
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
    [one, *_] = visitor.data(f"/dead-letters/{group}")["letters"]
    [link] = [each["address"] for each in one["actions"] if each["action"] == "delete-letters"]
    described = visitor.get(link)
    assert [row[0] for row in rows_of(described).values()] == ["1"]
    done = visitor.post(link.partition("?")[0], confirmation_of(described, group))
    assert rows_of(visitor.get(done.headers["Location"]))[f"dead letters of {group} deleted"][1] == "1"
    use(visitor, f"/dead-letters/{group}/delete", typed=group)
    assert list(admin.dead_letters(group)) == []
    assert rows_of(fill_in(visitor, f"/dead-letters/{group}/resend")) == {}


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


def test_a_message_is_sent_once(
    visitor: ConsoleVisitor, admin: Admin, topic: str, audit: Callable[[], list[str]]
) -> None:
    address = f"/topics/{topic}/produce"
    body = "first\r\n<b>secret</b>"
    described = fill_in(visitor, address, body=body, key="o-17", tag="paid", property_lines="region=eu\r\nlane=2")
    assert "19 bytes" in described.text
    assert "<b>" not in described.text
    confirmed = confirmation_of(described)
    with ThreadPoolExecutor(4) as threads:
        sent = list(threads.map(lambda _: ConsoleVisitor.post(visitor, address, confirmed), range(4)))
    assert {each.status for each in sent} == {303}
    [place] = {each.headers["Location"] for each in sent}
    assert admin.describe_topic(topic).messages == 1
    [to] = re.findall(r'id="go-on" href="([^"]+)"', visitor.get(place).text)
    stored = visitor.data(to)
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

    for wrong in (
        {"body": "x", "property_lines": "region"},
        {"body": "x", "property_lines": "a=1\na=2"},
        {"body": "x", "after": "soon"},
        {"body": "x", "after": "400d"},
        {"body": "x", "tag": "t" * 256},
        {"body": "x" * 200_001},
        {"body": "x", "key": "a\0b"},
    ):
        assert fill_in(visitor, address, **wrong).status == 400, wrong
    assert admin.describe_topic(topic).messages == 1
    assert visitor.get("/topics/%25DLQ%25g/produce").status == 400


def test_a_delayed_message_is_recalled(visitor: ConsoleVisitor, admin: Admin, topic: str) -> None:
    done = use(visitor, f"/topics/{topic}/produce", body="later", after="1h")
    assert "waits on" in done
    [waiting] = visitor.data(f"/delayed/{topic}")["waiting"]
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
            [row] = visitor.data(f"/transactions?group={group}")["transactions"]
            [offer] = [each for each in row["actions"] if each["action"] == f"{resolution}-transaction"]
            assert visitor.get(offer["address"]).status == 200
            done = use(visitor, offer["address"])
            assert ("committed" if count else "rolled back") in done
    wait_until(lambda: admin.describe_topic(topic).messages == count)
    assert "it has ended before" in visitor.get(offer["address"]).text
    assert "whole number" in visitor.get(f"/transactions/{group}/x/commit").text
