"""Streams end as soon as the key or the right of their caller does, and nothing of them is stored after that."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from minimq import Admin, Credentials, LocalCluster, Message, Producer, PullConsumer
from minimq.errors import AccessDenied, MiniMQError, NotAuthenticated
from minimq.local.certificate_authority import CertificateAuthority
from minimq_common import rpc
from minimq_common.security.credentials import CredentialsArgument
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc, nameserver_pb2, nameserver_pb2_grpc
from support.secure_scraping import trust_of
from support.waiting import wait_until

PATIENCE_S = 60.0
ROUND_S = 0.2
#: At the end of the year 9999.
LATEST_MS = 253_402_300_799_000
RULES = ["allow write topic orders", "allow read topic orders", "allow read group g-*"]

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def admin(secure: LocalCluster) -> Iterator[Admin]:
    with Admin(credentials=secure.credentials) as made:
        yield made


class Stream:
    """A stream on which one request was made; nothing more comes for minutes."""

    def __init__(self, call: Callable[..., Any], request: Any) -> None:  # noqa: ANN401 - of the generated classes
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests.put(request)
        self._answers = call(iter(self._requests.get, None), timeout=10 * PATIENCE_S)
        self.said: list[Any] = []
        self.error: MiniMQError | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for answer in self._answers:
                self.said.append(answer)
        except grpc.RpcError as error:
            self.error = rpc.from_rpc_error(error, "server")

    def wait_for(self, answers: int) -> None:
        wait_until(lambda: len(self.said) >= answers, PATIENCE_S, what="the requests are answered")

    def say(self, request: Any) -> None:  # noqa: ANN401 - of the generated classes
        self._requests.put(request)

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._requests.put(None)
        self._answers.cancel()
        self._thread.join(PATIENCE_S)


class Idle:
    """The streams that a client keeps, as one user.

    Args:
        secure: the cluster.
        text: the credentials.
        name: of groups and client ids.
        opened: closes them at the end.
    """

    def __init__(self, secure: LocalCluster, text: str, name: str, opened: ExitStack) -> None:
        broker, nameserver = stubs(secure, Credentials.from_text(text), opened)
        self.broker = broker
        take = broker_pb2.PopTake(topic="orders", max_messages=1, max_bytes=1, invisible_ms=1_000, wait_ms=60_000)
        take.start.at = broker_pb2.START_AT_LATEST
        ends = broker_pb2.GetOffsetRequest(topic="orders", timestamp_ms=LATEST_MS)
        end = broker.GetOffset(ends, timeout=PATIENCE_S).offset
        self.pull = broker_pb2.PullRequest(topic="orders", max_messages=1, max_bytes=1, wait_ms=60_000, offset=end)
        join = broker_pb2.JoinGroup(group=f"{name}-session", topics=["orders"], allocation="averagely")
        self.streams = {
            "append": Stream(broker.Append, broker_pb2.AppendRequest(topic="orders", batch=b"none")),
            "pull": Stream(broker.Pull, self.pull),
            "pop": Stream(broker.Pop, broker_pb2.PopRequest(group=f"{name}-pop", client_id=name, takes=[take])),
            "session": Stream(broker.Session, broker_pb2.SessionRequest(client_id=name, join=join)),
            "watch": Stream(nameserver.WatchRoutes, nameserver_pb2.WatchRoutesRequest(topics=["orders"])),
        }
        for stream in self.streams.values():
            opened.callback(stream.close)
        talking = [self.streams[name] for name in ("append", "session", "watch")]
        wait_until(lambda: all(stream.said for stream in talking), PATIENCE_S, what="the streams are served")

    def open(self) -> set[str]:
        """Return the names of the streams that are open."""
        return {name for name, stream in self.streams.items() if stream.is_open}

    def errors(self) -> set[str]:
        """Return the texts with which streams ended."""
        return {str(stream.error) for stream in self.streams.values() if not stream.is_open}


def stubs(secure: LocalCluster, credentials: CredentialsArgument | None, opened: ExitStack) -> tuple[Any, Any]:
    trust = trust_of(credentials)
    broker = opened.enter_context(rpc.open_channel(secure.brokers[0].address, trust))
    nameserver = opened.enter_context(rpc.open_channel(secure.nameserver, trust))
    return broker_pb2_grpc.BrokerStub(broker), nameserver_pb2_grpc.NameServerStub(nameserver)


def mutual(secure: LocalCluster, name: str, text: str) -> str:
    """Return the credentials of a user with the certificate that the cluster wants as well."""
    bearer = trust_of(Credentials.from_text(text)).bearer
    assert bearer is not None
    authority = CertificateAuthority(secure.data_dir / "secrets")
    return authority.credentials(name, [secure.nameserver], bearer)


class Sending:
    """A producer that sends as fast as it can, until it cannot."""

    def __init__(self, credentials: CredentialsArgument) -> None:
        self._credentials = credentials
        self._ends = False
        self.sent = 0
        self.error: MiniMQError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Producer(credentials=self._credentials, send_timeout_s=PATIENCE_S) as producer:
            while self.error is None and not self._ends:
                try:
                    self.sent += len(producer.send_many([Message("orders", b"x")] * 1_000))
                except MiniMQError as error:
                    self.error = error

    def stop(self) -> None:
        self._ends = True
        self.join()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def test_a_user_who_is_disabled_loses_all_streams_and_stores_nothing_more(secure: LocalCluster, admin: Admin) -> None:
    live = "live"
    with ExitStack() as opened:
        own = Idle(secure, text := mutual(secure, live, admin.add_user(live, RULES)), "g-live", opened)
        others = Idle(secure, mutual(secure, "bystander", admin.add_user("bystander", RULES)), "g-other", opened)
        sending = Sending(Credentials.from_text(text))
        wait_until(lambda: sending.sent >= 20_000, PATIENCE_S, what="it sends")
        administrator, _ = stubs(secure, secure.credentials, opened)
        admin.disable_user(live)  # it returns when this is in force everywhere
        stored = written_messages(administrator)
        wait_until(lambda: not own.open(), PATIENCE_S, what="its streams are ended")
        assert own.errors() == {f"the key of user {live} is not in force any more: this stream is ended"}
        sending.join()
        assert f"user {live} is disabled: an administrator" in str(sending.error)
        with pytest.raises(grpc.RpcError) as raised:
            own.broker.GetStatus(broker_pb2.GetStatusRequest(), timeout=PATIENCE_S)
        assert isinstance(rpc.from_rpc_error(raised.value, "broker"), NotAuthenticated)
        assert written_messages(administrator) == stored
        assert others.open() >= {"append", "pop", "session", "watch"}  # a pull ends with what was sent


def test_a_key_is_replaced_without_a_failed_send(secure: LocalCluster, admin: Admin, tmp_path: Path) -> None:
    file = tmp_path / "rotating.minimq"

    def write(text: str) -> None:
        file.write_text(mutual(secure, "rotating", text))

    write(admin.add_user("rotating", RULES))
    sending = Sending(file)
    for _ in range(3):
        wait_until(lambda before=sending.sent: sending.sent > before, PATIENCE_S, what="it sends")  # type: ignore[misc]
        write(admin.rotate_key("rotating"))
        admin.drop_old_keys("rotating")  # its streams end at once, maybe before it has looked at the file
    wait_until(lambda before=sending.sent: sending.sent > before, PATIENCE_S, what="it sends")  # type: ignore[misc]
    sending.stop()
    assert sending.error is None


def test_a_consumer_without_a_right_is_told_and_reads_once_it_has_it(
    secure: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    file = tmp_path / "reader.minimq"
    file.write_text(mutual(secure, "reader", admin.add_user("reader", ["allow read topic orders"])))
    with PullConsumer(credentials=file, group="g-reader", start="earliest", rebalance_interval_s=ROUND_S) as consumer:
        consumer.subscribe("orders")
        text = wait_until(lambda: polled(consumer), PATIENCE_S, what="it is refused")
        assert "`minimq user allow reader --group g-reader`" in str(text)
        admin.add_rules("reader", ["allow read group g-*"])
        wait_until(lambda: isinstance(found := polled(consumer), int) and found > 0, PATIENCE_S, what="it reads")


def polled(consumer: PullConsumer) -> int | str:
    """Return the number of messages of a poll, or the error."""
    try:
        return len(consumer.poll(ROUND_S))
    except AccessDenied as error:
        return error.message


def test_a_right_that_is_taken_is_lost_at_once_and_one_that_is_given_disturbs_nobody(
    secure: LocalCluster, admin: Admin
) -> None:
    live = "less"
    with ExitStack() as opened:
        own = Idle(secure, mutual(secure, live, admin.add_user(live, RULES)), "g-less", opened)
        others = Idle(secure, mutual(secure, "more", admin.add_user("more", RULES)), "g-more", opened)
        everything = own.open()
        assert everything == set(own.streams)
        admin.add_rules(live, ["allow read topic other"])
        assert (own.open(), others.open()) == (everything, everything)
        admin.remove_rules(live, ["allow read topic orders"])
        wait_until(lambda: own.open() == {"watch"}, PATIENCE_S, what="its streams to the broker are ended")
        assert own.errors() == {f"the rights of user {live} have changed: reopen this stream"}
        [frame] = own.broker.Pull(iter([own.pull]), timeout=PATIENCE_S)
        with pytest.raises(AccessDenied, match=f"`minimq user allow {live} --read orders`"):
            raise rpc.from_failure(frame.failure)
        assert others.open() == everything


def test_a_client_id_is_of_its_user_alone_in_the_groups_that_it_is_in(secure: LocalCluster, admin: Admin) -> None:
    with ExitStack() as opened:
        own = Idle(secure, mutual(secure, "owner", admin.add_user("owner", RULES)), "g-id", opened)
        thief, _ = stubs(secure, Credentials.from_text(mutual(secure, "thief", admin.add_user("thief", RULES))), opened)
        group = "g-id-session"
        requests = [
            broker_pb2.SessionRequest(client_id="g-id", heartbeat=broker_pb2.Heartbeat()),
            broker_pb2.SessionRequest(
                join=broker_pb2.JoinGroup(group=group, topics=["orders"], allocation="averagely")
            ),
            broker_pb2.SessionRequest(release=broker_pb2.ReleaseQueues(group=group)),
            broker_pb2.SessionRequest(leave=broker_pb2.LeaveGroup(group=group)),
        ]
        texts = [event.refused.failure.message for event in answers(thief, requests, opened)[1:]]
        assert all(f"is in use by another client in group '{group}'" in text for text in texts)
        assert "session" in own.open()
        assert members(own.broker, group) == ["g-id"]
        own.streams["session"].close()
        assert answers(own.broker, requests[:1], opened)[0].HasField("heartbeat")


def test_a_session_without_rights_keeps_no_client_id_from_its_owner(secure: LocalCluster, admin: Admin) -> None:
    with ExitStack() as opened:
        text = mutual(secure, "squatter", admin.add_user("squatter"))
        stranger, _ = stubs(secure, Credentials.from_text(text), opened)
        squatting = Stream(
            stranger.Session,
            broker_pb2.SessionRequest(client_id="g-wanted", heartbeat=broker_pb2.Heartbeat(number=1)),
        )
        opened.callback(squatting.close)
        squatting.wait_for(1)
        rightful = Idle(secure, mutual(secure, "rightful", admin.add_user("rightful", RULES)), "g-wanted", opened)
        # It may not push that one out either: what it is refused concerns itself alone.
        squatting.say(broker_pb2.SessionRequest(leave=broker_pb2.LeaveGroup(group="g-wanted-session")))
        squatting.wait_for(2)
        assert squatting.said[1].refused.failure.code == AccessDenied.code
        assert members(rightful.broker, "g-wanted-session") == ["g-wanted"]


def answers(stub: Any, requests: Sequence[Any], opened: ExitStack) -> list[Any]:  # noqa: ANN401 - of the generated classes
    """Return what a session answers to requests, one by one."""
    first, *others = requests
    session = Stream(stub.Session, first)
    opened.callback(session.close)
    for number, request in enumerate([*others, None], 1):
        session.wait_for(number)
        if request is not None:
            session.say(request)
    return session.said


def members(stub: Any, group: str) -> list[str]:  # noqa: ANN401 - of the generated class
    return [*stub.DescribeGroup(broker_pb2.DescribeGroupRequest(group=group), timeout=PATIENCE_S).client_ids]


def written_messages(stub: Any) -> int:  # noqa: ANN401 - of the generated class
    """Return where the queues of the topic end, once all that the broker has taken is written."""
    stub.Probe(broker_pb2.ProbeRequest(), timeout=PATIENCE_S)
    asked = [
        broker_pb2.GetOffsetRequest(topic="orders", queue_id=queue_id, timestamp_ms=LATEST_MS) for queue_id in range(2)
    ]
    return sum(stub.GetOffset(each, timeout=PATIENCE_S).offset for each in asked)
