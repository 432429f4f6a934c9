"""Dead letters of a cluster whose other broker hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, WorkQueueConsumer
from minimq_common.errors import TransportError
from support.command import Minimq
from support.waiting import wait_until

pytestmark = pytest.mark.fault


def test_the_dead_letters_of_other_brokers_are_listed_and_resent_while_one_hangs(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("t", queues=1)
        with Producer(cluster.nameserver) as producer, WorkQueueConsumer(cluster.nameserver, group="g") as consumer:
            consumer.subscribe("t")
            for name in ("broker-a", "broker-b"):
                producer.send(Message("t", name.encode()), queue=MessageQueue("t", name, 0))
            found = 0
            while found < 2:
                messages = consumer.receive(2, timeout=30)
                consumer.reject(messages, "bad")
                found += len(messages)
        wait_until(lambda: len(list(admin.dead_letters("g"))) == 2, what="dead letters")
        by_broker: dict[str, bytes] = {each.queue.broker_name: each.body for each in admin.dead_letters("g")}
        silent = next(broker for broker in cluster.brokers if broker.name == sorted(by_broker)[0])
        silent.pause()
        try:
            letters = admin.dead_letters("g")
            others = len([*by_broker]) - 1
            bodies = [next(letters).body for _ in range(others)]
            with pytest.raises(TransportError, match=f"broker {silent.name} does not answer"):
                next(letters)
            with Minimq(cluster.nameserver).running("dlq", "describe", "g", "--output", "raw") as showing:
                shown, _ = showing.communicate(timeout=120)
            assert (shown.splitlines(), showing.returncode) == (bodies, 1)
            assert sum(each.count for each in admin.count_dead_letters("g")) == others
            with pytest.raises(TransportError, match=f"{others} dead letters of group g were resent"):
                admin.resend_dead_letters("g")
        finally:
            silent.resume()
