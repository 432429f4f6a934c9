"""The JSON API of the console: operations at addresses of their own, and the document that describes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq.cli.console import serving_console
from minimq_console.json_api import openapi
from support.console_visitor import ConsoleVisitor

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def visitor(cluster: LocalCluster) -> Iterator[ConsoleVisitor]:
    with serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2, allow_changes=True) as served:
        yield ConsoleVisitor(served.address)


def call(visitor: ConsoleVisitor, path: str, status: int = 200, **parameters: Any) -> Any:
    headers = {"Content-Type": "application/json", "Origin": visitor.address, "Sec-Fetch-Site": "same-origin"}
    reply = visitor._ask("POST", f"/api/{path}", json.dumps(parameters).encode(), headers)
    assert reply.status == status, reply.text
    return json.loads(reply.text)


def test_a_topic_from_its_creation_to_its_end(
    visitor: ConsoleVisitor, admin: Admin, producer: Producer, new_name: Callable[[], str]
) -> None:
    name = new_name()
    planned = call(visitor, "topic/create", name=name, queues=2, dry_run=True)
    assert f"Creates the topic {name} with 2 queues" in planned["changes"][0]
    assert name not in admin.list_topics()
    made = call(visitor, "topic/create", name=name, queues=2, retention_s="7d")
    assert made == {"result": {"topic": name, "created": True, "away": []}, "notes": [], "complete": True}
    compacted = call(visitor, "topic/create", name=new_name(), compaction={"min_lag_s": 5.0}, dry_run=True)
    assert "compacted" in compacted["changes"][0]
    producer.send(Message(name, b"x"))
    described = call(visitor, "topic/describe", name=name)["result"]
    assert (described["messages"], described["brokers"][0]["retention_s"]) == (1, 604_800.0)
    assert name in [each["topic"] for each in call(visitor, "topic/list")["result"]]

    assert "dry_run" in call(visitor, "topic/delete", 400, name=name)["message"]
    assert "1 message" in call(visitor, "topic/delete", name=name, dry_run=True)["changes"][0]
    call(visitor, "topic/delete", name=name, yes=True)
    assert call(visitor, "topic/describe", 404, name=name)["error"] == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "takes name"),
        ({"name": "a/b"}, "illegal topic name"),
        ({"name": 1.5, "queues": True}, "queues is True"),
        ({"name": "x", "queues": 0}, "1 to 1024"),
        ({"name": "x", "brokers": "broker-a"}, "not a list"),
        ({"name": "x", "compaction": {"more": 1}}, "not an object"),
        ({"name": "x", "permission": "all"}, "must be one of"),
        ({"name": "x", "wait": False}, "no parameter 'wait'"),
    ],
)
def test_wrong_parameters_are_refused(visitor: ConsoleVisitor, wrong: dict[str, Any], said: str) -> None:
    assert said in call(visitor, "topic/create", 400, **wrong)["message"]


def test_what_is_no_json_or_of_another_site_is_refused(visitor: ConsoleVisitor, admin: Admin, topic: str) -> None:
    assert visitor.post("/api/topic/delete", {"name": topic, "yes": "1"}).status == 400
    headers = {"Content-Type": "application/json", "Origin": "https://elsewhere.example"}
    body = json.dumps({"name": topic, "yes": True}).encode()
    assert visitor._ask("POST", "/api/topic/delete", body, headers).status == 403
    assert topic in admin.list_topics()


def test_a_console_that_only_reads_changes_nothing(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    with serving_console(cluster.nameserver, "127.0.0.1", 0) as served:
        visitor = ConsoleVisitor(served.address)
        assert "--allow-changes" in call(visitor, "topic/delete", 403, name=topic, yes=True)["message"]
        assert call(visitor, "topic/describe", name=topic)["result"]["topic"] == topic
    assert topic in admin.list_topics()


def test_the_document_describes_every_operation(visitor: ConsoleVisitor) -> None:
    document = visitor.json("/api/openapi.json")
    assert document == json.loads(json.dumps(openapi()))
    [create] = document["paths"]["/api/topic/create"].values()
    schema = create["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["name"]
    assert schema["properties"]["queues"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 1024,
        "description": "Queues on each broker, 1 to 1024.",
    }
    assert {"/api/cluster/status", "/api/group/reset-offset", "/api/route"} <= document["paths"].keys()
    for path, operation in document["paths"].items():
        assert operation["post"]["summary"].endswith("."), path
        for name, each in operation["post"]["requestBody"]["content"]["application/json"]["schema"][
            "properties"
        ].items():
            assert each["description"], (path, name)
