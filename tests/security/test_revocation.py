"""Streams end as soon as the key or the right of their caller does, and nothing of them is stored after that."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from minimq import Admin, ConsumeResult, Credentials, LocalCluster, Message, Producer, PullConsumer, PushConsumer
from minimq.consuming import group_member
from minimq.errors import AccessDenied, NotAuthenticated
from minimq_broker.assembly import BrokerOptions
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2
from support.live_user import RULES, TIMEOUT_S, Idle, Sending, Stream, stubs, written_messages
from support.users import Users
from support.waiting import wait_until

ROUND_S = 0.2

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def users(secure: LocalCluster) -> Users:
    return Users(secure)


@pytest.fixture(scope="module")
def admin(secure: LocalCluster) -> Iterator[Admin]:
    with Admin(credentials=secure.credentials) as made:
        yield made


def test_a_user_who_is_disabled_loses_all_streams_and_stores_nothing_more(secure: LocalCluster, users: Users) -> None:
    live = "live"
    with ExitStack() as opened:
        own = Idle(secure, text := users.add(live, RULES), "g-live", opened)
        others = Idle(secure, users.add("bystander", RULES), "g-other", opened)
        sending = Sending(Credentials.from_text(text))
        wait_until(lambda: sending.sent >= 20_000, TIMEOUT_S, what="it sends")
        administrator, _ = stubs(secure, secure.credentials, opened)
        users.disable(live)  # it returns when this is in force everywhere
        stored = written_messages(administrator)
        wait_until(lambda: not own.open(), TIMEOUT_S, what="its streams are ended")
        assert own.errors() == {f"the key of user {live} is not in force any more: this stream is ended"}
        sending.join()
        assert f"user {live} is disabled: an administrator" in str(sending.error)
        with pytest.raises(grpc.RpcError) as raised:
            own.broker.GetStatus(broker_pb2.GetStatusRequest(), timeout=TIMEOUT_S)
        assert isinstance(rpc.from_rpc_error(raised.value, "broker"), NotAuthenticated)
        assert written_messages(administrator) == stored
        assert others.open() >= {"append", "pop", "session", "watch"}  # a pull ends with what was sent


def test_a_key_is_replaced_without_a_failed_send(secure: LocalCluster, users: Users, tmp_path: Path) -> None:
    file = tmp_path / "rotating.minimq"

    file.write_text(users.add("rotating", RULES))
    sending = Sending(file)
    for _ in range(3):
        wait_until(lambda before=sending.sent: sending.sent > before, TIMEOUT_S, what="it sends")  # type: ignore[misc]
        file.write_text(users.rotate("rotating"))
        users.delete_old_keys("rotating")  # its streams end at once, maybe before it has looked at the file
    wait_until(lambda before=sending.sent: sending.sent > before, TIMEOUT_S, what="it sends")  # type: ignore[misc]
    sending.stop()
    assert sending.error is None


def test_a_consumer_without_a_right_is_told_and_reads_once_it_has_it(
    secure: LocalCluster, users: Users, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_member, "REBALANCE_INTERVAL_S", ROUND_S)
    file = tmp_path / "reader.minimq"
    file.write_text(users.add("reader", ["allow read topic orders"]))
    with PullConsumer(credentials=file, group="g-reader", start="earliest") as consumer:
        consumer.subscribe("orders")
        text = wait_until(lambda: polled(consumer), TIMEOUT_S, what="it is rejected")
        assert "`minimq user allow reader --group g-reader`" in str(text)
        users.allow("reader", "allow read group g-*")
        wait_until(lambda: isinstance(found := polled(consumer), int) and found > 0, TIMEOUT_S, what="it reads")


def test_a_listener_goes_on_with_its_other_topics_while_one_is_rejected(
    secure: LocalCluster, admin: Admin, users: Users, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("allowed", "rejected"):
        admin.create_topic(topic, queues=1)
    key = users.add("listener", ["allow read topic *", "allow read group g-listener"])
    heard: list[object] = []

    def hear(message: object) -> ConsumeResult:
        heard.append(message)
        return ConsumeResult.SUCCESS

    credentials = Credentials.from_text(key)
    with PushConsumer(
        credentials=credentials, group="g-listener", mode="work_queue", start="earliest", threads=1, batch_size=1
    ) as consumer:
        for topic in ("allowed", "rejected"):
            consumer.subscribe(topic)
        consumer.start(hear)
        users.allow("listener", "deny read topic rejected")
        wait_until(lambda: rejections(caplog), TIMEOUT_S, what="a topic is rejected")
        with Producer(credentials=secure.credentials) as producer:
            producer.send_many([Message("allowed", b"x")] * 40)
        wait_until(lambda: len(heard) == 40, TIMEOUT_S, what="all messages are there")
    assert rejections(caplog) < 10, "there is more than one for four messages"


def rejections(caplog: pytest.LogCaptureFixture) -> int:
    """Return how often a listener's consumer was rejected."""
    return sum("cannot take" in record.getMessage() for record in caplog.records)


def polled(consumer: PullConsumer) -> int | str:
    """Return the number of messages of a poll, or the error."""
    try:
        return len(consumer.poll(ROUND_S))
    except AccessDenied as error:
        return error.message


def test_a_right_that_is_taken_is_lost_at_once_and_one_that_is_given_disturbs_nobody(
    secure: LocalCluster, users: Users
) -> None:
    live = "less"
    with ExitStack() as opened:
        own = Idle(secure, users.add(live, RULES), "g-less", opened)
        others = Idle(secure, users.add("more", RULES), "g-more", opened)
        everything = own.open()
        assert everything == set(own.streams)
        users.allow(live, "allow read topic other")
        assert (own.open(), others.open()) == (everything, everything)
        users.delete_rules(live, "allow read topic orders")
        wait_until(lambda: not own.open(), TIMEOUT_S, what="its streams end")
        assert own.errors() == {f"the rights of user {live} have changed: reopen this stream"}
        [frame] = own.broker.Pull(iter([own.pull]), timeout=TIMEOUT_S)
        with pytest.raises(AccessDenied, match=f"`minimq user allow {live} --read orders`"):
            raise rpc.from_failure(frame.failure)
        assert others.open() == everything


def test_a_client_id_is_of_its_user_alone_in_the_groups_that_it_is_in(secure: LocalCluster, users: Users) -> None:
    with ExitStack() as opened:
        own = Idle(secure, users.add("owner", RULES), "g-id", opened)
        thief, _ = stubs(secure, Credentials.from_text(users.add("thief", RULES)), opened)
        group = "g-id-session"
        requests = [
            broker_pb2.SessionRequest(client_id="g-id", heartbeat=broker_pb2.Heartbeat()),
            broker_pb2.SessionRequest(
                join=broker_pb2.JoinGroup(group=group, topics=["orders"], allocation="averagely")
            ),
            broker_pb2.SessionRequest(release=broker_pb2.ReleaseQueues(group=group)),
            broker_pb2.SessionRequest(leave=broker_pb2.LeaveGroup(group=group)),
        ]
        texts = [event.rejected.failure.message for event in answers(thief, requests, opened)[1:]]
        assert all(f"is in use by another client in group '{group}'" in text for text in texts)
        assert "session" in own.open()
        assert members(own.broker, group) == ["g-id"]
        own.streams["session"].close()
        assert answers(own.broker, requests[:1], opened)[0].HasField("heartbeat")


def test_a_client_id_is_kept_for_its_user_in_the_grace_of_its_session(secure: LocalCluster, users: Users) -> None:
    with ExitStack() as opened:
        text = users.add("absent", RULES)
        other = users.add("thief-of-ids", RULES)
        thief, _ = stubs(secure, Credentials.from_text(other), opened)
        numbers = itertools.count()

        def stolen_in_time() -> str:
            """Return what the thief is told; nothing if that took so long that the grace may have been over."""
            name = f"g-absent-{next(numbers)}"
            absent = Idle(secure, text, name, opened)
            began = time.monotonic()
            absent.streams["session"].close()
            join = broker_pb2.JoinGroup(group=f"{name}-session", topics=["orders"], allocation="averagely")
            [said] = answers(thief, [broker_pb2.SessionRequest(client_id=name, join=join)], opened)
            return str(said) if time.monotonic() - began < BrokerOptions().session_grace_s else ""

        said = wait_until(stolen_in_time, TIMEOUT_S, what="the thief comes in time")
        assert "is in use by another client in group" in said


def test_a_session_without_rights_keeps_no_client_id_from_its_owner(secure: LocalCluster, users: Users) -> None:
    with ExitStack() as opened:
        text = users.add("squatter")
        stranger, _ = stubs(secure, Credentials.from_text(text), opened)
        squatting = Stream(
            stranger.Session, broker_pb2.SessionRequest(client_id="g-wanted", heartbeat=broker_pb2.Heartbeat(number=1))
        )
        opened.callback(squatting.close)
        squatting.wait_for(1)
        rightful = Idle(secure, users.add("rightful", RULES), "g-wanted", opened)
        # It may not push that one out either: what it is rejected concerns itself alone.
        squatting.say(broker_pb2.SessionRequest(leave=broker_pb2.LeaveGroup(group="g-wanted-session")))
        squatting.wait_for(2)
        assert squatting.said[1].rejected.failure.code == AccessDenied.code
        assert members(rightful.broker, "g-wanted-session") == ["g-wanted"]


def answers(stub: Any, requests: Sequence[Any], opened: ExitStack) -> list[Any]:
    """Return what a session answers to requests, one by one."""
    first, *others = requests
    session = Stream(stub.Session, first)
    opened.callback(session.close)
    for number, request in enumerate([*others, None], 1):
        session.wait_for(number)
        if request is not None:
            session.say(request)
    return session.said


def members(stub: Any, group: str) -> list[str]:
    return [*stub.DescribeGroup(broker_pb2.DescribeGroupRequest(group=group), timeout=TIMEOUT_S).client_ids]
