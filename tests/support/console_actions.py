"""Actions of the console as a visitor uses them: what is filled in, what will happen, and what is confirmed."""

from __future__ import annotations

import re
from html import unescape

from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PushConsumer
from support.console_visitor import ConsoleVisitor, Reply
from support.waiting import wait_until


def fill_in(visitor: ConsoleVisitor, path: str, **fields: str) -> Reply:
    """Open the form of an action and send it; return what will happen."""
    form = visitor.get(path)
    assert form.status == 200, form.text
    return visitor.post(path, {"token": form.token, "step": "check", **fields})


def rows_of(page: Reply | str) -> dict[str, tuple[str, str, str]]:
    """Return the rows of a plan or of a result: now, then and note by what changes."""
    text = page if isinstance(page, str) else page.text
    found = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>', text)
    return {unescape(what): (unescape(now), unescape(then), unescape(note)) for what, now, then, note in found}


def confirmation_of(described: Reply, typed: str = "") -> dict[str, str]:
    """Return the fields with which a description is confirmed."""
    fields = dict(
        re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', described.text.partition("<main")[2])
    )
    assert "confirm" in fields, described.text
    asked = {"typed": typed} if typed else {}
    return {**{name: unescape(value) for name, value in fields.items()}, "step": "do", **asked}


def use(visitor: ConsoleVisitor, path: str, typed: str = "", **fields: str) -> str:
    """Use an action from its form to the page that says what has happened; return that page."""
    described = fill_in(visitor, path, **fields)
    assert described.status == 200, described.text
    confirmed = visitor.post(path.partition("?")[0], confirmation_of(described, typed))
    assert confirmed.status == 303, confirmed.text
    place = confirmed.headers["Location"]
    wait_until(lambda: 'data-state="under-way"' not in visitor.get(place).text)
    done = visitor.get(place).text
    assert 'data-state="done"' in done, done
    return done


def make_dead_letters(
    cluster: LocalCluster, producer: Producer, topic: str, group: str, count: int, already: int = 0
) -> None:
    """Have a group give up some messages."""
    producer.send_many([Message(topic, b"%d" % number) for number in range(count)])

    def fail(messages: object) -> ConsumeResult:
        raise ValueError("unusable")

    credentials = cluster.credentials or ""
    with PushConsumer(
        cluster.nameserver, group=group, start="earliest", max_deliveries=1, credentials=credentials
    ) as consumer:
        consumer.subscribe(topic)
        consumer.start(fail)
        with Admin(cluster.nameserver, credentials=credentials) as admin:
            wait_until(lambda: len(list(admin.dead_letters(group))) == already + count)
