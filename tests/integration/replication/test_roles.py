"""Replicas in this process, at a controller: what takes a fault that happens at one moment."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from minimq_broker.calls.engine import Engine
from minimq_broker.commit.store import Store, StoreOptions
from minimq_broker.log.checkpoint import Snapshot
from minimq_broker.log.segment import Segment
from minimq_broker.replication import feed, follower, frames, roles
from minimq_broker.replication.follower import Follower, MasterRef
from minimq_broker.replication.pauses import Break, FollowBackoff
from minimq_broker.replication.roles import new_run
from minimq_broker.replication.term_lease import Confirmations
from minimq_broker.state.facts import Topic, TopicDeleted, TopicSet
from minimq_common.errors import InternalError, InvalidArgument, NotEnoughReplicas, NotMaster
from minimq_common.replicas.replica_set import ReplicaReport
from minimq_common.wire import rpc
from minimq_proto.v1 import replication_pb2, replication_pb2_grpc
from support.controller_process import ControllerProcess
from support.kernel_stores import TIMEOUT_S
from support.relay import Relay
from support.replica import CLUSTER, NAME, replica, until
from support.replica_engine import LIMITS, make_topic, replica_engine
from support.waiting import wait_until
from support.woken import Woken


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[str]:
    with ControllerProcess(tmp_path / "controller", 1.0) as running:
        yield running.address


def test_of_two_processes_with_one_id_the_first_stays(
    tmp_path: Path, controller: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Their logs must never count as one replica, and they must not end each other's streams in turns."""

    async def test() -> None:
        async with replica(tmp_path / "0", controller, 0) as master, replica_engine(tmp_path / "2") as engine:
            await until(lambda: master.in_sync)
            async with replica(tmp_path / "1", controller, 1) as slave:
                await until(lambda: master.in_sync == {0, 1})
                assert master.roles.leadership is not None
                own = ReplicaReport(
                    cluster=CLUSTER,
                    broker_name=NAME,
                    replica_id=1,
                    run=new_run(),
                    address="127.0.0.1:1",
                    founds=False,
                    sync=False,
                    min_in_sync=1,
                )
                other = Follower(
                    engine, MasterRef(own, master.roles.leadership.term, master.roles.own.address), Confirmations(0)
                )
                other.start()
                await until(lambda: "a slave is rejected" in caplog.text and "stream broken" in caplog.text)
                rejected = next(record.message for record in caplog.records if "a slave is rejected" in record.message)
                assert slave.roles.own.address in rejected
                assert own.address in rejected
                assert "--id" in rejected
                await make_topic(master.engine)
                assert slave.roles.follower is not None
                assert slave.roles.follower.connected
                assert not other.connected
                assert sum("a slave is rejected" in record.message for record in caplog.records) == 1
                assert master.in_sync == {0, 1}
            await until(lambda: other.connected)  # once the first has left
            await other.stop()

    asyncio.run(test())


def test_of_two_processes_with_one_id_the_controller_hears_the_first(
    tmp_path: Path, controller: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with replica(tmp_path / "0", controller, 0) as master, replica(tmp_path / "1", controller, 1) as slave:
            await until(lambda: master.in_sync == {0, 1})
            async with replica(tmp_path / "2", controller, 1) as other:
                await until(lambda: "give one of them another --id" in caplog.text)
                assert slave.roles.own.address in caplog.text
                assert other.roles.own.address in caplog.text
                assert other.roles.follower is None
                await make_topic(master.engine)
                assert master.in_sync == {0, 1}
            assert slave.roles.follower is not None
            assert slave.roles.follower.connected

    asyncio.run(test())


@pytest.mark.parametrize(("cluster", "name"), [("another", NAME), (CLUSTER, "broker-x")])
def test_who_is_of_another_replica_set_does_not_follow(
    tmp_path: Path, controller: str, cluster: str, name: str
) -> None:
    async def test() -> None:
        async with replica(tmp_path / "0", controller, 0) as master:
            await until(lambda: master.in_sync)
            leadership = master.roles.leadership
            assert leadership is not None
            follow = replication_pb2.Follow(
                cluster=cluster, broker_name=name, replica_id=1, term=leadership.term, run=5, address="127.0.0.1:1"
            )
            async with rpc.open_aio_channel(master.roles.own.address) as channel:
                stub: Any = replication_pb2_grpc.ReplicationStub(channel)
                stream = stub.Replicate()
                await stream.write(replication_pb2.ReplicaRequest(follow=follow))
                with pytest.raises(grpc.RpcError) as rejected:
                    await stream.read()
            error = rpc.from_rpc_error(rejected.value, "the master")
            assert isinstance(error, InvalidArgument)
            assert error.message == f"{name} of cluster {cluster} does not follow {NAME} of cluster {CLUSTER}"
            assert leadership.progress() == {}

    asyncio.run(test())


def test_a_slave_that_alone_does_not_reach_its_master_serves_no_groups(tmp_path: Path) -> None:
    """They are served there, and two who grant the same queues would be one too many."""
    with ControllerProcess(tmp_path / "controller", 1.0) as controller, contextlib.ExitStack() as stack:
        ways: list[Relay] = []

        def over_a_relay(address: str) -> str:
            ways.append(stack.enter_context(Relay(address)))
            return ways[0].address

        async def test() -> None:
            async with (
                replica(tmp_path / "0", controller.address, 0, over_a_relay) as master,
                replica(tmp_path / "1", controller.address, 1) as slave,
            ):
                await until(lambda: master.in_sync == {0, 1})
                follower = slave.roles.follower
                assert follower is not None
                await asyncio.to_thread(ways[0].cut, for_good=True)
                await until(lambda: not follower.connected and master.in_sync == {0})
                with pytest.raises(NotMaster):
                    slave.engine.writes.check()
                await asyncio.to_thread(controller.kill)
                await until(lambda: slave.roles.controller_silent_s > 4.0)
                with pytest.raises(NotMaster):
                    slave.engine.writes.check()
                assert master.roles.rejection(to_sender=False) is None, "it is alone in its set"

        asyncio.run(test())


def test_a_slave_says_that_it_has_what_is_on_its_disk(
    tmp_path: Path, controller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, said = threading.Event(), list[int]()
    gate.set()
    write, acknowledgement = Segment.write, follower._EntryReceiver._acknowledgement

    def slowly(segment: Segment, *added: Any) -> None:
        assert not segment.path.is_relative_to(tmp_path / "1") or gate.wait(20)
        write(segment, *added)

    def note(intake: follower._EntryReceiver) -> replication_pb2.ReplicaRequest:
        request = acknowledgement(intake)
        said.append(request.synced)
        return request

    monkeypatch.setattr(Segment, "write", slowly)
    monkeypatch.setattr(follower._EntryReceiver, "_acknowledgement", note)

    async def test() -> None:
        async with replica(tmp_path / "0", controller, 0) as master, replica(tmp_path / "1", controller, 1) as slave:
            store = master.engine.store
            await until(lambda: master.in_sync == {0, 1} and said and said[-1] == store.end)
            before = store.end
            gate.clear()
            try:
                await make_topic(master.engine)
                await until(lambda: slave.roles.follower and slave.roles.follower.master_end == store.end > before)
                said.clear()
                await until(lambda: len(said) >= 2)
                assert set(said) == {before}
            finally:
                gate.set()
            await until(lambda: said[-1] == store.end)

    asyncio.run(test())


def test_a_master_whose_store_fails_resigns(tmp_path: Path, controller: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[Path] = []
    write = Segment.write

    def write_or_fail(segment: Segment, *added: Any) -> None:
        if any(segment.path.is_relative_to(path) for path in broken):
            raise OSError(errno.EIO, "no more")
        write(segment, *added)

    monkeypatch.setattr(Segment, "write", write_or_fail)

    async def test() -> None:
        async with replica(tmp_path / "0", controller, 0) as master, replica(tmp_path / "1", controller, 1) as slave:
            await until(lambda: master.in_sync == {0, 1})
            queue = await make_topic(master.engine, 10)
            await until(lambda: slave.engine.store.status.end == master.engine.store.status.end)
            broken.append(tmp_path / "0")
            with pytest.raises(InternalError):
                await make_topic(master.engine, name="other")
            await until(lambda: slave.roles.leadership is not None)
            await until(lambda: master.roles.leadership is None)
            broken.clear()  # it is left as it is until it is started anew
            assert master.engine.store.status.has_failed
            assert slave.engine.store.queue_end(queue).offset == 10
            assert (await make_topic(slave.engine, 1, name="more")).topic_id > queue.topic_id

    asyncio.run(test())


def test_a_slave_that_cannot_write_leaves_its_master_alone_for_longer_and_longer(
    tmp_path: Path, controller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full: list[Path] = []
    write, after = Segment.write, FollowBackoff.after
    attempts: list[tuple[Break, float]] = []

    def write_or_fail(segment: Segment, *added: Any) -> None:
        if any(segment.path.is_relative_to(path) for path in full):
            raise OSError(errno.ENOSPC, "no more")
        write(segment, *added)

    def note(pauses: FollowBackoff, cause: Break, followed_s: float) -> float:
        attempts.append((cause, after(pauses, cause, followed_s)))
        return attempts[-1][1]

    monkeypatch.setattr(Segment, "write", write_or_fail)
    monkeypatch.setattr(FollowBackoff, "after", note)

    async def test() -> None:
        async with replica(tmp_path / "0", controller, 0) as master, replica(tmp_path / "1", controller, 1) as slave:
            await until(lambda: master.in_sync == {0, 1})
            attempts.clear()
            full.append(tmp_path / "1")
            await make_topic(master.engine, 1)
            await until(lambda: len(attempts) >= 4)
            assert {cause for cause, _ in attempts} == {Break.OWN}
            assert all(later == 2 * earlier for (_, earlier), (_, later) in itertools.pairwise(attempts))
            full.clear()
            await until(lambda: slave.engine.store.status.end == master.engine.store.status.end)
            await until(lambda: master.in_sync == {0, 1})

    asyncio.run(test())


def test_a_report_that_cannot_be_made_is_told_and_made_later(
    tmp_path: Path, controller: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [ValueError("for once"), ValueError("and again")]

    def make_or_fail(own: ReplicaReport, **values: Any) -> ReplicaReport:
        if failures:
            raise failures.pop()
        return dataclasses.replace(own, **values)

    monkeypatch.setattr(roles, "replace", make_or_fail)

    async def test() -> None:
        async with replica(tmp_path / "0", controller, 0) as master:
            await until(lambda: master.in_sync == {0})

    asyncio.run(test())
    assert caplog.text.count("roles: no valid answer from the controller reason=ValueError('and again')") == 1
    assert caplog.text.count("Traceback") == 1
    assert "roles: the controller answers again failures=2 " in caplog.text


def test_a_master_may_have_much_to_read_before_its_first_word(
    tmp_path: Path, controller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (feed, follower, frames):
        monkeypatch.setattr(module, "SILENCE_S", 0.5)
    monkeypatch.setattr(follower, "HEARTBEAT_S", 0.1)
    gate, looks = threading.Event(), []
    snapshot = Store.snapshot

    def slowly(store: Store) -> Snapshot:
        looks.append(store)
        gate.wait(20)
        return snapshot(store)

    monkeypatch.setattr(Store, "snapshot", slowly)

    async def test() -> None:
        async with replica(tmp_path / "0", controller, 0) as master, replica_engine(tmp_path / "1") as engine:
            await until(lambda: master.in_sync)
            await make_topic(master.engine, 10)
            assert master.roles.leadership is not None
            own = ReplicaReport(
                cluster=CLUSTER,
                broker_name=NAME,
                replica_id=1,
                run=new_run(),
                address="127.0.0.1:1",
                founds=False,
                sync=False,
                min_in_sync=1,
            )
            slave = Follower(
                engine, MasterRef(own, master.roles.leadership.term, master.roles.own.address), Confirmations(0)
            )
            slave._anew = True
            slave.start()
            await until(lambda: looks)
            await asyncio.sleep(1.2)  # longer than either may be silent otherwise
            gate.set()
            await until(lambda: slave.connected and engine.store.status.end == master.engine.store.status.end)
            assert len(looks) == 1  # it came to the end at the first attempt
            await slave.stop()

    asyncio.run(test())


# ---- Changes of topics that are answered by an error, and stand all the same --------------------


@pytest.mark.parametrize("another_before", [False, True])
def test_a_change_that_is_answered_by_an_error_is_told_of(tmp_path: Path, another_before: bool) -> None:
    """It is not mistaken for told of when one that made it through was answered while this one was in the log."""
    told: list[int] = []

    async def run() -> None:
        engine = Engine(tmp_path, StoreOptions(), LIMITS, alone=False)
        engine.topic_listeners.append(lambda: told.append(len(engine.store.state.topics)))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await play(engine)
        finally:
            engine.close()

    async def play(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        queue = await make_topic(engine)
        await engine.lead(2, waits_for_replicas=True)
        engine.store.confirmation.confirm(engine.store.end)
        woken = Woken()
        engine.arrivals.add(queue, woken)
        before = engine.store.end
        made = asyncio.create_task(engine.writes.record(lambda state: TopicSet(Topic("u", state.position, 1, 1))))
        await asyncio.to_thread(wait_until, lambda: engine.store.end > before)
        middle = engine.store.end
        deleted = asyncio.create_task(engine.writes.record(lambda _: TopicDeleted("t")))
        await asyncio.to_thread(wait_until, lambda: engine.store.end > middle)
        told.clear()
        if another_before:
            engine.store.confirmation.confirm(middle)
            await made
        assert not woken.is_set()
        engine.store.confirmation.expire(math.inf)
        with pytest.raises(NotEnoughReplicas):
            await deleted
        assert told[-1] == 1
        await woken.wait()  # whoever waits for a message of a topic that is gone is told
        engine.store.confirmation.confirm(engine.store.end)
        await asyncio.gather(made, return_exceptions=True)
        assert set(engine.store.state.topics) == {"u"}

    asyncio.run(run())
