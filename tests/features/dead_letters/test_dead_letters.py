"""Dead letters on a broker that deletes everything else within moments."""

from __future__ import annotations

import asyncio
from pathlib import Path

from minimq import ConsumeResult, Message, PushConsumer
from minimq_broker.backup.check import check_directory
from minimq_broker.backup.copying import take_snapshot
from minimq_common.names import dead_letter_topic
from support.reading import read_all
from support.scraping import Scrape, metrics_address
from support.small_segments import QUEUE, SEGMENT, TIMEOUT_S, World, world_of
from support.waiting import wait_until

DEAD = dead_letter_topic("g")
SHOWN = {"metrics": "127.0.0.1:0", "log_format": "json"}


def give_up(world: World, *bodies: bytes) -> None:
    """Let group g read the topic, however long that takes, and give all of these messages up."""
    world.admin.update_topic("t", retention_s=3600)
    with PushConsumer(
        world.nameserver, group="g", max_deliveries=1, commit_interval_s=0.05, start="earliest"
    ) as consumer:
        consumer.subscribe("t")
        consumer.start(lambda _: ConsumeResult.RETRY_LATER)
        for body in bodies:
            world.producer.send(Message("t", body, keys=["k"], properties={"p": "v"}), queue=QUEUE)
        wait_until(lambda: dead_letters(world) == len(bodies), TIMEOUT_S, what="dead letters")
        wait_until(lambda: world.admin.describe_group("g").lag == 0, TIMEOUT_S, what="the commit of the last one")
    world.admin.update_topic("t", retention_s=0)


def read(world: World) -> list[tuple[object, ...]]:
    """Return all that is known of the dead letters, in their order."""
    return [
        (message.queue, message.queue_offset, message.body, message.properties, message.stored_at)
        for message in read_all(world.nameserver, DEAD)
    ]


def dead_letters(world: World) -> int:
    return sum(found.dead_letters for found in world.admin.describe_groups() if found.group == "g")


def test_they_are_read_when_everything_else_has_gone(tmp_path: Path) -> None:
    bodies = [b"dead %d" % number for number in range(3)]
    with world_of(tmp_path / "cluster", retention_s=0.3, **SHOWN) as world:
        [broker] = world.cluster.brokers
        give_up(world, *bodies)
        assert world.admin.resend_dead_letters("g", ids=f"{QUEUE.broker_name}:0@1") == 1
        before = read(world)
        end = world.send(10)[-1] + 1
        world.wait_until_empty(end)

        assert read(world) == before
        assert {body for _, _, body, _, _ in before} == {*bodies}
        assert dead_letters(world) == 3
        assert [count.count for count in world.admin.count_dead_letters("g")] == [2]  # what was resent is known too
        found = Scrape(metrics_address(broker.log_path))
        assert found.value("minimq_broker_dead_letters", group="g") == 3
        assert found.value("minimq_broker_dead_letter_bytes") > 0
        assert found.value("minimq_broker_group_lag_messages", group="g", topic="t") == 0

        copied = tmp_path / "copied"
        asyncio.run(take_snapshot(broker.address, copied, SEGMENT, lambda start, end: lambda position: None))
        assert check_directory(copied).findings == []
        world.restart()
        wait_until(lambda: world.admin.broker_status()[0].report, TIMEOUT_S)
        assert read(world) == before

        world.admin.delete_group("g", dead_letters=True)
        assert DEAD not in world.admin.list_topics()
        left = Scrape(metrics_address(broker.log_path))
        for metric in ("minimq_broker_dead_letters", "minimq_broker_group_lag_messages"):
            assert left.series(metric) == []
