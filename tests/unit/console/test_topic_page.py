"""The pages of a topic: what stands beside the name of each broker, and how many new messages are left out."""

from __future__ import annotations

from minimq_console.answers import Rendering
from minimq_console.charts import Chart
from minimq_console.page import live_part
from minimq_console.pages.topics import PAGES


def test_brokers_whose_names_differ_in_case_have_figures_of_their_own() -> None:
    stored = {"Tokyo": 5, "tokyo": 7}
    settings = {"read_queues": 1, "write_queues": 1, "permission": "read-write", "fifo": False, "compacted": False}
    place = {"queue": 0, "min_offset": 0, "max_offset": 9, "last_stored_at": None}
    page = {
        "missing": [],
        "topic": {
            "topic": "t",
            "messages": 12,
            "brokers": [{"broker": name, **settings} for name in stored],
            "queues": [{"broker": name, "messages": count, **place} for name, count in stored.items()],
            "offline": [],
        },
        "chart": Chart("Messages stored", "messages/s", ()),
        "wanted": {"is_newest": True, "offset": None},
        "messages": [],
        "notes": [],
    }
    html = live_part(Rendering({}), PAGES[1], page, {"root": "", "path": "/topics/t", "query": {}, "wrong": {}})
    for name, count in stored.items():
        assert f"<dt>{name}</dt><dd>{count} messages, 1 queue, read-write</dd>" in html
