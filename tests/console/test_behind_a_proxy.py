"""The console under a path prefix of a reverse proxy, which is a real nginx."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq_cli.console import serving_console
from minimq_common.errors import InvalidArgument
from support.console_actions import confirmation_of, fill_in
from support.console_visitor import ConsoleVisitor
from support.nginx import LACKING, NGINX, nginx
from support.pages import blocks_of

pytestmark = [pytest.mark.system, pytest.mark.skipif(NGINX is None, reason=LACKING)]

#: Paths of one console at the proxy, which strips the prefix, or does not, or says that the browser has TLS.
STRIPPED, VERBATIM, SECURE = "/console", "/tools/minimq", "/secure"


@pytest.fixture(scope="module")
def proxy(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options: dict[str, Any] = {"allow_changes": True, "trusted_proxies": ("127.0.0.1",)}
    with serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2, **options) as served:
        prefix = "proxy_set_header X-Forwarded-Prefix"
        locations = {
            f"{STRIPPED}/": f"proxy_pass {served.address}/; {prefix} {STRIPPED};",
            f"{VERBATIM}/": f"proxy_pass {served.address}; {prefix} {VERBATIM};",
            f"{SECURE}/": f"proxy_pass {served.address}/; {prefix} {SECURE}; proxy_set_header X-Forwarded-Proto https;",
        }
        with nginx(tmp_path_factory.mktemp("nginx"), locations) as address:
            yield address


def test_what_the_page_prints_works(cluster: LocalCluster, tmp_path: Path) -> None:
    [block] = blocks_of("docs/console.md", "nginx")
    with serving_console(cluster.nameserver, "127.0.0.1", 0, trusted_proxies=("127.0.0.1",)) as served:
        printed = block.replace("http://127.0.0.1:8088", served.address)
        assert printed != block
        with nginx(tmp_path, {}, printed) as address:
            found = places(ConsoleVisitor(address).get("/console/").text)
    assert found
    assert all(each.startswith("/console/") for each in found)


@pytest.fixture(params=[STRIPPED, VERBATIM])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def places(html: str) -> set[str]:
    """Return the addresses in a page."""
    return {unescape(each) for each in re.findall(r'(?<![\w-])(?:href|src|action|hx-get)="([^"#]*)"', html)}


def test_each_address_of_each_page_is_under_the_prefix_and_leads_to_a_page(
    proxy: str, prefix: str, topic: str, group: str, producer: Producer, admin: Admin
) -> None:
    producer.send(Message(topic, b"hello"))
    admin.reset_offset(group, topic, "earliest")
    many = [f"{topic}-{number}" for number in range(26)]  # more than a part of a table has
    for name in many:
        admin.create_topic(name, queues=1)
    visitor, seen = ConsoleVisitor(proxy), set[str]()
    waiting = [f"{prefix}/", f"{prefix}/topics/{topic}", f"{prefix}/groups/{group}"]
    while waiting and len(seen) < 150:
        path = waiting.pop(0)
        page = visitor.get(path)
        # What other tests have made may be gone.
        assert page.status == 200 or "There is no such thing" in page.text, (path, page.text)
        for place in places(page.text) if "<html" in page.text else ():
            found = place if place.startswith("/") else f"{path.rpartition('/')[0]}/{place}"
            assert found.startswith(f"{prefix}/"), (path, place)
            if found not in seen:
                seen.add(found)
                waiting.append(found)
    assert {f"{prefix}/topics", f"{prefix}/static/live.js", f"{prefix}/topics/{topic}/resize"} <= seen
    assert f"{prefix}/topics?skip=25" in seen
    for name in many:
        admin.delete_topic(name)


def test_an_action_leads_through_the_proxy_from_its_form_to_its_end(
    proxy: str, prefix: str, topic: str, admin: Admin
) -> None:
    visitor, path = ConsoleVisitor(proxy), f"{prefix}/topics/{topic}/resize"
    confirmed = visitor.post(path, confirmation_of(fill_in(visitor, path, queues="5")))
    assert confirmed.headers["Location"].startswith(f"{prefix}/actions/")
    done = visitor.get(confirmed.headers["Location"])
    assert f'href="{prefix}/topics/{topic}"' in done.text
    assert [each.read_queues for each in admin.describe_topic(topic).settings] == [5, 5]


def test_events_come_through_the_proxy(proxy: str, prefix: str, topic: str, producer: Producer) -> None:
    with ConsoleVisitor(proxy).events(f"{prefix}/topics/{topic}") as events:
        assert "No messages." in next(events)[1]
        producer.send(Message(topic, b"hello"))
        assert any(f'href="{prefix}/topics/{topic}/messages/' in part for _, part in events)


def test_the_cookie_is_for_tls_alone_if_the_browser_has_tls(proxy: str) -> None:
    secure = ConsoleVisitor(proxy).get(f"{SECURE}/").headers["Set-Cookie"].lower()
    plain = ConsoleVisitor(proxy).get(f"{STRIPPED}/").headers["Set-Cookie"].lower()
    assert (secure.startswith("__host-"), "; secure" in secure) == (True, True)
    assert (plain.startswith("__host-"), "; secure" in plain) == (False, False)


def test_lines_of_the_log_have_the_address_of_the_browser(proxy: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "minimq.audit")
    visitor = ConsoleVisitor(proxy)
    assert (
        visitor.post(f"{STRIPPED}/topics", {}, Origin="https://evil.example", X_Forwarded_For="10.9.8.7").status == 403
    )
    assert "from=10.9.8.7:" in caplog.text


def test_what_a_stranger_says_of_itself_does_not_count(cluster: LocalCluster) -> None:
    with serving_console(cluster.nameserver, "127.0.0.1", 0, trusted_proxies=("10.0.0.0/8",)) as served:
        said = {"X_Forwarded_Prefix": "/evil", "X_Forwarded_Proto": "https", "X_Forwarded_For": "10.1.2.3"}
        page = ConsoleVisitor(served.address).get("/", **said)
        assert "/evil" not in page.text
        assert "secure" not in page.headers["Set-Cookie"].lower()


@pytest.mark.parametrize("prefix", ["//evil.example", "/a b", "/<b>", "console", "/a\\b", "https://evil.example/"])
def test_a_prefix_that_is_no_path_is_not_used(cluster: LocalCluster, prefix: str) -> None:
    with (
        pytest.raises(InvalidArgument, match="--root-path"),
        serving_console(cluster.nameserver, "127.0.0.1", 0, root_path=prefix),
    ):
        pass
    with serving_console(cluster.nameserver, "127.0.0.1", 0, trusted_proxies=("127.0.0.1",)) as served:
        page = ConsoleVisitor(served.address).get("/", X_Forwarded_Prefix=prefix)
        assert page.status == 200
        assert 'href="/topics"' in page.text


def test_a_prefix_can_be_an_option_in_place_of_a_header(cluster: LocalCluster) -> None:
    with serving_console(cluster.nameserver, "127.0.0.1", 0, root_path="/console/") as served:
        visitor = ConsoleVisitor(served.address)
        for path in ("/", "/console/", "/console"):
            assert 'href="/console/topics"' in visitor.get(path).text, path
        assert visitor.get("/console/static/live.js").status == visitor.get("/static/live.js").status == 200
