"""Queues that one member of a group has at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.case import Case, bodies
from minimq import MessageQueue
from minimq.errors import Fenced
from support.waiting import wait_until


@pytest.mark.kinds("pull")
def test_the_committed_offset_is_that_after_the_finished_messages(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1", b"2", b"3")
    with case.receiver(topic, group=group) as receiver:
        first = receiver.take()
        assert bodies(first) == [b"1"]
        receiver.finish(first)
    case.disturb()
    queue = MessageQueue(topic, "broker-a", 0)
    wait_until(lambda: case.admin.committed_offsets(group, topic) == {queue: 1}, what="the offset")


@pytest.mark.kinds("pull")
def test_a_consumer_reads_again_from_where_it_seeks(case: Case) -> None:
    topic = case.topic()
    [_, second, _] = case.send(topic, b"1", b"2", b"3")
    receiver = case.receiver(topic)
    receiver.take(3)
    case.disturb()
    receiver.consumer.seek(second.queue, 1)
    assert bodies(receiver.take(2)) == [b"2", b"3"]


@pytest.mark.kinds("pull")
def test_a_paused_queue_gives_nothing_until_it_is_resumed(case: Case) -> None:
    topic = case.topic()
    receiver = case.receiver(topic)
    case.send(topic, b"1")
    receiver.take()
    queues = receiver.consumer.assignment
    receiver.consumer.pause(queues)
    case.send(topic, b"2")
    case.disturb()
    assert receiver.consumer.poll(timeout=0.2) == []
    receiver.consumer.resume(queues)
    assert bodies(receiver.take()) == [b"2"]


@pytest.mark.kinds("pull")
def test_queues_are_read_without_a_group(case: Case) -> None:
    topic = case.topic(queues=2)
    case.send(topic, b"1", b"2")
    reader = case.make("PullConsumer")
    reader.assign(case.admin.route(topic).read_queues())
    case.disturb()
    found: list[bytes] = []
    while not reader.at_end():
        found += bodies(reader.poll(timeout=0.1))
    assert sorted(found) == [b"1", b"2"]


@pytest.mark.kinds("pull", "listener")
def test_each_member_of_a_broadcasting_group_gets_all(case: Case, tmp_path: Path) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1", b"2")
    options: dict[str, Any] = {"broadcast_dir": tmp_path, "group": group}
    members = [case.receiver(topic, client_id=f"member-{number}", **options) for number in range(2)]
    case.disturb()
    for member in members:
        assert sorted(bodies(member.take(2))) == [b"1", b"2"]


@pytest.mark.kinds("pull")
def test_a_consumer_takes_its_client_id_over(case: Case) -> None:
    topic, group = case.topic(), case.new_name()
    case.send(topic, b"1")
    former = case.receiver(topic, group=group, client_id="node-1")
    former.take()
    case.disturb()
    newcomer = case.receiver(topic, group=group, client_id="node-1")
    assert bodies(newcomer.take()) == [b"1"]
    with pytest.raises(Fenced):
        wait_until(lambda: former.consumer.poll(timeout=0.1), what="an error")


@pytest.mark.kinds("listener")
def test_an_orderly_consumer_repeats_a_failed_message_before_the_next_one(case: Case) -> None:
    topic = case.topic()
    case.send(topic, b"1", b"2")
    receiver = case.receiver(topic, orderly=True)
    for _ in range(2):
        message = receiver.take()
        assert bodies(message) == [b"1"]
        receiver.fail(message)
        case.disturb()
    first = receiver.take()
    receiver.finish(first)
    assert bodies([*first, *receiver.take()]) == [b"1", b"2"]
