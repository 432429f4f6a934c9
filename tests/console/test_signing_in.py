"""On a secured cluster a visitor signs in, and sees what the rights of the user allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from minimq import Admin, Credentials, LocalCluster
from minimq_cli.console import serving_console
from minimq_common.errors import InvalidArgument
from minimq_common.security.user_key import parse_key
from support.console_visitor import ConsoleVisitor
from support.secure_scraping import trust_of
from support.users import Users
from support.waiting import wait_until

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class Secured:
    """A console of a cluster with two users."""

    cluster: LocalCluster
    address: str
    keys: dict[str, str] = field(repr=False)

    def visitor(self, user: str = "") -> ConsoleVisitor:
        visitor = ConsoleVisitor(self.address)
        if user:
            assert visitor.sign_in(self.keys[user]).status == 303
        return visitor


def key_of(text: str) -> str:
    bearer = trust_of(Credentials.from_text(text)).bearer
    assert bearer is not None
    return bearer.text


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with LocalCluster(data_dir=tmp_path_factory.mktemp("console"), secure=True) as cluster:
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic("orders", queues=1)
            admin.create_topic("payroll", queues=1)
        users = Users(cluster)
        keys = {
            "alice": key_of(users.add("alice", ["allow read topic orders"])),
            "bob": key_of(users.add("bob", ["allow read topic payroll"], lifetime_s=86_400)),
        }
        given = {"credentials": cluster.credentials, "secrets": str(cluster.data_dir / "secrets")}
        with serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2, **given) as served:
            yield Secured(cluster, served.address, keys)


def test_who_has_not_signed_in_sees_nothing(secured: Secured) -> None:
    visitor = secured.visitor()
    page = visitor.get("/topics?search=a")
    assert (page.status, page.headers["Location"]) == (303, "/sign-in?to=/topics%3Fsearch%3Da")
    assert visitor.get("/topics", Accept="application/json").status == 401
    stream = visitor.get("/topics", Accept="text/event-stream")
    assert "You are signed out" in stream.text
    assert visitor.get("/", HX_Request="true", Accept="*/*").headers["HX-Redirect"] == "/sign-in?to=/"
    for path in ("/messages/orders/broker-a/0@0/body", "/nothing"):
        assert visitor.get(path).status == 303
    assert "orders" not in visitor.get("/sign-in").text


def test_users_and_rules_are_shown_to_who_may_manage_the_cluster(secured: Secured) -> None:
    bearer = trust_of(secured.cluster.credentials).bearer
    assert bearer is not None
    own = {"Authorization": f"Bearer {bearer.text}"}
    page = secured.visitor().data("/users?search=B", **own)
    bob = next(each for each in page["users"] if each["user"] == "bob")
    assert (bob["state"], bob["rules"], len(bob["keys"])) == ("enabled", ["allow read topic payroll"], 1)
    html = secured.visitor().get("/users", **own).text
    assert "allow read topic payroll" in html
    assert " until 20" in html
    assert not any(key in html for key in secured.keys.values())
    assert secured.visitor("alice").get("/users").status == 403


def test_a_console_without_the_folder_shows_ids_of_keys_and_no_page_of_users(secured: Secured) -> None:
    credentials = secured.cluster.credentials
    with serving_console(secured.cluster.nameserver, "127.0.0.1", 0, credentials=credentials) as served:
        visitor = ConsoleVisitor(served.address)
        assert visitor.sign_in(secured.keys["alice"]).status == 303
        assert f"key {parse_key(secured.keys['alice']).id}" in visitor.get("/topics").text
        assert visitor.get("/users").status == 404


def test_each_visitor_sees_what_the_rights_of_its_user_allow(secured: Secured) -> None:
    alice, bob = secured.visitor("alice"), secured.visitor("bob")
    for visitor, seen, hidden in ((alice, "orders", "payroll"), (bob, "payroll", "orders")):
        page = visitor.get("/topics")
        assert page.status == 200
        assert seen in page.text
        assert hidden not in page.text
        assert visitor.get(f"/topics/{seen}").status == 200
        rejected = visitor.get(f"/topics/{hidden}")
        assert rejected.status == 403, rejected.text
    assert "Signed in as" in alice.get("/").text


def test_a_wrong_key_is_rejected_and_neither_shown_nor_logged(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    for shown in (secured.keys["alice"][:-1], "mq_x", ""):
        visitor = secured.visitor()
        rejected = visitor.sign_in(shown)
        assert (rejected.status, visitor.get("/topics").status) == (403, 303)
        assert "no user of this cluster has this key" in rejected.text.lower()
        assert not shown or shown not in rejected.text + caplog.text


def test_signing_out_ends_it_at_once(secured: Secured) -> None:
    visitor = secured.visitor("alice")
    page, former = visitor.get("/"), dict(visitor.cookies)
    assert visitor.post("/sign-out", {"token": page.token}).headers["Location"] == "/sign-in"
    visitor.cookies = former
    assert visitor.get("/topics").status == 303


@pytest.mark.parametrize("path", ["/topics/orders", "/topics/orders/tail"])
def test_signing_out_ends_open_pages_and_none_of_another_browser(secured: Secured, path: str) -> None:
    visitor, other = secured.visitor("alice"), secured.visitor("alice")
    with visitor.events(path) as events:
        token = visitor.get(path).token
        visitor.post("/sign-out", {"token": token})
        *_, (name, part) = events
        assert (name, "you are signed out" in part) == ("part", True)
    assert other.get(path).status == 200


def test_a_sign_in_gets_a_new_cookie_that_scripts_and_other_sites_do_not_have(secured: Secured) -> None:
    visitor = secured.visitor()
    visitor.get("/sign-in")
    before = dict(visitor.cookies)
    entered = visitor.sign_in(secured.keys["alice"])
    assert visitor.cookies.keys() == before.keys()
    assert visitor.cookies != before
    flags = {each.strip().lower() for each in entered.headers["Set-Cookie"].split(";")}
    assert {"httponly", "samesite=strict", "path=/"} <= flags
    visitor.cookies = before
    assert visitor.get("/topics").status == 303


def test_a_sign_in_leads_to_a_page_of_the_console_alone(secured: Secured) -> None:
    visitor = secured.visitor()
    for to, place in (
        ("/topics?search=a", "/topics?search=a"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/x\r\nSet-Cookie: a=b", "/"),
    ):
        token = visitor.get("/sign-in", Cookie="").token
        fields = {"token": token, "to": to, "key": secured.keys["alice"]}
        assert visitor.post("/sign-in", fields).headers["Location"] == place
        visitor.cookies.clear()


def test_a_key_that_is_revoked_shows_nothing_any_more(secured: Secured) -> None:
    users = Users(secured.cluster)
    key = key_of(users.add("carol", ["allow read topic orders"]))
    visitor = secured.visitor()
    assert visitor.sign_in(key).status == 303
    assert visitor.get("/topics/orders").status == 200
    assert "running" not in visitor.get("/").text  # carol may not describe the cluster
    users.disable("carol")
    assert visitor.get("/topics/orders").status == 401
    # These pages show what was found last, which is no business of carol any more.
    for path in ("/", "/groups", "/dead-letters"):
        wait_until(lambda path=path: visitor.get(path).status == 401)  # type: ignore[misc]
    users.enable("carol")
    wait_until(lambda: visitor.get("/").status == 200)
    users.remove("carol")
    assert visitor.get("/topics/orders").status == 401


def test_a_key_or_a_token_in_a_header_is_enough_for_programs(secured: Secured) -> None:
    visitor = secured.visitor()
    own = {"Accept": "application/json", "Authorization": f"Bearer {secured.keys['alice']}"}
    assert visitor.get("/topics/orders", **own).status == 200
    assert visitor.get("/topics/payroll", **own).status == 403
    for shown in (secured.keys["alice"][:-1], "mq_no", ""):
        rejected = secured.visitor().get("/topics/orders", **own | {"Authorization": f"Bearer {shown}"})
        assert (rejected.status, rejected.headers["WWW-Authenticate"]) == (401, "Bearer"), rejected.text
        assert not shown or shown not in rejected.text
    # A header is sent by programs alone, but a proxy may add it to what a page of another site makes a browser send.
    assert visitor.post("/topics/orders/delete", {"step": "do"}, **own).status == 403


def test_keys_do_not_travel_in_plain_text(secured: Secured) -> None:
    credentials = secured.cluster.credentials
    with (
        pytest.raises(InvalidArgument, match="without encryption"),
        serving_console(secured.cluster.nameserver, "0.0.0.0", 0, credentials=credentials),
    ):
        pass
