"""`minimq produce`, as a process of its own, against real servers."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from minimq import Reply
from minimq.admin.admin import Admin
from minimq.consumer import PullConsumer
from minimq.consuming.received import ReceivedMessage
from minimq.local.local_cluster import LocalCluster
from minimq.producer import Producer
from minimq_cli.line_format import LineFormat
from minimq_cli.produce import _blocks
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message
from support.cases import for_each
from support.command import Minimq
from support.replying import service
from support.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="session")
def minimq(cluster: LocalCluster) -> Minimq:
    return Minimq(cluster.nameserver)


def test_lines_go_in_and_come_out_once(minimq: Minimq, topic: str, group: str) -> None:
    lines = [f"line {number}" for number in range(20_000)]
    said = minimq("produce", topic, stdin="\n".join(lines).encode())
    assert re.match(rf"sent 20,000 messages \(188\.9 KB\) to {topic} in [\d.]+ s: [\d,]+ messages/s", said)
    assert Counter(minimq("consume", topic, "--group", group, "--exit-at-end").splitlines()) == Counter(lines)
    assert minimq("consume", topic, "--group", group, "--exit-at-end") == ""
    minimq("produce", topic, stdin=b"one more\n")
    assert minimq("consume", topic, "--group", group, "--exit-at-end") == "one more\n"


def test_a_line_that_is_too_long_is_named(minimq: Minimq, topic: str) -> None:
    for length in (5 << 20, 50 << 20):  # the second one is not even kept in memory
        said = minimq("produce", topic, stdin=b"one\ntwo\n" + b"x" * length, status=1)
        assert "error: line 3 has more than 4,194,304 bytes: make it shorter, or raise --max-body-bytes" in said
    long = b"one\n" + b"x" * (10 << 20)
    said = minimq("produce", topic, "--max-body-bytes", str(32 << 20), stdin=long, status=1)
    assert "is over the limit of" in said
    assert "lines 1 to 1 are stored: continue with line 2" in said
    text = minimq("produce", topic, "--key-field", "id", stdin=b'{"id": "a\\u0000b"}', status=1)
    assert "line 1: field 'id' has a NUL character" in text


def test_ctrl_c_says_what_was_acknowledged_and_ends_with_130(minimq: Minimq, topic: str, admin: Admin) -> None:
    with minimq.running("produce", topic, stdin=subprocess.PIPE) as producing:
        assert producing.stdin is not None
        producing.stdin.write(b"a line\n")
        producing.stdin.flush()
        wait_until(lambda: admin.describe_topic(topic).messages == 1, 20)
        producing.send_signal(signal.SIGINT)
        output, said = producing.communicate(timeout=60)
    assert (output, producing.returncode) == (b"", 130)
    assert said == b"interrupted: lines 1 to 1 are stored: continue with line 2\n"


def test_a_slow_pipe_is_sent_as_it_arrives(minimq: Minimq, topic: str, admin: Admin) -> None:
    with minimq.running("produce", topic, stdin=subprocess.PIPE) as producing:
        assert producing.stdin is not None
        for count in (1, 2):
            producing.stdin.write(b"a line\n")
            producing.stdin.flush()
            wait_until(lambda count=count: admin.describe_topic(topic).messages == count, 20)  # type: ignore[misc]
        output, _ = producing.communicate(timeout=60)
    assert output.startswith(b"sent 2 messages")


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_blocks_are_whole_lines_whatever_the_pipe_cuts(ending: bytes, tmp_path: Path) -> None:
    random.seed(7)
    text = b"\n".join(b"x" * random.choice((1, 10, 1000, 3_000_000)) for _ in range(40)) + ending
    file = tmp_path / "lines"
    file.write_bytes(text)
    with file.open("rb") as opened:
        blocks = list(_blocks(opened.fileno(), 4 << 20))
    assert b"".join(blocks) == text
    assert all(block.endswith(b"\n") for block in blocks[:-1])
    assert max(map(len, blocks)) < 9 << 20


def test_properties_are_given_by_name_and_value(minimq: Minimq, topic: str, group: str) -> None:
    minimq("produce", topic, "--property", "region=eu", "--property", "formula=a=b", stdin=b"one\n")
    [line] = minimq("consume", topic, "--group", group, "--exit-at-end", "--output", "jsonl").splitlines()
    assert json.loads(line)["properties"] == {"region": "eu", "formula": "a=b"}
    for wrong in ("region", "=eu"):
        assert "write NAME=VALUE" in minimq("produce", topic, "--property", wrong, stdin=b"x\n", status=2)


def test_what_consume_writes_produce_reads(
    minimq: Minimq, topic: str, admin: Admin, new_name: Callable[[], str], group: str
) -> None:
    sent = [
        Message(topic, b"text \xc3\xa4\n\x00", "paid", ["o-1", "o-2"], {"region": "eu", "": "x"}),
        Message(topic, bytes(range(256)), None, [], {}),
        Message(topic, b"{}", "t", ["k"], {}),
    ]
    with Producer(minimq.nameserver) as producer:
        for message in sent:
            producer.send(message)
    other = new_name()
    admin.create_topic(other, queues=1)
    lines = minimq("consume", topic, "--group", group, "--exit-at-end", "--output", "jsonl")
    minimq("produce", other, "--input", "jsonl", stdin=lines.encode())
    with PullConsumer(minimq.nameserver) as consumer:
        consumer.assign(admin.route(other).read_queues())
        found: list[ReceivedMessage] = []
        while len(found) < 3:
            found += wait_until(lambda: consumer.poll(0.1), 40)

    def said(message: Message | ReceivedMessage) -> tuple[object, ...]:
        return message.body, message.tag, list(message.keys), dict(message.properties)

    assert sorted(map(said, found)) == sorted(map(said, sent))


@for_each(
    ("line", "text"),
    [
        (b"x", "line 3 is not JSON"),
        (b"[]", "line 3 is not a message as consume --output jsonl writes it"),
        (b'{"body": 5}', "line 3 is not a message as consume --output jsonl writes it"),
        (b"{}", "line 3 needs one of body and body_base64"),
        (b'{"body": "a", "body_base64": "YQ=="}', "line 3 needs one of body and body_base64"),
        (b'{"body_base64": "!"}', "line 3 has a body that cannot be decoded"),
        (b'{"body": "a", "properties": {"a": 1}}', "line 3 is not a message"),
        (b'{"body": "\\ud800"}', "line 3 is not JSON in UTF-8: "),
        (b'{"body": "a", "born_at": ' + b"[" * 100_000, "line 3 is nested too deeply"),
    ],
)
def test_a_line_that_is_no_message_is_named(line: bytes, text: str) -> None:
    lines = LineFormat(Message("t", b""), is_json=True)
    assert [number for number, _ in lines.messages([b'{"body": "a"}', b""], 1)] == [1]
    with pytest.raises(InvalidArgument) as told:
        lines.messages([b'{"body": "a"}', b"", line], 1)
    assert text in told.value.message


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file that cannot be read from its beginning")
def test_what_is_stored_is_said_whatever_ends_it(minimq: Minimq, topic: str) -> None:
    said = minimq("produce", topic, "/proc/self/mem", status=1)
    assert "no line is known to be stored: continue with line 1\n" in said


def test_a_byte_order_mark_and_blank_lines_are_no_part_of_json() -> None:
    mark = b"\xef\xbb\xbf"
    whole = LineFormat(Message("t", b""), is_json=True)
    [(number, message)] = whole.messages([mark + b'{"body": "a"}', b" \t"], 1)
    assert (number, message.body) == (1, b"a")
    with pytest.raises(InvalidArgument, match="line 2 is not JSON"):
        whole.messages([mark + b'{"body": "a"}'], 2)
    fields = LineFormat(Message("t", b""), key_field="id")
    [(number, message)] = fields.messages([b"  ", b'{"id": 1}'], 1)
    assert (number, message.body, message.keys) == (2, b'{"id": 1}', ("1",))
    bodies = LineFormat(Message("t", b""))
    assert [message.body for _, message in bodies.messages([mark, b" "], 1)] == [mark, b" "]


def test_what_all_messages_have_gives_way_to_what_a_line_has() -> None:
    lines = LineFormat(Message("t", b"", "open", (), {"a": "1", "b": "2"}), is_json=True)
    [(_, plain), (_, own)] = lines.messages(
        [b'{"body": "x"}', b'{"body": "x", "tag": "paid", "properties": {"a": "3"}}'], 1
    )
    assert (plain.tag, dict(plain.properties)) == ("open", {"a": "1", "b": "2"})
    assert (own.tag, dict(own.properties)) == ("paid", {"a": "3", "b": "2"})


# ---- `minimq request` ---------------------------------------------------------------------------


def answer(messages: list[ReceivedMessage]) -> Reply:
    [message] = messages
    if message.body == b"bad":
        return Reply(error="this is bad")
    return Reply(message.body[::-1], {"tag": message.tag or "", "keys": ",".join(message.keys), **message.properties})


def test_the_reply_is_printed_as_it_is_or_as_json(minimq: Minimq, cluster: LocalCluster, topic: str) -> None:
    with service(cluster.nameserver, topic, answer):
        assert minimq("request", topic, "abc", "--timeout", "30") == "cba"
        options = ("--tag", "t", "--key", "k", "--key", "l", "--property", "a=b", "--output", "json")
        shown = json.loads(minimq("request", topic, "abc", "--timeout", "30", *options))
        assert shown["properties"].pop("REPLY_TO").startswith("%REPLY%/")
        assert shown == {"body": "cba", "properties": {"tag": "t", "keys": "k,l", "a": "b"}}
        assert json.loads(minimq("request", topic, "-", "--output", "json", stdin=b"\xff\x00"))["body_base64"] == "AP8="
        assert minimq("request", topic, "-", stdin=b"x\ny") == "y\nx"
