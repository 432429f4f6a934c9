"""The JSON API of the console: operations at addresses of their own, and the document that describes them."""

from __future__ import annotations

import functools
import json
import logging
import operator
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq_cli.console import serving_console
from minimq_common.errors import Unavailable
from minimq_console import answers
from minimq_console.action_runs import MAX_UNDER_WAY
from minimq_console.console import MAX_READS
from minimq_console.json_api import openapi
from support.cases import for_each
from support.console_actions import make_dead_letters
from support.console_visitor import ConsoleVisitor

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def visitor(cluster: LocalCluster) -> Iterator[ConsoleVisitor]:
    with serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2, allow_changes=True) as served:
        yield ConsoleVisitor(served.address)


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the results of changes that were asked for."""
    caplog.set_level(logging.INFO, "minimq.audit")
    return lambda: [
        each.getMessage().partition("result=")[2].split()[0] for each in caplog.records if each.name == "minimq.audit"
    ]


def call(visitor: ConsoleVisitor, path: str, status: int = 200, **parameters: Any) -> Any:
    return send(visitor, path, json.dumps(parameters).encode(), status)


def send(visitor: ConsoleVisitor, path: str, body: bytes, status: int) -> Any:
    headers = {"Content-Type": "application/json", "Origin": visitor.address, "Sec-Fetch-Site": "same-origin"}
    reply = visitor._ask("POST", f"/api/{path}", body, headers)
    assert reply.status == status, reply.text
    assert reply.headers["Content-Type"] == "application/json"
    return json.loads(reply.text)


def test_a_topic_from_its_creation_to_its_end(
    visitor: ConsoleVisitor, admin: Admin, producer: Producer, new_name: Callable[[], str]
) -> None:
    name = new_name()
    planned = call(visitor, "topic/create", name=name, queues=2, dry_run=True)
    row = {"what": f"{name} on broker-a", "now": None, "then": "2 queues, read-write", "note": ""}
    assert (planned["result"][0], planned["complete"], planned["asks"]) == (row, True, "")
    assert name not in admin.list_topics()
    made = call(visitor, "topic/create", name=name, queues=2, retention_s="7d")
    assert made["result"][0]["then"] == "2 queues, read-write, kept for 7d 0h"
    assert call(visitor, "topic/create", 409, name=name, queues=3)["error"] == "TOPIC_EXISTS"
    compacted = call(visitor, "topic/create", name=new_name(), compaction=True, dry_run=True)
    assert "compacted" in compacted["result"][0]["then"]
    producer.send(Message(name, b"x"))
    described = call(visitor, "topic/describe", name=name)["result"]
    assert (described["messages"], described["brokers"][0]["retention_s"]) == (1, 604_800.0)
    assert name in [each["topic"] for each in call(visitor, "topic/list")["result"]]

    assert "dry_run" in call(visitor, "topic/delete", 400, name=name)["message"]
    assert sum(each["now"] for each in call(visitor, "topic/delete", name=name, dry_run=True)["result"]) == 1
    call(visitor, "topic/delete", name=name, yes=True)
    assert call(visitor, "topic/describe", 404, name=name)["error"] == "TOPIC_NOT_FOUND"


def test_a_reset_is_checked_as_the_command_checks_it(
    visitor: ConsoleVisitor, admin: Admin, producer: Producer, topic: str, group: str
) -> None:
    asked: dict[str, Any] = {"group": group, "topic": topic, "to": "earliest"}
    assert call(visitor, "group/reset-offset", 404, **asked)["error"] == "GROUP_NOT_FOUND"
    assert group not in admin.list_groups()
    made = call(visitor, "group/reset-offset", new=True, **asked)["result"]
    assert {each["now"] for each in made} == {None}
    again = call(visitor, "group/reset-offset", **asked)["result"]
    assert {(each["now"], each["then"]) for each in again} == {(0, 0)}
    for queue in admin.route(topic).read_queues():
        producer.send(Message(topic, b"unread"), queue=queue)
    ahead = {**asked, "to": "latest"}
    assert "may lose data" in call(visitor, "group/reset-offset", 400, **ahead)["message"]
    assert "skip messages?" in call(visitor, "group/reset-offset", dry_run=True, **ahead)["asks"]
    assert set(admin.committed_offsets(group, topic).values()) == {0}
    skipped = call(visitor, "group/reset-offset", yes=True, **ahead)["result"]
    assert {(each["now"], each["then"]) for each in skipped} == {(0, 1)}
    assert call(visitor, "group/reset-offset", **asked)["complete"]


@for_each(
    ("wrong", "said"),
    [
        ({}, "missing required field `name`"),
        ({"name": "a/b"}, "illegal topic name"),
        ({"name": 1.5, "queues": True}, "`$.queues`"),
        ({"name": "x", "queues": 0}, "Expected `int` >= 1 - at `$.queues`"),
        ({"name": "x", "brokers": "broker-a"}, "Expected `array`"),
        ({"name": "x", "permission": "all"}, "Invalid enum value 'all'"),
        ({"name": "x", "wait": False}, "unknown field `wait`"),
        ({"name": "x", "yes": True}, "unknown field `yes`"),
        ({"name": None}, "got `null` - at `$.name`"),
        ({"name": "x", "fifo": "false"}, "Expected `bool`, got `str` - at `$.fifo`"),
        ({"name": "x", "dry_run": 1}, "Expected `bool`, got `int` - at `$.dry_run`"),
        ({"name": "x", "dry_run": None}, "Expected `bool`, got `null` - at `$.dry_run`"),
    ],
)
def test_wrong_parameters_are_rejected(visitor: ConsoleVisitor, wrong: dict[str, Any], said: str) -> None:
    assert said in call(visitor, "topic/create", 400, **wrong)["message"]


def test_dead_letters_are_dropped_only_by_choice(
    visitor: ConsoleVisitor, cluster: LocalCluster, admin: Admin, producer: Producer, topic: str, group: str
) -> None:
    make_dead_letters(cluster, producer, topic, group, 2)
    for wrong, said in (
        ({"yes": True}, "all is not given"),
        ({"dry_run": True}, "all is not given"),
        ({"yes": True, "all": True, "key": "k"}, "all excludes"),
        ({"yes": "false", "all": True}, "`$.yes`"),
        ({"yes": 1, "all": True}, "got `int` - at `$.yes`"),
        ({"yes": None, "all": True}, "got `null` - at `$.yes`"),
        ({"yes": False, "all": True}, "may lose data"),
        ({"yes": True, "all": "true"}, "`$.all`"),
    ):
        assert said in call(visitor, "dlq/delete", 400, group=group, **wrong)["message"], wrong
    assert "all is not given" in call(visitor, "dlq/resend", 400, group=group)["message"]
    assert len(list(admin.dead_letters(group))) == 2
    assert call(visitor, "dlq/delete", group=group, all=True, yes=True)["result"][0]["then"] == 2


@pytest.mark.parametrize(
    ("method", "path", "parameters", "most"),
    [("count_dead_letters", "dlq/list", {}, MAX_READS), ("create_topic", "topic/create", {"name": "x"}, MAX_UNDER_WAY)],
)
def test_those_that_hang_hold_up_no_others_and_are_bounded(
    visitor: ConsoleVisitor,
    new_name: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    parameters: dict[str, str],
    most: int,
) -> None:
    going_on, under_way = threading.Event(), threading.Semaphore(0)

    def hang(*_args: object, **_named: object) -> object:
        under_way.release()
        going_on.wait(60)
        raise Unavailable("it went on")

    monkeypatch.setattr(Admin, method, hang)
    with ThreadPoolExecutor(most) as programs:
        try:
            hanging = [programs.submit(call, visitor, path, 503, **parameters) for _ in range(most)]
            for _ in hanging:
                assert under_way.acquire(timeout=60)
            assert f"{most} requests" in call(visitor, path, 503, **parameters)["message"]
            assert visitor.get("/topics").status == 200
            if method == "count_dead_letters":
                call(visitor, "topic/create", name=new_name())
            else:
                call(visitor, "topic/list")
        finally:
            going_on.set()
        assert {each.result()["message"] for each in hanging} == {"it went on"}


def test_a_change_that_is_done_leaves_a_line_and_a_dry_run_none(
    visitor: ConsoleVisitor, new_name: Callable[[], str], audit: Callable[[], list[str]]
) -> None:
    name = new_name()
    call(visitor, "topic/create", name=name, dry_run=True)
    call(visitor, "topic/list")
    assert audit() == []
    call(visitor, "topic/create", name=name)
    assert audit() == ["done"]
    call(visitor, "topic/delete", name=name, yes=True)
    assert audit() == ["done", "done"]


def test_what_was_not_done_is_an_error(visitor: ConsoleVisitor) -> None:
    assert "no name server remembers" in call(visitor, "cluster/delete-broker", 400, broker_name="broker-x")["message"]


def test_addresses_without_an_operation_are_answered_as_json(visitor: ConsoleVisitor) -> None:
    assert call(visitor, "topic/nothing", 404)["message"]
    for path, status in (("/api/topic/create", 405), ("/api/nothing", 404)):
        reply = visitor.get(path)
        assert (reply.status, reply.headers["Content-Type"]) == (status, "application/json")
        assert json.loads(reply.text)["error"]
        assert status == 404 or "by POST requests" in json.loads(reply.text)["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" * 100_000, "Expected `object`, got `array`"),
        (b'{"name": ' + b"[" * 100_000, "got `array` - at `$.name`"),
        (b'{"name": ' + b"[" * 500 + b"]" * 500 + b"}", "got `array` - at `$.name`"),
        (b'{"brokers": [{}], "name": "x"}', "Expected `str`, got `object` - at `$.brokers[0]`"),
        (b'{"name": NaN}', "invalid character (byte 9)"),
        (b'{"name": NaN, "queues": ' + b"9" * 5_000 + b"}", "invalid character (byte 9)"),
        (b'{"name": "\xff"}', "topic create: "),
        (b'{"name": "' + b"x" * 1_000 + b'", "queues": }', "invalid character (byte 1023)"),
        (b'{"name": "a\nb"}', "invalid character (byte 11)"),
        (b"{", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `name`"),
    ],
)
def test_a_body_that_is_malformed_or_nested_is_rejected_and_told_where(
    visitor: ConsoleVisitor, caplog: pytest.LogCaptureFixture, body: bytes, said: str
) -> None:
    caplog.set_level(logging.WARNING, "minimq.audit")
    answer = send(visitor, "topic/create", body, 400)
    assert answer["error"] == "INVALID_ARGUMENT"
    assert said in answer["message"]
    assert len(answer["message"]) < 350
    assert "Traceback" not in caplog.text
    [line] = [each.getMessage() for each in caplog.records if each.name == "minimq.audit"]
    assert f"given={{'body': {body[:100].decode(errors='backslashreplace')!r}"[:100] in line
    assert len(line) < 1_000
    assert line.isprintable()


def test_what_is_no_json_or_of_another_site_is_rejected(visitor: ConsoleVisitor, admin: Admin, topic: str) -> None:
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
    document = json.loads(visitor.get("/api/openapi.json").text)
    assert document == json.loads(json.dumps(openapi()))
    [create] = document["paths"]["/api/topic/create"].values()
    schema = create["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["name"]
    assert schema["properties"]["queues"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 1024,
        "default": 8,
        "description": "Queues on each broker, 1 to 1024.",
    }
    assert {"/api/cluster/status", "/api/group/reset-offset", "/api/route"} <= document["paths"].keys()
    for path, operation in document["paths"].items():
        assert operation["post"]["summary"].endswith("."), path
        for name, each in operation["post"]["requestBody"]["content"]["application/json"]["schema"][
            "properties"
        ].items():
            assert each["description"], (path, name)


def test_the_document_is_one_of_openapi() -> None:
    """It has what generators of clients and tests of contracts need."""
    document: Any = openapi("/console")
    assert document["openapi"] == "3.1.0"
    assert (document["info"].keys(), document["servers"]) == ({"title", "version"}, [{"url": "/console"}])
    assert document["security"] == [{"bearer": []}, {}]
    assert document["components"]["securitySchemes"]["bearer"].items() >= {"type": "http", "scheme": "bearer"}.items()
    places = re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document))
    for place in set(places):
        functools.reduce(operator.getitem, place.split("/"), document)
    described = {path: each["post"] for path, each in document["paths"].items()}
    assert len({each["operationId"] for each in described.values()}) == len(described)
    failures = {"400", "401", "403", "404", "409", "500", "502", "503", "504"}
    assert failures >= {str(status) for status in answers._STATUS.values()}
    for status in failures:
        failure = document["components"]["responses"][status]
        assert failure["description"]
        assert failure["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
    assert document["components"]["schemas"]["Error"]["required"] == ["error", "message"]
    for path, each in described.items():
        assert each["responses"].keys() == {"200", *failures}, path
        assert all(each["responses"][status] == {"$ref": f"#/components/responses/{status}"} for status in failures)
        body = each["requestBody"]["content"]["application/json"]["schema"]
        assert each["requestBody"]["required"] == bool(body["required"])
        jsonschema.Draft202012Validator.check_schema(body)
        for name, schema in body["properties"].items():
            if "default" in schema:
                jsonschema.validate(schema["default"], {key: schema[key] for key in schema if key != "$ref"})
                assert name not in body["required"]
