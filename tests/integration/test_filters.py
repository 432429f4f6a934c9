"""Subscriptions by tag and by property: what is handed out, how far the offsets go, what members must agree on."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq_cli.main import main
from minimq_common.errors import GroupConflict
from support.command import Minimq
from support.waiting import wait_until

TIMEOUT_S = 40.0


def orders(topic: str, count: int) -> list[Message]:
    """Return orders: every third one paid, every second one from the EU, amounts that grow."""
    return [
        Message(
            topic,
            b"%d" % number,
            "paid" if number % 3 == 0 else "open",
            keys=[f"o-{number}", "order"],
            properties={"region": "eu" if number % 2 == 0 else "us", "amount": str(number)},
        )
        for number in range(count)
    ]


def read_to_the_end(consumer: PullConsumer) -> list[int]:
    """Return the numbers of all messages that the consumer gets, sorted."""
    found: list[int] = []

    def ended() -> bool:
        messages = consumer.poll(0.05)
        found.extend(int(message.body) for message in messages)
        return not messages and len(consumer.assignment) == 8 and consumer.at_end()

    wait_until(ended, TIMEOUT_S)
    return sorted(found)


def test_offsets_go_past_batches_that_the_broker_passed_over(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    """Wanted batches lie between others, and others come last."""
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver, group=group) as consumer:
        for number in range(20):
            tag = "rare" if number in {7, 12} else "common"
            producer.send_many([Message(topic, b"%d" % number, tag)] * 10, queue=queue)
        consumer.subscribe(topic, "rare")
        assert read_to_the_end(consumer) == [7] * 10 + [12] * 10
        assert consumer.position(queue) == 200
        assert consumer.filtered_messages == 180
        consumer.commit()
        assert admin.committed_offsets(group, topic)[queue] == 200

        producer.send_many([Message(topic, b"20", "common")] * 10, queue=queue)
        wait_until(lambda: not consumer.poll(0.05) and consumer.position(queue) == 210, TIMEOUT_S)
        producer.send_many([Message(topic, b"21", "rare")] * 3, queue=queue)
        messages = wait_until(lambda: consumer.poll(0.1), TIMEOUT_S)
        assert [message.queue_offset for message in messages] == [210, 211, 212]


def test_members_that_write_the_same_filter_differently_agree_and_others_do_not(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    with PullConsumer(cluster.nameserver, group=group) as first, PullConsumer(cluster.nameserver, group=group) as same:
        first.subscribe(topic, "paid||refunded", where="region='eu' and amount>10")
        same.subscribe(topic, " refunded || paid", where="region = 'eu'  AND amount > 10")

        def shared() -> bool:
            first.poll(0.05)
            same.poll(0.05)
            return len(first.assignment) == len(same.assignment) == 4

        wait_until(shared, TIMEOUT_S)
        with PullConsumer(cluster.nameserver, group=group) as other:
            other.subscribe(topic, "paid||refunded", where="region='eu' and amount>11")
            with pytest.raises(GroupConflict, match="filter"):
                wait_until(lambda: other.poll(0.1), TIMEOUT_S)


def test_the_command_filters_by_tag_and_property(cluster: LocalCluster, topic: str, group: str) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send_many(orders(topic, 60))
    args = ["--group", group, "--exit-at-end", "--output", "jsonl", "--tags", "paid", "--where", "region = 'eu'"]
    with Minimq(cluster.nameserver).running("consume", topic, *args, "--tags", "refunded") as consuming:
        written, said = consuming.communicate(timeout=60)
    assert (consuming.returncode, said) == (0, b"10 messages, 50 filtered out\n")
    found = [json.loads(line) for line in written.splitlines()]
    assert sorted(int(item["body"]) for item in found) == list(range(0, 60, 6))
    assert {item["properties"]["region"] for item in found} == {"eu"}


def test_an_expression_in_a_variable_is_not_cut_at_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIMQ_CONSUME_TAGS", "paid || refunded,open")
    rejected = CliRunner().invoke(main, ["-s", "127.0.0.1:1", "consume", "t", "--group", "g"])
    assert rejected.exit_code == 2
    assert "'refunded,open' is no tag expression" in rejected.stderr
