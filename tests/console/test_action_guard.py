"""Actions are used by whoever may, as they were described, and once; each request leaves one line."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from minimq import Admin, Credentials, LocalCluster
from minimq.admin.operation import Operation
from minimq.features.delayed.recall_handle import RecallHandle
from minimq_cli.console import serving_console
from minimq_console.actions import ACTIONS
from minimq_console.json_api import OPERATIONS
from minimq_console.parameters import address as address_of
from support.console_actions import confirmation_of, fill_in
from support.console_visitor import ConsoleVisitor
from support.secure_scraping import trust_of
from support.users import Users

pytestmark = pytest.mark.system

HOSTILE = "<script>alert('x')</script>\"><b>"
#: An address of each action, about things that need not be there.
ADDRESSES = [
    address_of(each.form.path, dict.fromkeys(re.findall(r"{(\w+)}", each.form.path), "orders") | {"number": "1"})
    for each in ACTIONS.values()
]


@dataclass(frozen=True)
class Secured:
    """A console of a secured cluster, and one that only reads it."""

    cluster: LocalCluster
    address: str
    reading: str
    keys: dict[str, str] = field(repr=False)
    visitors: dict[tuple[str, str], ConsoleVisitor] = field(default_factory=dict)

    def visitor(self, user: str, address: str = "") -> ConsoleVisitor:
        """Return the visitor of a user, who has signed in to one of the consoles."""
        found = self.visitors.get((user, address))
        if found is None:
            found = self.visitors[user, address] = ConsoleVisitor(address or self.address)
            assert found.sign_in(self.keys[user]).status == 303
        return found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    rights = {
        "reader": ["allow read topic *", "allow read group *", "allow describe cluster"],
        "owner": ["allow manage topic orders*", "allow read topic orders*", "allow manage group billing"],
        "sender": ["allow write topic orders"],
        "operator": ["allow manage cluster"],
        "nobody": [],
    }
    with LocalCluster(1, data_dir=tmp_path_factory.mktemp("actions"), secure=True) as cluster:
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic("orders", queues=1)
            admin.create_topic("payroll", queues=1)
            admin.reset_offset("billing", "orders", "earliest")
        users = Users(cluster)
        texts = {user: users.file.add(user, rules) for user, rules in rights.items()}
        users.wait_in_force()
        keys = {}
        for user, text in texts.items():
            bearer = trust_of(Credentials.from_text(text)).bearer
            assert bearer is not None
            keys[user] = bearer.text
        served = [
            serving_console(
                cluster.nameserver,
                "127.0.0.1",
                0,
                interval_s=0.2,
                credentials=cluster.credentials,
                allow_changes=allow_changes,
                secrets=str(cluster.data_dir / "secrets"),
            )
            for allow_changes in (True, False)
        ]
        with served[0] as changing, served[1] as reading:
            yield Secured(cluster, changing.address, reading.address, keys)


@pytest.fixture(scope="module")
def plain(cluster: LocalCluster) -> Iterator[str]:
    """Return the address of a console that offers actions."""
    with serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2, allow_changes=True) as served:
        yield served.address


@pytest.fixture
def audit(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the results of requests for changes since the last call."""
    caplog.set_level(logging.INFO, "minimq.audit")

    def results() -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.name == "minimq.audit"]
        caplog.clear()
        return [
            line.partition("result=")[2].split()[0] if "an action" in line else "rejected"
            for line in found
            if "an action" in line or "a request was rejected" in line
        ]

    return results


# ---- Who may ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ADDRESSES)
def test_a_console_that_only_reads_rejects_every_action(
    secured: Secured, path: str, audit: Callable[[], list[str]]
) -> None:
    visitor = secured.visitor("owner", secured.reading)
    token = visitor.get("/").token
    audit()
    assert "--allow-changes" in visitor.get(path).text
    assert audit() == []
    for step in ("check", "do"):
        rejected = visitor.post(path, {"token": token, "step": step, "name": "orders-2", "topic": "orders"})
        assert (rejected.status, "--allow-changes" in rejected.text) == (403, True)
        assert audit() == ["rejected"]


def test_the_cluster_rejects_an_action_without_its_right(secured: Secured, audit: Callable[[], list[str]]) -> None:
    visitor = secured.visitor("reader")
    described = fill_in(visitor, "/topics/orders/delete")
    rejected = visitor.post("/topics/orders/delete", confirmation_of(described, "orders"))
    assert (rejected.status, audit()[-1]) == (403, "failed")
    assert "user reader may not manage topic orders" in rejected.text
    assert "orders" in visitor.get("/topics").text


def ask_api(visitor: ConsoleVisitor, path: str, **parameters: object) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json", "Origin": visitor.address, "Sec-Fetch-Site": "same-origin"}
    reply = visitor._ask("POST", f"/api/{path}", json.dumps(parameters).encode(), headers)
    return reply.status, json.loads(reply.text)


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if not each.reads], ids=lambda each: str(each.name))
def test_a_program_without_the_right_changes_nothing(
    secured: Secured, operation: Operation, audit: Callable[[], list[str]]
) -> None:
    given: dict[str, object] = dict.fromkeys((each.name for each in operation.shown if each.is_required), "orders")
    known = {
        "handle": str(RecallHandle("orders", "broker-a", 1, 1)),
        "to": "earliest",
        "permission": "none",
        "broker_name": "broker-a",
        "number": 1,
        "replica_id": 1,
    }
    given |= {name: value for name, value in known.items() if name in given}
    given |= {"all": True} if operation.name.startswith("dlq") else {}
    sure = {"yes": True} if operation.asks else {}
    path = operation.name.replace(" ", "/")
    for user, address in (("nobody", secured.address), ("owner", secured.reading)):
        visitor = secured.visitor(user, address)
        audit()
        status, said = ask_api(visitor, path, **given, **sure)
        assert status in (400, 403, 404), said  # what a user may not see does not exist
        assert audit() in (["rejected"], ["failed"])


# ---- From where ---------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["check", "do"])
def test_a_form_without_the_token_of_its_browser_is_rejected(
    plain: str, admin: Admin, topic: str, step: str, audit: Callable[[], list[str]]
) -> None:
    visitor, other = ConsoleVisitor(plain), ConsoleVisitor(plain)
    path = f"/topics/{topic}/delete"
    confirmed = confirmation_of(visitor.get(path), topic) | {"step": step}
    stolen = other.get(path).token
    for token in ("", "x", stolen, confirmed["token"][:-1], "\N{SNOWMAN}"):
        rejected = visitor.post(path, confirmed | {"token": token})
        assert rejected.status == 403, token
        assert "Nothing was changed" in rejected.text
    del confirmed["token"]
    assert visitor.post(path, confirmed).status == 403
    assert audit() == ["rejected"] * 6
    assert topic in admin.list_topics()


def test_a_form_from_elsewhere_is_rejected(
    plain: str, admin: Admin, topic: str, audit: Callable[[], list[str]]
) -> None:
    visitor = ConsoleVisitor(plain)
    path = f"/topics/{topic}/delete"
    confirmed = confirmation_of(visitor.get(path), topic)
    for headers, status in (
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": plain.replace("127.0.0.1", "localhost")}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
    ):
        sent = {"Sec_Fetch_Site": "same-origin", **headers}
        rejected = visitor.post(path, confirmed, **sent)
        assert (rejected.status, "another site" in rejected.text) == (status, status == 403), headers
        assert audit() == ["rejected"], headers
    assert topic in admin.list_topics()


def test_nobody_who_has_not_signed_in_does_anything(secured: Secured, audit: Callable[[], list[str]]) -> None:
    visitor = ConsoleVisitor(secured.address)
    token = visitor.get("/sign-in").token
    assert visitor.post("/topics/orders/delete", {"token": token, "step": "do"}).status == 401
    assert audit() == ["rejected"]


# ---- What was described, once -------------------------------------------------------------------


def test_only_what_was_described_to_this_browser_is_done(
    plain: str, admin: Admin, topic: str, audit: Callable[[], list[str]]
) -> None:
    visitor, other = ConsoleVisitor(plain), ConsoleVisitor(plain)
    path = f"/topics/{topic}/resize"
    confirmed = confirmation_of(fill_in(visitor, path, queues="5"))
    theirs = confirmation_of(fill_in(other, path, queues="5"))
    for changed in (
        {"queues": "9"},
        {"confirm": ""},
        {"confirm": "x" * 43},
        {"confirm": theirs["confirm"]},
        {"more": "1"},
    ):
        assert visitor.post(path, confirmed | changed).status == 400, changed
        assert audit() == ["rejected"], changed
    elsewhere = visitor.post(f"/topics/{topic}/pause", confirmed)
    assert elsewhere.status == 400
    assert audit() == ["rejected"]
    assert [each.read_queues for each in admin.describe_topic(topic).settings] == [4, 4]

    place = visitor.post(path, confirmed).headers["Location"]
    assert f"write queues of {topic} on broker-a" in visitor.get(place).text
    assert other.get(place).status == 400
    assert topic not in other.get(place).text
    assert visitor.post(path, confirmed).headers["Location"] == place
    assert audit() == ["done"]


def test_an_action_that_fails_is_told_with_all_that_was_filled_in(
    plain: str, admin: Admin, topic: str, audit: Callable[[], list[str]]
) -> None:
    visitor = ConsoleVisitor(plain)
    exists = fill_in(visitor, "/create-topic", name=topic, queues="7")
    assert f"topic {topic} exists" in exists.text
    assert 'value="7"' in exists.text
    name = f"{topic}-made"
    described = fill_in(visitor, "/create-topic", name=name, queues="7")
    admin.create_topic(name, queues=4)
    failed = visitor.post("/create-topic", confirmation_of(described))
    assert failed.status >= 400
    assert 'id="problem"' in failed.text
    assert name in failed.text
    assert 'value="7"' in failed.text
    assert audit() == ["failed"]
    assert [each.read_queues for each in admin.describe_topic(name).settings] == [4, 4]
    admin.delete_topic(name)

    deleted = confirmation_of(visitor.get(f"/topics/{topic}/delete"), topic)
    admin.delete_topic(topic)
    mistyped = visitor.post(f"/topics/{topic}/delete", deleted | {"typed": "x"})
    assert mistyped.status == 400
    assert audit() == ["rejected"]
    gone = visitor.post(f"/topics/{topic}/delete", deleted)
    assert gone.status == 404
    assert audit() == ["failed"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/create-topic", {"name": HOSTILE}),
        ("/create-topic", {"name": "x" * 128}),
        ("/create-topic", {"name": "x", "queues": "0"}),
        ("/create-topic", {"name": "x", "queues": "1025"}),
        ("/create-topic", {"name": "x", "queues": HOSTILE}),
        ("/create-topic", {"name": "x", "fifo": HOSTILE}),
        ("/create-topic", {"name": "x", "retention": HOSTILE}),
        ("/create-topic", {"name": "x", "retention": "1" * 41}),
        ("/topics/{}/resize", {"queues": ""}),
        ("/topics/{}/pause", {"permission": HOSTILE}),
        ("/topics/{}/produce", {"body": "x", "property_lines": HOSTILE}),
    ],
)
def test_every_field_has_a_bound_and_is_escaped(plain: str, topic: str, path: str, fields: dict[str, str]) -> None:
    rejected = fill_in(ConsoleVisitor(plain), path.format(topic), **fields)
    assert rejected.status == 400
    assert "<script>alert" not in rejected.text
    assert "<b>" not in rejected.text


def test_hostile_content_is_escaped_in_all_steps(plain: str, topic: str) -> None:
    visitor = ConsoleVisitor(plain)
    described = fill_in(visitor, f"/topics/{topic}/produce", body=HOSTILE, key=HOSTILE, tag=HOSTILE)
    done = visitor.post(f"/topics/{topic}/produce", confirmation_of(described))
    for page in (described, visitor.get(done.headers["Location"])):
        assert "<script>alert" not in page.text
        assert "<b>" not in page.text


# ---- Keys ---------------------------------------------------------------------------------------


def test_programs_show_a_key_in_place_of_a_sign_in(secured: Secured) -> None:
    visitor, path = ConsoleVisitor(secured.address), "/topics/orders/resize"
    own = {"Authorization": f"Bearer {secured.keys['owner']}"}
    fields = confirmation_of(visitor.get(f"{path}?queues=1&step=check", **own)) | {"queues": "1"}
    assert visitor.post(path, fields | {"token": "x"}, **own).status == 403
    reader = {**own, "Authorization": f"Bearer {secured.keys['reader']}"}
    assert visitor.post(path, fields, **reader).status == 400, "it was described to another user"
    assert visitor.post(path, fields).status == 401
    administrator = trust_of(secured.cluster.credentials).bearer
    assert administrator is not None
    another = visitor.post(path, fields, **{**own, "Authorization": f"Bearer {administrator.text}"})
    assert another.status == 400, "it was described to another user of the same browser"
    assert visitor.post(path, fields, **own).status == 303
