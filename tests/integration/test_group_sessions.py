"""Members of a group at one broker, word by word: holds, deaths, restarts, rounds and deleted topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from minimq_common.errors import Fenced
from minimq_proto.v1 import broker_pb2
from support.raw_member import RawMember

#: Longer than any test waits.
LONG_MS = 60_000


@pytest.fixture
def member(cluster: LocalCluster) -> Iterator[Callable[[str], RawMember]]:
    """Connect members to the first broker."""
    with ExitStack() as members:
        yield lambda client_id: members.enter_context(RawMember(cluster.brokers[0].address, client_id))


Connect = Callable[[str], RawMember]


# ---- member lists -------------------------------------------------------------------------------


def test_members_that_join_together_make_few_rounds(member: Connect, topic: str, group: str) -> None:
    members = [member(f"{group}-{number}") for number in range(10)]
    for one in members:
        one.say(heartbeat=broker_pb2.Heartbeat())
        one.hear("heartbeat")
    for one in members:
        one.join(group, topic)

    versions = set()
    for one in members:
        told = one.hear("members").members
        while len(told.client_ids) < len(members):
            versions.add(told.version)
            told = one.hear("members").members
        versions.add(told.version)
    print(f"{len(versions)} rounds")
    assert len(versions) < len(members)


def test_all_are_told_the_same_of_what_each_held_when_the_version_began(
    member: Connect, topic: str, group: str
) -> None:
    first, second = member(f"{group}-1"), member(f"{group}-2")
    here, there = (
        broker_pb2.QueueName(topic=topic, broker_name=name, queue_id=0) for name in ("broker-a", "elsewhere")
    )
    first.join(group, topic, held=[there])
    assert [list(item.queues) for item in first.hear("members").members.held] == [[there]]
    first.say(holding=broker_pb2.Holding(group=group, queues=[here]))
    first.hears_before_heartbeat()  # by now it is taken in

    second.join(group, topic)
    told = first.hear("members").members
    assert second.hear("members").members == told
    assert [(item.client_id, list(item.queues)) for item in told.held] == [(f"{group}-1", [here])]

    first.join(group, topic, held=[])  # which is no change: it hears what it has heard
    again = first.hear("members").members
    assert again.now_ms >= told.now_ms
    again.now_ms = told.now_ms
    assert again == told


# ---- holds --------------------------------------------------------------------------------------


def hand_over(member: Connect, topic: str, group: str, handover_timeout_ms: int) -> tuple[RawMember, RawMember]:
    """Return the owner of queue 0 and one that waits for it."""
    owner, heir = member(f"{group}-owner"), member(f"{group}-heir")
    for one in (owner, heir):
        one.join(group, topic, handover_timeout_ms=handover_timeout_ms)
        one.hear("members")
        one.ask(group, topic, 0)
    owner.granted()
    owner.hear("wanted")
    return owner, heir


def test_a_queue_is_held_until_its_state_is_saved(member: Connect, topic: str, group: str) -> None:
    owner, heir = hand_over(member, topic, group, LONG_MS)
    owner.give_back(group, topic, 0)
    owner.hears_before_heartbeat()
    [queue, *_] = heir.call("DescribeGroup", broker_pb2.DescribeGroupRequest(group=group)).queues
    assert (queue.owner, list(queue.waiting)) == ("", [heir.client_id])
    assert 0 < queue.held_ms <= LONG_MS
    assert "granted" not in heir.hears_before_heartbeat()

    owner.saved(group, topic, 0)
    heir.granted()


# ---- deaths and restarts ------------------------------------------------------------------------


@pytest.fixture
def brief(tmp_path: Path) -> Iterator[LocalCluster]:
    """A broker that gives clients little time, with the topic "t"."""
    options = {"session_timeout_s": 5.0, "session_grace_s": 1.0}
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        yield cluster


def heir_of(brief: LocalCluster, owner: RawMember, members: ExitStack, handover_timeout_ms: int = 0) -> RawMember:
    """Return a member that waits for queue 0, which the owner gets."""
    heir = members.enter_context(RawMember(brief.brokers[0].address, "heir"))
    for one in (owner, heir):
        one.join("g", "t", handover_timeout_ms=handover_timeout_ms)
        one.hear("members")
        one.ask("g", "t", 0)
    return heir


def granted_in_time(member: RawMember) -> broker_pb2.QueueGranted:
    """Return the next grant, with heartbeats meanwhile."""
    while "granted" not in (kinds := member.hears_before_heartbeat()):
        assert "rejected" not in kinds
    member.ask("g", "t", 0)  # to be told once more
    return member.granted()


def test_a_member_that_hangs_loses_its_queues_and_is_fenced(brief: LocalCluster) -> None:
    with ExitStack() as members:
        silent = members.enter_context(RawMember(brief.brokers[0].address, "silent"))
        heir = heir_of(brief, silent, members)
        old = silent.granted().epoch
        waiting = silent.pull("t", 0, wait_ms=LONG_MS, lease=silent.lease("g", old))

        new = granted_in_time(heir).epoch

        assert new > old
        assert next(waiting).failure.code == Fenced.code  # also what was under way
        assert next(silent.pull("t", 0, lease=silent.lease("g", old))).failure.code == Fenced.code
        with pytest.raises(Fenced, match=f"heir holds it under epoch {new}"):
            silent.commit("g", "t", 0, 0, old)
        heir.commit("g", "t", 0, 0, new)


def test_the_queues_of_a_dead_member_are_held(brief: LocalCluster) -> None:
    with ExitStack() as members:
        owner = RawMember(brief.brokers[0].address, "owner")
        heir = heir_of(brief, owner, members, handover_timeout_ms=LONG_MS)
        owner.granted()
        owner.die()
        while "owner" in heir.hear("members").members.client_ids:
            pass
        assert "granted" not in heir.hears_before_heartbeat()
        [queue, _] = heir.call("DescribeGroup", broker_pb2.DescribeGroupRequest(group="g")).queues
        assert (queue.owner, list(queue.waiting)) == ("", ["heir"])
        assert queue.held_ms > 0


@pytest.mark.fault
def test_after_a_restart_the_last_owner_is_first(brief: LocalCluster) -> None:
    [broker] = brief.brokers
    epochs = {}
    with ExitStack() as members:
        for name in ("early", "late"):
            one = members.enter_context(RawMember(broker.address, name))
            one.join("g", "t")
            one.hear("members")
            one.ask("g", "t", 0, 1)
            epochs[name] = one.granted().epoch
            one.give_back("g", "t", 0, 1)
    broker.kill()
    broker.start()
    with ExitStack() as members:
        new, early, late = (members.enter_context(RawMember(broker.address, name)) for name in ("new", "early", "late"))
        held = broker_pb2.QueueName(topic="t", broker_name=broker.name, queue_id=1)
        for one, epoch in ((new, 0), (early, epochs["early"]), (late, epochs["late"])):
            one.join("g", "t", held=[held] if one is late else [])
            one.hear("members")
            one.ask("g", "t", 0, 1, epoch=epoch)
        assert late.granted().queue_id == 1  # at once: it holds it still
        assert late.granted().queue_id == 0  # when all have had their time
        assert "granted" not in new.hears_before_heartbeat() + early.hears_before_heartbeat()

        late.give_back("g", "t", 0)
        assert new.granted().queue_id == 0  # in the order of asking


# ---- deleted topics -----------------------------------------------------------------------------
