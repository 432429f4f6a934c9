"""The pages of the console, by HTTP, on a running cluster."""

from __future__ import annotations

import hashlib
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import minimq_console
from minimq.admin.admin import Admin
from minimq.consumer import PullConsumer
from minimq.local.local_cluster import LocalCluster
from minimq.producer import Producer
from minimq_common.model import Message
from support.cases import for_each
from support.console_visitor import ConsoleVisitor
from support.waiting import wait_until

HOSTILE = '<script>alert("x")</script>'


def complete(console: ConsoleVisitor, path: str) -> dict[str, Any]:
    """Return the page as soon as nothing is missing: a busy machine may need a second look."""

    def look() -> dict[str, Any]:
        page: dict[str, Any] = console.data(path)
        return {} if page["missing"] else page

    return wait_until(look)


def test_the_cluster_page_shows_the_brokers_and_a_link_to_its_content(console: ConsoleVisitor) -> None:
    page = complete(console, "/")
    assert [row["broker"] for row in page["replicas"]] == ["broker-a", "broker-b"]
    assert all(row["state"] == "up" for row in page["replicas"])

    html = console.get("/").text
    assert "broker-a" in html
    assert "broker-b" in html
    assert '<a class="skip" href="#main">' in html


def test_topics_are_searched_and_paged_in_the_server(console: ConsoleVisitor, topic: str, admin: Admin) -> None:
    page = complete(console, f"/topics?search={topic}")
    [row] = page["topics"]
    assert row["topic"] == topic
    assert [(each["broker"], each["read_queues"]) for each in row["brokers"]] == [("broker-a", 4), ("broker-b", 4)]
    assert row["brokers"][0]["permission"] == "read-write"

    others = [f"{topic}-{number}" for number in range(7)]
    for name in others:
        admin.create_topic(name, queues=1)
    try:
        seen = []
        for skip in (0, 3, 6):
            page = console.data(f"/topics?search={topic}-&rows=3&skip={skip}")
            assert page["part"] == {"skipped": skip, "shown": min(3, 7 - skip), "total": 7, "rows": 3}
            seen += [row["topic"] for row in page["topics"]]
        assert seen == others
        html = console.get(f"/topics?search={topic}-&rows=3&skip=3").text
        assert f"?search={topic}-&amp;rows=3&amp;skip=6" in html
    finally:
        for name in others:
            admin.delete_topic(name)
    assert "<!doctype html>" not in console.get("/topics?rows=1", HX_Request="true", HX_Target="live").text


def test_messages_are_shown_and_nothing_is_committed(console: ConsoleVisitor, topic: str, producer: Producer) -> None:
    receipt = producer.send(Message(topic, b'{"order": 17}', tag="paid", keys=["o-17"], properties={"region": "eu"}))
    producer.send(Message(topic, b"\x00\x01\xff"))

    page = complete(console, f"/topics/{topic}")
    assert page["topic"]["messages"] == 2
    assert {message["size"] for message in page["messages"]} == {13, 3}
    queue = f"{receipt.queue.broker_name}:{receipt.queue.queue_id}"
    for search in (f"queue={queue}&offset=0", "from=-1h&tag=paid", "key=o-17"):
        [found] = [each for each in console.data(f"/topics/{topic}?{search}")["messages"] if each["tag"]]
        assert (found["message_id"], found["keys"]) == (receipt.message_id, ["o-17"])

    address = f"/topics/{topic}/messages/{receipt.queue.broker_name}/{receipt.queue.queue_id}/0"
    shown = console.data(address)
    assert (shown["way"], shown["body"]) == ("json", '{\n  "order": 17\n}')
    assert shown["properties"] == {"region": "eu"}
    assert console.data(f"{address}?show=hex")["body"].startswith("00000000  7b 22 6f")
    body = console.get(f"{address}/body")
    assert body.body == b'{"order": 17}'
    assert body.headers["Content-Type"] == "application/octet-stream"
    assert body.headers["Content-Disposition"].startswith("attachment")
    assert body.headers["X-Content-Type-Options"] == "nosniff"
    assert console.data("/groups")["part"]["total"] == len(console.data("/groups?rows=100")["groups"])


def test_what_the_cluster_says_is_escaped(console: ConsoleVisitor, topic: str, producer: Producer) -> None:
    producer.send(Message(topic, HOSTILE.encode(), tag="<b>", keys=["<i>"], properties={"<u>": HOSTILE}))
    [message] = console.data(f"/topics/{topic}")["messages"]
    address = f"/topics/{topic}/messages/{message['broker']}/{message['queue']}/{message['offset']}"
    for path in (f"/topics/{topic}", address, f"/topics?search={quote(HOSTILE)}", f"/groups?search={quote(HOSTILE)}"):
        html = console.get(path).text
        assert "<script>alert" not in html
        assert "<b>" not in html
        assert "<i>" not in html
        assert "<u>" not in html


def test_a_group_shows_who_reads_which_queue(
    console: ConsoleVisitor, cluster: LocalCluster, topic: str, group: str, producer: Producer
) -> None:
    producer.send_many([Message(topic, b"%d" % number) for number in range(40)])
    with PullConsumer(cluster.nameserver, group=group, start="earliest") as consumer:
        consumer.subscribe(topic)
        wait_until(lambda: consumer.poll(0.1))
        page = wait_until(lambda: _owned(console, group))
        assert page["lag"] == 40
        assert [member["queues"] for member in page["members"]] == [8]
        listed = wait_until(lambda: console.data(f"/groups?search={group}")["groups"])
        assert listed[0]["members"] == 1


def _owned(console: ConsoleVisitor, group: str) -> dict[str, Any]:
    """Return the page of a group when each of its queues is read; nothing before."""
    is_there = console.get(f"/groups/{group}").status == 200
    page: dict[str, Any] = console.data(f"/groups/{group}") if is_there else {"queues": []}
    return page if page["queues"] and all(queue["owner"] for queue in page["queues"]) else {}


@for_each(
    "path",
    [
        "/topics?rows=0",
        "/topics?rows=101",
        "/topics?skip=-1",
        "/topics?rows=x",
        "/topics?order=size",
        "/topics?search=" + "x" * 1_001,
        "/topics?rows=1&rows=2",
        "/topics/some/messages/broker-a/0/x",
    ],
)
def test_a_parameter_out_of_bounds_is_rejected_with_cause_and_remedy(console: ConsoleVisitor, path: str) -> None:
    failure = console.get(path)
    assert failure.status == 400
    assert "This address cannot be shown" in failure.text


@pytest.mark.parametrize(
    ("page", "name", "value", "message"),
    [
        ("", "from", "yesterday", "it must be 'earliest', a time such as 2026-01-31T08:00Z, -24h"),
        ("", "offset", "abc", "the parameter offset is 'abc': it must be a whole number"),
        ("", "messages", "101", "the parameter messages is 101: it must be 1 to 100"),
        ("", "queue", "broker-a:9", "queue broker-a:9 cannot be read: broker broker-a: no such queue"),
        ("", "offset", "3", "the parameter offset is about one queue"),
        ("/tail", "queue", "broker-a:9", "queue broker-a:9 cannot be read: broker broker-a: no such queue"),
    ],
)
def test_a_form_with_a_wrong_field_stays_and_says_so(
    console: ConsoleVisitor, topic: str, page: str, name: str, value: str, message: str
) -> None:
    path = f"/topics/{topic}{page}?{name}={value}&tag=paid"
    shown = console.get(path)
    assert shown.status == 400
    text = unescape(shown.text)
    assert f'<p class="problem" id="{name}-problem">' in text
    assert message in text
    assert re.search(rf'<input id="{name}" [^>]*value="{value}"[^>]* aria-describedby="{name}-problem">', text)
    assert re.search(r'<input id="tag" [^>]*value="paid"', text)


def test_what_does_not_exist_is_not_found(console: ConsoleVisitor) -> None:
    assert console.get("/topics/no-such-topic").status == 404
    assert console.get("/groups/no-such-group").status == 404
    assert console.get("/nothing").status == 404
    assert console.post("/", {}).status == 405


def test_pages_have_neither_script_nor_style_of_their_own(console: ConsoleVisitor, topic: str) -> None:
    for path in ("/", "/topics", "/groups", f"/topics/{topic}"):
        html = console.get(path).text
        assert "<style" not in html
        assert "style=" not in html
        assert " on" + "click" not in html
        assert html.count("<script") == html.count('<script src="/static/')


@pytest.mark.parametrize("path", ["/", "/topics", "/groups", "/dead-letters", "/delayed", "/transactions"])
def test_each_page_of_the_navigation_has_two_faces(console: ConsoleVisitor, path: str) -> None:
    complete(console, path)
    html = console.get(path, Accept="text/html").text
    assert f'<a href="{path}" aria-current="page">' in html
    with console.events(path) as events:
        name, part = next(events)
    assert name == "part"
    assert "<html" not in part


# ---- The files that a browser loads ------------------------------------------------------------


STATIC = Path(minimq_console.__file__).parent / "static"


def test_the_file_of_another_project_is_the_one_that_was_taken() -> None:
    about = dict(line.split(": ", 1) for line in (STATIC / "htmx.txt").read_text().splitlines())
    assert hashlib.sha256((STATIC / about["file"]).read_bytes()).hexdigest() == about["sha256"]
    assert f'version:"{about["version"]}"' in (STATIC / about["file"]).read_text()
    assert "0BSD" in about["licence"]
    assert "Permission to use" in (STATIC / "htmx.LICENSE.txt").read_text()
