"""The causes and the number of a member's allocations, and the ways to its share."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import pytest

from minimq import LocalCluster
from minimq.consuming import group_member
from minimq_proto.v1 import broker_pb2
from support.detour import lead
from support.group_listener import QueueLog
from support.members import Log, Member, shared_evenly
from support.raw_member import RawMember
from support.session_filter import SessionFilter
from support.waiting import wait_until

TIMEOUT_S = 40.0


def test_changes_that_come_together_are_told_together(cluster: LocalCluster, topic: str, group: str) -> None:
    address, changes = cluster.brokers[0].address, 41
    with RawMember(address, f"{group}-stays") as stays, RawMember(address, f"{group}-hesitates") as hesitates:
        stays.join(group, topic)
        first = stays.hear("members").members.version
        for number in range(changes):
            if number % 2:
                hesitates.leave(group)
            else:
                hesitates.join(group, topic)
        lists = 0
        version = first
        while version < first + changes:
            version = stays.hear("members").members.version
            lists += 1
        assert lists < changes


def test_a_member_that_was_not_told_of_another_finds_out_by_itself(
    cluster: LocalCluster, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes after the list that gets lost, but the round that is made though nothing was heard."""
    decider = cluster.brokers[0]
    lost: list[broker_pb2.SessionEvent] = []

    def loses(event: broker_pb2.SessionEvent) -> bool:
        if len(event.members.client_ids) == 2 and not lost:
            lost.append(event)
            return True
        return False

    with SessionFilter(decider.address) as between, ExitStack() as stack:
        between.loses = loses
        by_detour = partial(lead, ways={decider.address: between.address})
        with monkeypatch.context() as patched:
            patched.setattr(group_member, "REBALANCE_INTERVAL_S", 1.0)
            first = stack.enter_context(Member(cluster.nameserver, group, topic, Log(), by_detour))
            wait_until(lambda: len(first.queues) == 8, TIMEOUT_S)
        second = stack.enter_context(Member(cluster.nameserver, group, topic, Log()))
        wait_until(shared_evenly(first, second, queues=8), TIMEOUT_S)
        assert len(lost) == 1


def test_a_group_that_sticks_to_its_queues_moves_only_what_it_must(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    told = QueueLog()
    with ExitStack() as stack:
        members: list[Member] = []
        for number, client_id in enumerate(["m", "z", "a", "k"], start=1):
            member = Member(
                cluster.nameserver,
                group,
                topic,
                Log(),
                allocation="sticky",
                client_id=client_id + group,
                **told.options,
            )
            members.append(stack.enter_context(member))
            before = len(told.queues("revoked"))
            wait_until(shared_evenly(*members, queues=8), TIMEOUT_S)
            # One that comes gets its share from the others, and nothing else moves.
            assert len(told.queues("revoked")) - before == (8 // number if number > 1 else 0)
