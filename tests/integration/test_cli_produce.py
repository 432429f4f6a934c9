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

import click
import pytest

from minimq import Reply
from minimq.admin.admin import Admin
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.pull_consumer import PullConsumer
from minimq.consuming.received import ReceivedMessage
from minimq.local.local_cluster import LocalCluster
from minimq.sending.producer import Producer
from minimq.sending.producer_options import ProducerOptions
from minimq_cli.bench import bench_produce
from minimq_cli.consume import consume
from minimq_cli.line_format import LineFormat
from minimq_cli.produce import _blocks, produce
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, Permission
from support.cases import for_each
from support.command import COMMAND, Minimq, environment
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


def test_fields_of_json_lines_become_key_and_tag(minimq: Minimq, topic: str, group: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"id": "o-1", "status": "paid"}\r\n\n{"id": 17, "status": "sent"}\n{"other": 1}')
    assert minimq("produce", topic, str(file), "--key-field", "id", "--tag-field", "status").startswith("sent 3 ")
    arguments = ("consume", topic, "--group", group, "--exit-at-end", "--output", "jsonl")
    found = [json.loads(line) for line in minimq(*arguments).splitlines()]
    assert sorted((item["keys"], item["tag"], item["body"]) for item in found if item["tag"]) == [
        (["17"], "sent", '{"id": 17, "status": "sent"}'),
        (["o-1"], "paid", '{"id": "o-1", "status": "paid"}'),
    ]
    assert [(item["keys"], item["body"]) for item in found if item["tag"] is None] == [([], '{"other": 1}')]
    paid = minimq("consume", topic, "--group", f"{group}-paid", "--exit-at-end", "--tags", "paid || lost")
    assert paid == '{"id": "o-1", "status": "paid"}\n'


def test_lines_of_one_key_go_to_one_queue(minimq: Minimq, topic: str, group: str) -> None:
    lines = [json.dumps({"id": number % 20, "number": number}) for number in range(400)]
    minimq("produce", topic, "--key-field", "id", "--by-key", stdin="\n".join(lines).encode())
    arguments = ("consume", topic, "--group", group, "--exit-at-end", "--output", "jsonl")
    queues: dict[str, set[tuple[str, int]]] = {}
    for line in minimq(*arguments).splitlines():
        item = json.loads(line)
        queues.setdefault(item["keys"][0], set()).add((item["broker"], item["queue"]))
    assert len(queues) == 20
    assert {len(places) for places in queues.values()} == {1}
    assert "line 2 has no key to choose its queue by" in minimq(
        "produce", topic, "--key-field", "id", "--by-key", stdin=b'{"id": 1}\n{"name": 1}\n', status=1
    )
    assert "--by-key needs --key-field" in minimq("produce", topic, "--by-key", stdin=b"x\n", status=2)


@pytest.mark.parametrize(
    ("line", "text"),
    [(b"{", "line 2 is not JSON"), (b"[1]", "line 2 is not a JSON object"), (b'{"id": {}}', "line 2: field 'id'")],
)
def test_a_line_that_is_wrong_is_named(minimq: Minimq, topic: str, line: bytes, text: str) -> None:
    said = minimq("produce", topic, "--key-field", "id", stdin=b'{"id": 1}\n' + line + b"\n", status=1)
    assert text in said
    assert said.endswith("; no line is known to be stored: continue with line 1\n")


def test_a_topic_that_is_not_there_or_a_file(minimq: Minimq, topic: str) -> None:
    assert "minimq topic create nope" in minimq("produce", "nope", stdin=b"x", status=1)
    assert "minimq topic create nope" in minimq("consume", "nope", "--group", "g", "--exit-at-end", status=1)
    assert "illegal topic name" in minimq("produce", "a b", stdin=b"x", status=2)
    assert "No such file" in minimq("produce", topic, "/no/such/file", status=2)
    assert minimq("produce", topic, stdin=b"\n\n").startswith("sent 0 messages")


def test_a_line_that_is_too_long_is_named(minimq: Minimq, topic: str) -> None:
    for length in (5 << 20, 50 << 20):  # the second one is not even kept in memory
        said = minimq("produce", topic, stdin=b"one\ntwo\n" + b"x" * length, status=1)
        assert "error: line 3 has more than 4,194,304 bytes: make it shorter, or raise --max-body-bytes" in said
    long = b"one\n" + b"x" * (10 << 20)
    said = minimq("produce", topic, "--max-body-bytes", str(32 << 20), stdin=long, status=1)
    assert "error: line 2 has 10,485,760 bytes: " in said  # behind the warnings about a broker that is busy
    assert "start the brokers with a larger --max-body-bytes" in said
    text = minimq("produce", topic, "--key-field", "id", stdin=b'{"id": "a\\u0000b"}', status=1)
    assert "line 1: field 'id' has a NUL character" in text


def test_one_message_is_not_messages(minimq: Minimq, topic: str) -> None:
    assert minimq("produce", topic, stdin=b"hello\n").startswith(f"sent 1 message (5 B) to {topic} in ")


def test_defaults_are_those_of_the_library() -> None:
    def defaults(command: click.Command, *names: str) -> list[str]:
        found = {parameter.name: str(parameter.default) for parameter in command.params}
        return [found[name] for name in names]

    sending = ProducerOptions()
    assert defaults(produce, "send_timeout", "max_body_bytes", "compression") == [
        str(sending.send_timeout_s),
        str(sending.max_body_bytes),
        sending.compression,
    ]
    assert defaults(bench_produce, "batch") == [str(sending.batch_messages)]
    assert defaults(consume, "start_timeout") == [str(ConsumerOptions().start_timeout_s)]


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


def test_what_is_not_allowed_is_said_at_once(minimq: Minimq, topic: str, admin: Admin) -> None:
    admin.update_topic(topic, permission=Permission.READ)
    said = minimq("produce", topic, stdin=b"x\n", status=1)
    assert said.startswith(f"error: topic {topic} is not writable on broker-a, broker-b: ")
    assert "`minimq cluster permission broker-a read-write`" in said
    admin.update_topic(topic, permission=Permission.WRITE)
    for more in ((), ("--exit-at-end",)):
        said = minimq("consume", topic, "--group", "g", *more, status=1)
        assert said.startswith(f"error: topic {topic} is not readable on broker-a, broker-b: ")


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
        (
            b'{"body": "\\ud800"}',
            "line 3 is not JSON: JSON is malformed: unexpected end of escaped utf-16 surrogate pair",
        ),
        (b'{"body": "a", "born_at": ' + b"[" * 100_000, "line 3 is nested too deeply"),
    ],
)
def test_a_line_that_is_no_message_is_named(line: bytes, text: str) -> None:
    lines = LineFormat(Message("t", b""), is_json=True)
    assert [number for number, _ in lines.messages([b'{"body": "a"}', b""], 1)] == [1]
    with pytest.raises(InvalidArgument) as told:
        lines.messages([b'{"body": "a"}', b"", line], 1)
    assert text in told.value.message


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"body": "x", "tag": "a\\u0000b"}', "line 50: a tag has a NUL character"),
        (b'{"body": "x", "keys": ["a\\u0000b"]}', "line 50: a key has a NUL character"),
        (b'{"body": "x", "tag": "%s"}' % (b"x" * 256), "line 50: "),
        (b'{"born_at": ' + b"[" * 60_000, "line 50 is nested too deeply"),  # the pipe takes all of them at once
    ],
    ids=["tag", "key", "long tag", "nested"],
)
def test_a_line_that_no_message_can_be_is_named_before_any_is_sent(
    minimq: Minimq, topic: str, admin: Admin, line: bytes, text: str
) -> None:
    good = b'{"body": "x"}\n' * 49
    said = minimq("produce", topic, "--input", "jsonl", stdin=good + line + b"\n", status=1)
    assert said.startswith(f"error: {text}")
    assert said.endswith("; no line is known to be stored: continue with line 1\n")
    assert admin.describe_topic(topic).messages == 0


def test_a_wrong_tag_of_all_messages_is_wrong_usage(minimq: Minimq, topic: str) -> None:
    assert "255" in minimq("produce", topic, "--tag", "x" * 256, stdin=b"x\n", status=2)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file that cannot be read from its beginning")
def test_what_is_stored_is_said_whatever_ends_it(minimq: Minimq, topic: str) -> None:
    said = minimq("produce", topic, "/proc/self/mem", status=1)
    assert "no line is known to be stored: continue with line 1\n" in said


def test_the_tries_of_a_send_that_failed_follow_what_is_stored() -> None:
    with LocalCluster(brokers=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("orders")
        cluster.brokers[0].pause()
        said = Minimq(cluster.nameserver)("produce", "orders", "--send-timeout", "5", stdin=b"x\n", status=1)
    first, *attempts = said.partition("error: ")[2].splitlines()
    assert first.endswith("; no line is known to be stored: continue with line 1")
    assert attempts
    assert all(line.startswith("  attempt ") for line in attempts)


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


@pytest.mark.parametrize("option", ["--key-field", "--tag-field", "--message-group-field"])
def test_a_field_that_the_first_lines_do_not_have_is_an_error(minimq: Minimq, topic: str, option: str) -> None:
    lines = b'{"id": "o-1", "body": "x"}\n{"id": "o-2", "at": 1}\n'
    said = minimq("produce", topic, option, "idd", stdin=lines, status=1)
    assert "lines 1 to 2 have no field 'idd': did you mean 'id'? the fields are id, body, at; a line" in said
    assert "no line is known to be stored" in said


def test_a_field_may_be_null_or_absent_in_some_lines(minimq: Minimq, topic: str) -> None:
    assert minimq("produce", topic, "--key-field", "id", stdin=b'{"id": null}\n{}\n').startswith("sent 2 messages")


def test_an_unknown_field_of_a_whole_message_is_an_error(minimq: Minimq, topic: str) -> None:
    said = minimq("produce", topic, "--input", "jsonl", stdin=b'{"body": "x", "key": "a"}\n', status=1)
    assert "line 1 is not a message as consume --output jsonl writes it: Object contains unknown field `key`" in said


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"body": "caf\xe9"}', "it is not UTF-8, but has byte 0xe9 at position 14. Convert text with `iconv"),
        ('{"body": "a"}'.encode("utf-16"), "it has bytes that are zero. Convert text with `iconv -f LATIN1 -t UTF-8`"),
        (b'{"body":', "it ends too early: one line must hold a whole JSON value, as `jq -c .` writes it"),
    ],
)
def test_a_line_that_is_no_json_comes_with_a_remedy(line: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as told:
        LineFormat(Message("t", b""), is_json=True).messages([line], 1)
    assert told.value.message.startswith(f"line 1 is not JSON: {text}")


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        (b"caf\xe9\ncaf\xe9\n", "note: there are lines that are not UTF-8; they are sent as they are."),
        (b"a\r\nb\r\n", "note: there are lines that end with CRLF; neither CR nor LF is sent"),
        ("café\n".encode(), ""),
    ],
)
def test_a_hint_is_given_once_for_lines_that_may_not_be_meant_so(
    minimq: Minimq, topic: str, lines: bytes, hint: str
) -> None:
    said = minimq.with_stderr("produce", topic, stdin=lines)
    assert said.count("note: ") == (1 if hint else 0)
    assert hint in said


def test_a_terminal_that_is_not_utf8_shows_escapes(cluster: LocalCluster, minimq: Minimq, topic: str) -> None:
    minimq("produce", topic, "--key-field", "id", stdin='{"id": "😀"}'.encode())
    variables = environment(MINIMQ_NAMESERVER=cluster.nameserver, PYTHONIOENCODING="latin-1")
    for output, shown in (("table", r"\U0001f600"), ("json", r"\ud83d\ude00")):
        find = [*COMMAND, "message", "find", topic, "--key", "😀", "--output", output]
        found = subprocess.run(find, capture_output=True, check=True, timeout=60, env=variables)
        assert shown in found.stdout.decode("latin-1")


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
        assert shown["properties"].pop("REPLY_TO").startswith("broker-")
        assert shown == {"body": "cba", "properties": {"tag": "t", "keys": "k,l", "a": "b"}}
        assert json.loads(minimq("request", topic, "-", "--output", "json", stdin=b"\xff\x00"))["body_base64"] == "AP8="
        assert minimq("request", topic, "-", stdin=b"x\ny") == "y\nx"


def test_errors_are_told_in_a_line(minimq: Minimq, cluster: LocalCluster, topic: str) -> None:
    with service(cluster.nameserver, topic, answer):
        assert minimq("request", topic, "bad", "--timeout", "30", status=1) == "error: this is bad\n"
    late = minimq("request", topic, "abc", "--timeout", "3", status=1)
    assert "error: no reply to the request came within 3 s: it is stored in queue " in late
