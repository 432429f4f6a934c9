"""Streams of events: live parts, and messages as they are stored."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from minimq.admin.admin import Admin
from minimq.producer import Producer
from minimq_common.model import Message
from support.console_visitor import ConsoleVisitor


def test_new_messages_are_shown_as_they_are_stored(
    console: ConsoleVisitor, topic: str, producer: Producer, admin: Admin
) -> None:
    producer.send(Message(topic, b"before"))
    groups = admin.list_groups()
    done, shown = Event(), ""

    def send() -> None:  # again and again, as a tail begins at the end that it finds
        while not done.wait(0.05):
            producer.send(Message(topic, b"<b>", tag="wanted"))
            producer.send(Message(topic, b"other", tag="unwanted"))

    sending = Thread(target=send)
    sending.start()
    try:
        with console.events(f"/topics/{topic}/tail?tag=wanted") as events:
            for name, rows in events:
                assert name == "rows"
                shown += rows
                if "&lt;b&gt;" in shown:
                    break
    finally:
        done.set()
        sending.join()
    assert "<b>" not in shown
    assert "before" not in shown
    assert "other" not in shown
    assert set(admin.list_groups()) <= set(groups)  # those of other tests may end meanwhile


def test_a_tail_of_what_does_not_exist_says_so(console: ConsoleVisitor, topic: str) -> None:
    assert console.get("/topics/no-such-topic/tail").status == 404
    assert console.get(f"/topics/{topic}/tail?queue=broker-a:99").status == 400
    with console.events("/topics/no-such-topic/tail") as events:
        name, part = next(events)
    assert (name, "no-such-topic" in part) == ("part", True)


def test_a_topic_changes_on_the_page_while_somebody_watches(
    console: ConsoleVisitor, topic: str, producer: Producer
) -> None:
    with console.events(f"/topics/{topic}") as events:
        assert "No messages." in next(events)[1]
        producer.send(Message(topic, b"hello"))
        assert any("hello" in part for _, part in events)


def test_what_was_searched_for_is_not_looked_for_again_by_itself(console: ConsoleVisitor, topic: str) -> None:
    html = console.get(f"/topics/{topic}?from=-1h", Accept="text/html").text
    assert "data-live" not in html
    assert console.get(f"/topics/{topic}?from=-1h", Accept="text/event-stream").status == 204


@pytest.mark.parametrize(
    ("path", "heading"),
    [("/topics?rows=0", "This address cannot be shown"), ("/topics/no-such-topic", "There is no such thing")],
)
def test_a_stream_says_what_is_wrong(console: ConsoleVisitor, path: str, heading: str) -> None:
    with console.events(path) as events:
        name, part = next(events)
    assert name == "part"
    assert heading in part
