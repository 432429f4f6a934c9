"""Users with limits are served, at their rate and not faster; others are served meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from minimq import Admin, Credentials, LocalCluster, Message, Producer, PullConsumer
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2_grpc, delay_pb2, find_pb2
from support.scraping import metrics_address
from support.secure_scraping import scrape, trust_of
from support.waiting import wait_until

TIMEOUT_S = 60.0
#: So slow that a busy machine has each batch ready long before its turn.
RATE = 1 << 18
BODY = bytes(64 << 10)
#: Three seconds' worth, of which one second's is free.
COUNT = 3 * RATE // len(BODY)

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("limits")
    with LocalCluster(
        brokers=1, data_dir=folder, secure=True, broker_options={"metrics": "127.0.0.1:0", "log_format": "json"}
    ) as cluster:
        yield cluster


@pytest.fixture
def admin(secure: LocalCluster) -> Iterator[Admin]:
    with Admin(credentials=secure.credentials) as made:
        yield made


def throttled(secure: LocalCluster, folder: Path) -> dict[tuple[str, str], float]:
    """Seconds that users have waited at the broker, by user and direction."""
    address = metrics_address(secure.brokers[0].log_path)
    shown = text_string_to_metric_families(scrape(address, trust_of(secure.credentials), folder))
    return {
        (sample.labels["user"], sample.labels["direction"]): sample.value
        for family in shown
        for sample in family.samples
        if sample.name == "minimq_broker_throttled_seconds_total"
    }


def test_a_user_sends_at_the_limit_and_others_as_fast_as_they_can(
    secure: LocalCluster, admin: Admin, new_name: Callable[[], str], tmp_path: Path
) -> None:
    topic, slow, other = new_name(), new_name(), new_name()
    admin.create_topic(topic, queues=2)
    users = {
        name: Credentials.from_text(admin.add_user(name, [f"allow write topic {topic}"])) for name in (slow, other)
    }
    admin.limit_user(slow, in_bytes_per_s=RATE)
    began = time.monotonic()
    with Producer(credentials=users[slow], batch_bytes=len(BODY), compression="none") as producer:
        futures = [producer.send_async(Message(topic, BODY)) for _ in range(COUNT)]
        with Producer(credentials=users[other], compression="none") as quick:
            assert len(quick.send_many([Message(topic, BODY)] * COUNT)) == COUNT
        for future in futures:
            future.result(TIMEOUT_S)
    assert time.monotonic() - began > 1.5  # nothing on the way is faster than the limit
    waited = throttled(secure, tmp_path)
    assert waited[slow, "in"] > 0
    assert (other, "in") not in waited


def test_a_user_searches_and_lists_delayed_messages_at_the_limit(
    secure: LocalCluster, admin: Admin, new_name: Callable[[], str], tmp_path: Path
) -> None:
    topic, user = new_name(), new_name()
    admin.create_topic(topic, queues=1)
    reads = Credentials.from_text(admin.add_user(user, [f"allow read topic {topic}"]))
    bodies = [bytes(RATE)] * 2  # two seconds of the limit; the first second is free
    with Producer(credentials=secure.credentials, compression="none") as producer:
        producer.send_many([Message(topic, body, keys=("k",)) for body in bodies])
        producer.send_many([Message(topic, body, deliver_after_s=3_600) for body in bodies])
    admin.limit_user(user, out_bytes_per_s=RATE)
    with rpc.open_channel(secure.brokers[0].address, trust_of(reads)) as channel:
        stub, before = broker_pb2_grpc.BrokerStub(channel), 0.0
        find = find_pb2.FindRequest(topic=topic, key="k")
        delayed = delay_pb2.ListDelayedRequest(topic=topic, max_batches=1_000, with_batches=True)
        # The first list waits for what the search has moved, the second for what the first has.
        calls: list[tuple[Any, Any]] = [(stub.Find, find), (stub.ListDelayed, delayed), (stub.ListDelayed, delayed)]

        def has_waited(call: Any, request: Any) -> bool:
            answer = call(request, timeout=TIMEOUT_S)
            assert sum(len(each.batch) for each in answer.batches) > 2 * RATE
            return throttled(secure, tmp_path)[user, "out"] > before

        for call, request in calls:
            wait_until(partial(has_waited, call, request), TIMEOUT_S)
            before = throttled(secure, tmp_path)[user, "out"]


def test_a_user_reads_at_the_limit_until_it_is_lifted(
    secure: LocalCluster, admin: Admin, new_name: Callable[[], str], tmp_path: Path
) -> None:
    topic, group, user = new_name(), new_name(), new_name()
    admin.create_topic(topic, queues=1)
    reads = Credentials.from_text(admin.add_user(user, [f"allow read topic {topic}", f"allow read group {group}"]))
    with Producer(credentials=secure.credentials, compression="none") as producer:
        producer.send_many([Message(topic, BODY)] * 40 * COUNT)
    admin.limit_user(user, out_bytes_per_s=RATE)
    with PullConsumer(group=group, credentials=reads) as consumer:
        consumer.subscribe(topic)
        received = 0

        def received_all() -> bool:
            nonlocal received
            received += len(consumer.poll(timeout=0.2))
            return received >= 40 * COUNT

        wait_until(lambda: received_all() or throttled(secure, tmp_path).get((user, "out"), 0) > 1, TIMEOUT_S)
        assert received < 40 * COUNT  # which would take two minutes
        admin.limit_user(user, out_bytes_per_s=0)
        wait_until(received_all, TIMEOUT_S)
