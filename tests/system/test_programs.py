"""The Python blocks of a page are one program, which prints what is listed here."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from minimq import LocalCluster
from support.pages import blocks_of, run_page
from support.process import process
from support.reading import read_all
from support.registry_server import registry_server

#: By page the lines that its program prints; `...` stands for any text.
PRINTED = {
    "administration": [
        "plan orders on broker-a None 4 queues, read-write",
        "plan orders on broker-b None 4 queues, read-write",
        "stored 1000 in 12",
        "route 12 ['orders']",
        "groups ['billing'] unread 0",
        "committed True",
        "unread again 1000",
        "error GROUP_NOT_FOUND",
        "writable {'broker-a'}",
        "brokers ['broker-a', 'broker-b'] []",
        "offline []",
        "answered True",
        "not changed on ['broker-b']",
        "rejected topic orders was not deleted: broker-b is offline since ...",
    ],
    "arrow": [
        "stored 3",
        "rejected 1",
        "[{'keys': ['ben'], 'body': b'silver'}]",
        "o-17 base64:ABE= b'\\x00\\x11'",
        "[('at', b'1'), ('at', b'\\xff')]",
        "[(None, 2), ('coffee', 2)]",
        "[None, None, None, None]",
        "{'espresso': 2, 'mocha': 1, 'tea': 1}",
        "[('coffee', 2), (None, 2)]",
        "polled 4",
    ],
    "asyncio": ["stored ...", "sent 900 SEND_OK", "polled 1000", "worked 1000", "pushed 1000"],
    "compacted-topics": ["[{'keys': ['N14228'], 'body': b'at LAX'}]", "{'N14228': b'at LAX'}"],
    "connections": ["read b'espresso'", "loops 1", "stored 1"],
    "delayed-messages": [
        "waits True -1",
        "b'tea is ready' True True",
        "recalled True already recalled",
        "waiting 1 True None",
        "totals [('reminders', 1)]",
    ],
    "faststream": ["stored orders billed 6", "billed 30", "price 6 EUR", "topics ['bills', 'orders', 'prices']"],
    "finding-messages": [
        'found {"carrier": "UA", "flight": 1545} (\'UA1545\', \'N14228\') EWR',
        "complete True of 10",
        "of the aircraft 10",
        "same True",
        "stored True",
        "gates in flight 1 True",
        "gates dead %DLQ%gates",
    ],
    "local-cluster": ["... ['broker-a', 'broker-b'] ['nameserver-1']", "broker-a", "read [b'before', b'after']"],
    "migrating-from-aiokafka": [
        "stored SEND_OK 0",
        "futures 500",
        "receipts 500",
        "consumed orders 1001",
        "handled 1001",
        "committed 1001",
        "read again 1001",
        "exactly once 1001",
        "acknowledged True",
    ],
    "migrating-from-celery": [
        "resized 10 in attempts 11",
        "recalled True",
        "later [('8.png', 320), ('8.png', 640)]",
        "price 6",
        "chained",
        "booked [b'0', b'1', b'2', b'3', b'4']",
    ],
    "migrating-from-confluent-kafka": [
        "stored orders SEND_OK",
        "futures 500",
        "callbacks 500",
        "consumed 1001",
        "committed True",
        "read again 1001",
        "unread again 1001",
        "receipts 100000",
        "dead bills listener raised ValueError",
        "sent again 1",
        "acknowledged True",
        "exactly once True",
        "topics ['%DLQ%bills', '%RETRY%bills', 'bills', 'orders', 'totals']",
    ],
    "migrating-from-rocketmq": [
        "sent ... orders",
        "one queue True",
        "batch 1000",
        "consumed 1004",
        "acknowledged True",
        "in order [b'0', b'1', b'2', b'3', b'4']",
        "unread again 1004",
        "read again 1004",
        "recalled True",
        "open 0",
    ],
    "request-reply": ["reply b'HELLO'", "replies 1000", "reply b'BY HAND'"],
    "schemas": [
        "read Order(id='o-17', cents=480)",
        "rejected the value does not fit its schema: `Order.lines` is '480', not int",
        "order o-17",
        "order o-20",
        "rejected",
        "marked b'\\x00' {'id': 'o-17'}",
        "stored orders/broker-a/0",
        "value Order(id='o-23', cents=480)",
    ],
    "tracing": [
        "in a span: True",
        "send orders PRODUCER",
        "checkout INTERNAL",
        "process orders CONSUMER",
        "receive orders CLIENT",
        "ack orders CLIENT",
        "process orders CONSUMER",
        "traces: 2",
    ],
    "transactions": ["stored 2", "total 17", "mailed 1", "sent 3 left 0", "ordered [('espresso',)]"],
    "work-queues": [
        "mailed 100",
        "delivered 100",
        "thumbnails 20 20",
        "rejected: True",
        "unsettled 0",
        "in order True 20",
        "tasks 20",
    ],
}


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with registry_server() as serving:
        yield serving.url


#: The others run among the slow tests.
QUICK = ("arrow", "asyncio", "work-queues")


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[] if page in QUICK else pytest.mark.slow) for page in PRINTED]
)
def test_a_page_is_one_program_that_runs(page: str, tmp_path: Path, registry: str) -> None:
    said = run_page(f"docs/{page}.md", tmp_path, REGISTRY_URL=registry)
    for line, expected in zip(said, PRINTED[page], strict=True):
        begin, dots, end = expected.partition("...")
        assert line == expected or (dots and line.startswith(begin) and line.endswith(end)), said


def test_the_page_about_sending_is_one_program_that_runs(tmp_path: Path) -> None:
    said = run_page("docs/sending.md", tmp_path)
    assert re.fullmatch(r"orders/broker-[ab]/[0-3] \d+ SendStatus.SEND_OK", said[0])
    assert "True True" in said
    assert re.search(r"done \d+", "\n".join(said)), said  # another thread prints it, perhaps into another line
    assert any(line.startswith("1 message for topic 'orders' was not acknowledged") for line in said)


def test_the_page_about_consuming_is_one_program_that_runs(tmp_path: Path) -> None:
    said = run_page("docs/consuming.md", tmp_path)
    for line in ("pulled 1000", "pushed 1000", "deliveries [1, 2, 3, 4]", "in order [b'0', b'1', b'2', b'3', b'4']"):
        assert line in said
    assert any(line.startswith("dead b'bad' ('o-17',) eu orders") for line in said), said
    assert "dead letters orders - listener answered RETRY_LATER 1" in said
    assert "sent again 1 and then 0" in said
    assert "filtered b'bad'" in said


OUTBOX = """
import sqlite3, sys, time
from contextlib import closing
from pathlib import Path
from minimq import Message, Producer, by_hash
class Waiting(Producer):
    def send_many(self, messages, **options):
        super().send_many(messages, **options)
        print("stored", len(messages), flush=True)
        while sys.argv[3:] and not Path(sys.argv[3]).exists():
            time.sleep(0.01)
folder, producer = Path(sys.argv[1]), Waiting(sys.argv[2])
"""


@pytest.mark.slow
def test_a_second_relay_of_the_outbox_sends_nothing_beside_the_first(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """The first one has sent the rows, and not deleted them yet."""
    [page] = [block for block in blocks_of("docs/transactions.md", "python") if "def relay(" in block]
    program = OUTBOX + page[page.index("def relay(") :]
    rows = [(number, topic, "o-18", b"%d" % number) for number in range(5)]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE outbox (number INTEGER PRIMARY KEY, topic TEXT, key TEXT, body BLOB)")
        database.executemany("INSERT INTO outbox VALUES (?, ?, ?, ?)", rows)
    command = sys.executable, "-c", program, str(tmp_path), cluster.nameserver
    with process(*command, str(tmp_path / "go-on")) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "stored 5\n"
        with process(*command) as second:
            said, error = second.communicate()
            assert (said, second.returncode) == ("", 1)
            assert "database is locked" in error
        (tmp_path / "go-on").touch()
        said, error = first.communicate()
        assert said.splitlines()[-1] == "sent 5 left 0", error
    with process(*command) as third:
        assert third.communicate()[0].splitlines()[-1] == "sent 0 left 0"
    assert [message.body for message in read_all(cluster.nameserver, topic)] == [row[3] for row in rows]
