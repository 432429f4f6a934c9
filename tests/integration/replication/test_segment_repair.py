"""A damaged segment of a slave is rebuilt from its master by itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from minimq import LocalCluster, Message, Producer
from minimq.local.server_process import BrokerProcess
from minimq_broker.calls.engine import Engine
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.features.retention.retention import NOTHING_NEEDED
from minimq_common.batch import header as batch
from support.controller_process import ControllerProcess
from support.reading import read_all
from support.replica import replica, until
from support.replica_engine import make_topic
from support.replicas import LEASE_S, TIMEOUT_S, find_master, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.stores import batches_of, make_batch
from support.waiting import wait_until

#: A segment has ten of these at most.
BODY = bytes(8000)
OPTIONS: dict[str, Any] = {"segment_bytes": 1 << 16, "upkeep_interval_s": 0.1}


def send(cluster: LocalCluster, count: int) -> None:
    with Producer(cluster.nameserver) as producer:
        for number in range(count):
            producer.send(Message("t", b"%4d" % number + BODY))
    wait_caught_up(cluster)


def segments(broker: BrokerProcess) -> list[Path]:
    return sorted((broker.data_dir / "commitlog").glob("*.mdb"))


def flip(file: Path) -> None:
    """Flip a bit of the middle of a body in a file; once it is in order again, it is another file."""
    data = bytearray(file.read_bytes())
    at = data.index(bytes(4000), len(data) // 2)
    data[at] ^= 1
    file.write_bytes(data)


def log_of(broker: BrokerProcess) -> str:
    return broker.log_path.read_text()


def test_a_flipped_bit_in_an_old_segment_of_a_slave_is_repaired(tmp_path: Path) -> None:
    with replicas(tmp_path, verify_interval_s=0.3, **OPTIONS) as cluster:
        master, slave = cluster.brokers
        send(cluster, 40)
        slave.stop()
        damaged = segments(slave)[1]
        flip(damaged)
        slave.start()
        text = f"a damaged segment was repaired segment={int(damaged.stem)} "
        wait_until(lambda: text in log_of(slave), TIMEOUT_S, what="the segment is rebuilt")
        assert f"roles: a segment is damaged, and will be repaired segment={int(damaged.stem)} " in log_of(slave)
        wait_in_sync(cluster, master, slave)
        assert not list(damaged.parent.glob("*.damaged"))
        assert len(read_all(cluster.nameserver, "t")) == 40
        assert text not in log_of(master)
    # `replicas` compares both logs, byte by byte, and verifies them


def test_damage_at_a_master_is_told_and_repaired_once_it_follows(tmp_path: Path) -> None:
    with replicas(tmp_path, verify_interval_s=0.3, **OPTIONS) as cluster:
        master, slave = cluster.brokers
        send(cluster, 30)
        slave.stop()
        wait_in_sync(cluster, master)
        master.stop()
        flip(segments(master)[0])
        segments(master)[1].with_suffix(".damaged").touch()  # the last one in sync leads nevertheless
        master.start()
        assert wait_for_master(cluster) == master
        wait_until(lambda: "store: a segment is damaged segment=0 " in log_of(master), TIMEOUT_S)
        slave.start()
        wait_in_sync(cluster, master, slave)
        assert "segment was repaired segment=" not in log_of(master)
        master.stop()
        assert wait_for_master(cluster, master) == slave
        master.start()
        wait_until(lambda: "a damaged segment was repaired segment=0 " in log_of(master), TIMEOUT_S)
        wait_in_sync(cluster, master, slave)


@pytest.mark.parametrize("first", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_slave_that_knows_of_damage_is_not_elected_before_it_is_repaired(tmp_path: Path, first: bool) -> None:
    with replicas(tmp_path, **OPTIONS) as cluster:
        master, slave = cluster.brokers
        send(cluster, 30)
        wait_in_sync(cluster, master, slave)
        [controller] = cluster.nameservers
        controller.pause()  # so the slave stays recorded as in sync
        master.kill()
        slave.kill()
        controller.resume()
        file = segments(slave)[0 if first else -1]
        file.with_suffix(".damaged").touch()
        slave.start()
        until = time.monotonic() + 3 * LEASE_S
        wait_until(lambda: time.monotonic() > until, what="time passes")
        assert find_master(cluster) is None
        master.start()
        assert wait_for_master(cluster) == master
        wait_in_sync(cluster, master, slave)
        assert f"a damaged segment was repaired segment={int(file.stem)} " in log_of(slave)


async def appended(engine: Engine, count: int) -> None:
    """Append batches that fill a segment of 64 KiB by eights."""
    for number in range(count):
        data = make_batch([b"%4d" % number + BODY])
        answer: asyncio.Queue[AppendJob] = asyncio.Queue()
        await engine.writes.append(AppendJob("t", 0, data, batch.read_header(data), done=answer.put_nowait))
        assert (await answer.get()).error is None


@pytest.mark.parametrize("slave_bytes", [1 << 16, 200_000])
def test_what_the_master_has_deleted_is_deleted_and_the_rest_is_repaired(tmp_path: Path, slave_bytes: int) -> None:
    """A segment of the slave is deleted at the master as a whole, or in part: files end at other places there."""

    async def run(controller: str) -> None:
        async with (
            replica(tmp_path / "a", controller, 0, segment_bytes=1 << 16, checkpoint_interval_s=0.05) as master,
            replica(tmp_path / "b", controller, 1, segment_bytes=slave_bytes, checkpoint_interval_s=0.05) as slave,
        ):
            await until(lambda: master.in_sync == {0, 1})
            await make_topic(master.engine)
            await appended(master.engine, 60)
            mine, theirs = master.engine.store, slave.engine.store
            await until(lambda: mine.end == theirs.end == mine.saved_position == theirs.saved_position)
            assert mine.old.remove_first(NOTHING_NEEDED)
            assert mine.old.remove_first(NOTHING_NEEDED)
            damaged = [segment.start for segment in theirs.log.segments if segment.start < mine.log.start][-1]
            slave.engine.handle.damage.found(damaged, "a test says so")
            await until(lambda: slave.engine.store.log.start == mine.log.start)
            await until(lambda: not theirs.log.damage.reasons and master.in_sync == {0, 1})
            assert theirs.log.start == mine.log.start
            queue = slave.engine.state.queue("t", 0)
            assert theirs.bounds(queue) == mine.bounds(queue)
            assert batches_of(theirs, queue, theirs.bounds(queue)[0], 100, 1 << 30) == batches_of(
                mine, queue, mine.bounds(queue)[0], 100, 1 << 30
            )
            await appended(master.engine, 5)
            await until(lambda: mine.end == theirs.end)

    with ControllerProcess(tmp_path / "controller", LEASE_S) as controller:
        asyncio.run(run(controller.address))


def test_what_is_damaged_at_both_is_left_and_the_slave_follows(tmp_path: Path) -> None:
    with replicas(tmp_path, verify_interval_s=0.3, **OPTIONS) as cluster:
        master, slave = cluster.brokers
        send(cluster, 30)
        slave.stop()
        master.stop()
        sound = {file: file.read_bytes() for broker in (master, slave) for file in segments(broker)[:1]}
        for file in sound:
            flip(file)
        master.start()
        wait_for_master(cluster)
        slave.start()
        wait_until(lambda: "is damaged here and at the master segment=0 " in log_of(slave), TIMEOUT_S)
        wait_in_sync(cluster, master, slave)
        for broker in (slave, master):
            broker.stop()
        for file, data in sound.items():
            file.write_bytes(data)
