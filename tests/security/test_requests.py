"""Requesters need the right to read their topic of replies, and services to write it; no other user reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from minimq import Admin, Credentials, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq.errors import AccessDenied, DeadlineExceeded, InvalidArgument, NotAuthenticated, SendFailed
from support.replying import answer_to, service
from support.users import Users

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


def test_a_requester_reads_its_topic_of_replies_and_services_write_it(
    secure: LocalCluster, admin: Admin, new_name: Callable[[], str]
) -> None:
    topic, group, user, other = new_name(), new_name(), new_name(), new_name()
    admin.create_topic(topic)
    users, asks = Users(secure), [f"allow write topic {topic}", "allow read topic %REPLY%${user}"]
    asking, others = (Credentials.from_text(users.add(name, asks)) for name in (user, other))
    reads = [f"allow read topic {topic}", f"allow read group {group}"]
    answering = Credentials.from_text(users.add(new_name(), [*reads, "allow write topic %REPLY%*"]))
    with (
        service(None, topic, group=group, credentials=answering),
        Producer(credentials=asking, reply_topic=f"%REPLY%{user}") as producer,
        PullConsumer(group=group, credentials=others) as reader,
    ):
        assert producer.request(Message(topic, b"x"), timeout=TIMEOUT_S).body == answer_to(b"x")
        with pytest.raises(AccessDenied):
            reader.assign([MessageQueue(f"%REPLY%{user}", secure.brokers[0].broker_name, 0)])
    for wrong in ("%REPLY%", f"%REPLY%{user}"):
        with Producer(credentials=others, reply_topic=wrong) as producer, pytest.raises(AccessDenied, match=wrong):
            producer.request(Message(topic, b"x"), timeout=TIMEOUT_S)
    with Producer(credentials=asking, reply_topic=topic) as producer, pytest.raises(InvalidArgument, match="%REPLY%"):
        producer.request(Message(topic, b"x"), timeout=TIMEOUT_S)


def test_a_service_that_may_not_write_the_topic_of_replies_does_not_answer(
    secure: LocalCluster, admin: Admin, new_name: Callable[[], str]
) -> None:
    topic, group = new_name(), new_name()
    admin.create_topic(topic)
    reads = [f"allow read topic {topic}", f"allow read group {group}"]
    answering = Credentials.from_text(Users(secure).add(new_name(), reads))
    with (
        service(None, topic, group=group, credentials=answering),
        Producer(credentials=secure.credentials) as producer,
        pytest.raises(DeadlineExceeded, match="has no reply yet"),
    ):
        producer.request(Message(topic, b"x"), timeout=3.0)


def test_a_requester_whose_user_is_removed_hears_nothing_more(
    secure: LocalCluster, admin: Admin, new_name: Callable[[], str]
) -> None:
    topic, group, user = new_name(), new_name(), new_name()
    admin.create_topic(topic)
    asks = Credentials.from_text(Users(secure).add(user, [f"allow write topic {topic}", "allow read topic %REPLY%"]))
    with service(None, topic, group=group, credentials=secure.credentials), Producer(credentials=asks) as producer:
        assert producer.request(Message(topic, b"x"), timeout=TIMEOUT_S).body == answer_to(b"x")
        Users(secure).disable(user)
        with pytest.raises((NotAuthenticated, DeadlineExceeded, SendFailed)):
            producer.request(Message(topic, b"x"), timeout=2.0)
