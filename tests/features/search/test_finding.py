"""Messages are found by key and by id: exactly those that reading everything finds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from minimq.admin.admin import Admin
from minimq.consuming.received import ReceivedMessage
from minimq.local.local_cluster import LocalCluster
from minimq.producer import Producer
from minimq_common.errors import InvalidArgument, OffsetOutOfRange, TopicNotFound
from minimq_common.model import Message
from support.chance import SEED
from support.command import Minimq
from support.reading import read_all

#: Some are parts of others, alone and side by side.
KEYS = (
    "1",
    "11",
    "111",
    "o-1",
    "o-11",
    "o-1 1",
    "a,b",
    "a",
    "b",
    "ab",
    "münchen",
    "ü",
    "東京",
    "京",
    "\t",
    "key=1",
    "k",
)


@pytest.fixture
def minimq(cluster: LocalCluster) -> Minimq:
    return Minimq(cluster.nameserver)


def random_message(chance: random.Random, topic: str, *, fifo: bool) -> Message:
    keys = tuple(chance.choices(KEYS, k=chance.choice((0, 1, 1, 2, 5))))
    properties = {chance.choice(KEYS): chance.choice(KEYS)} if chance.random() < 0.3 else {}
    group = f"group-{chance.randrange(5)}" if fifo else None
    body = b"x" * chance.choice((1, 10, 1000))
    return Message(topic, body, chance.choice((None, "t")), keys, properties, message_group=group)


def send_random(cluster: LocalCluster, chance: random.Random, topic: str, *, fifo: bool = False) -> None:
    for compression in ("none", "zstd"):
        with Producer(cluster.nameserver, compression=compression) as producer:
            for _ in range(6):
                count = chance.choice((1, 3, 200))
                list(producer.send_many([random_message(chance, topic, fifo=fifo) for _ in range(count)]))


def places(messages: tuple[ReceivedMessage, ...] | list[ReceivedMessage]) -> list[tuple[str, int]]:
    return sorted((str(message.queue), message.queue_offset) for message in messages)


@pytest.mark.parametrize("fifo", [False, True])
def test_a_search_finds_what_a_full_scan_does(
    cluster: LocalCluster, admin: Admin, new_name: Callable[[], str], *, fifo: bool
) -> None:
    topic, chance = new_name(), random.Random(SEED)
    admin.create_topic(topic, queues=2, fifo=fifo)
    send_random(cluster, chance, topic, fifo=fifo)
    stored = read_all(cluster.nameserver, topic)
    for key in (*KEYS, "o-", "1\t", "nobody has it"):
        found = admin.find_messages(topic, key=key, verify=chance.random() < 0.5)
        assert found.is_complete
        assert places(found.messages) == places([each for each in stored if key in each.keys]), key
        assert [each.stored_at for each in found.messages] == sorted(each.stored_at for each in found.messages)
    for wanted in chance.sample(stored, 10):
        [message] = admin.find_messages(topic, message_id=wanted.message_id).messages
        assert (message.queue, message.queue_offset, message.body) == (wanted.queue, wanted.queue_offset, wanted.body)
        assert admin.message_at(f"{wanted.queue}@{wanted.queue_offset}").message_id == wanted.message_id
    assert admin.find_messages(topic, message_id="0" * 40).messages == ()


def test_a_search_keeps_to_its_time_range(admin: Admin, producer: Producer, topic: str) -> None:
    for _ in range(20):
        producer.send(Message(topic, b"x", keys=("k",)))
    stored = admin.find_messages(topic, key="k").messages
    since, until = stored[5].stored_at, stored[15].stored_at
    found = admin.find_messages(topic, key="k", since=since, until=until).messages
    assert places(found) == places([each for each in stored if since <= each.stored_at < until])
    few = admin.find_messages(topic, key="k", limit=3)
    assert (len(few.messages), few.is_cut, few.is_complete) == (3, True, False)


def test_what_cannot_be_looked_for_is_rejected(admin: Admin, topic: str) -> None:
    for wrong in ({}, {"key": ""}, {"key": "a\0b"}, {"key": "k", "message_id": "0" * 40}, {"message_id": "4711"}):
        with pytest.raises(InvalidArgument):
            admin.find_messages(topic, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="until is not after since"):
        admin.find_messages(topic, key="k", since="-1h", until="-2h")
    with pytest.raises(InvalidArgument, match="did you mean since"):
        admin.find_messages(topic, key="k", sinc="-1h")  # type: ignore[call-arg]
    with pytest.raises(TopicNotFound):
        admin.find_messages("nowhere", key="k")
    for address in ("orders", "orders/broker-a@1", "orders/broker-a/0", "orders/broker-a/0@-1", f"{topic}/b/0@1e3"):
        with pytest.raises(InvalidArgument, match="is not the address of a message"):
            admin.message_at(address)
    with pytest.raises(OffsetOutOfRange):
        admin.message_at(f"{topic}/broker-a/0@4711")


def test_the_command_finds_and_shows(minimq: Minimq, producer: Producer, topic: str) -> None:
    receipt = producer.send(Message(topic, b"evil \x1b[2J \x9b body", "paid", ("o-1", "\x1b[31m")))
    address = f"{receipt.queue}@{receipt.queue_offset}"
    assert address in minimq("message", "find", topic, "--key", "o-1")
    table = minimq("message", "find", topic, "--id", receipt.message_id)
    assert "\x1b" not in table
    assert "\\x1b[31m" in table
    [row] = minimq.json("message", "find", topic, "--key", "\x1b[31m", "--since", "-5m")
    assert (row["address"], row["keys"], row["message_id"]) == (address, ["o-1", "\x1b[31m"], receipt.message_id)
    shown = minimq("peek", address, "-o", "table")
    assert f"id          {receipt.message_id}" in shown
    assert "\x1b" not in shown
    assert "evil \\x1b[2J" in shown
    assert minimq.json("peek", address)["body_base64"]
    assert minimq("message", "find", topic, "--key", "nobody has it") == ""
    assert "one of them" in minimq("message", "find", topic, status=2)
