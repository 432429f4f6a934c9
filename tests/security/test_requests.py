"""Requests and replies take the rights to send and to read, and no more; nobody else answers, or hears the reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import grpc
import pytest

from minimq import Admin, Credentials, LocalCluster, Message, Producer, PullConsumer
from minimq.errors import AccessDenied, DeadlineExceeded, NotAuthenticated, SendFailed
from minimq_common.security.certificates import Trust
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2_grpc, events_pb2
from support.replying import answer_to, service
from support.secure_scraping import trust_of
from support.users import Users
from support.waiting import wait_until

TIMEOUT_S = 60.0

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, data_dir=tmp_path_factory.mktemp("requests"), secure=True) as cluster:
        yield cluster


@pytest.fixture
def admin(secure: LocalCluster) -> Iterator[Admin]:
    with Admin(credentials=secure.credentials) as made:
        yield made


def test_who_may_send_asks_and_who_may_read_answers(
    secure: LocalCluster, admin: Admin, new_name: Callable[[], str]
) -> None:
    topic, group = new_name(), new_name()
    admin.create_topic(topic)
    asks = Credentials.from_text(Users(secure).add(new_name(), [f"allow write topic {topic}"]))
    answers = Credentials.from_text(
        Users(secure).add(new_name(), [f"allow read topic {topic}", f"allow read group {group}"])
    )
    with service(None, topic, group=group, credentials=answers), Producer(credentials=asks) as producer:
        assert producer.request(Message(topic, b"x"), timeout=TIMEOUT_S).body == answer_to(b"x")
    with Producer(credentials=answers) as producer, pytest.raises(AccessDenied):
        producer.request(Message(topic, b"x"), timeout=TIMEOUT_S)
    with PullConsumer(group=group, credentials=asks) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(AccessDenied):
            wait_until(lambda: consumer.poll(timeout=1.0), TIMEOUT_S)


def test_a_requester_whose_user_is_removed_hears_nothing_more(
    secure: LocalCluster, admin: Admin, new_name: Callable[[], str]
) -> None:
    topic, group, user = new_name(), new_name(), new_name()
    admin.create_topic(topic)
    asks = Credentials.from_text(Users(secure).add(user, [f"allow write topic {topic}"]))
    with service(None, topic, group=group, credentials=secure.credentials), Producer(credentials=asks) as producer:
        assert producer.request(Message(topic, b"x"), timeout=TIMEOUT_S).body == answer_to(b"x")
        Users(secure).disable(user)
        with pytest.raises((NotAuthenticated, DeadlineExceeded, SendFailed)):
            producer.request(Message(topic, b"x"), timeout=2.0)


def test_a_stranger_neither_attends_nor_replies(secure: LocalCluster) -> None:
    known = trust_of(secure.credentials)
    with closing(rpc.open_channel(secure.brokers[0].address, Trust(known.roots, known.pair, None))) as channel:
        stub = broker_pb2_grpc.BrokerStub(channel)
        hello = events_pb2.EventsRequest(client_id="c", inbox_key=bytes(32))
        reply = events_pb2.ReplyRequest(inboxes=[events_pb2.InboxReplies(inbox=bytes(16), count=1)])
        for stream in (stub.Events(iter([hello]), timeout=TIMEOUT_S), stub.Reply(iter([reply]), timeout=TIMEOUT_S)):
            with pytest.raises(grpc.RpcError) as raised:
                list(stream)
            assert isinstance(rpc.from_rpc_error(raised.value, "broker"), NotAuthenticated)
