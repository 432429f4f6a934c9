"""The in-sync set: who belongs to it, and what is confirmed."""

from __future__ import annotations

import random

from minimq_broker.replication.in_sync import InSync, InSyncLimits
from support.cases import for_each
from support.chance import SEED

TIMEOUT = InSyncLimits(broken_s=1.0, lag_s=5.0)


def leading(*members: int, sync: bool = True, confirmed: int = 0) -> InSync:
    return InSync(0, {0, *members}, TIMEOUT, 0.0, sync=sync, confirmed=confirmed)


def join(in_sync: InSync, replica_id: int, now: float) -> None:
    """Let the controller record what is wanted, which has to be this replica besides those it has."""
    wanted = in_sync.wanted(now)
    assert wanted == in_sync.members | {replica_id}
    in_sync.ask(wanted)
    in_sync.recorded(wanted, now)


def test_a_member_that_never_came_is_waited_for_until_the_controller_has_recorded_that_it_left() -> None:
    in_sync = leading(1)
    assert in_sync.confirm(100, 0.9) == 0
    assert in_sync.wanted(0.9) == {0, 1}
    assert in_sync.wanted(1.1) == {0}
    in_sync.ask({0})
    assert in_sync.confirm(100, 1.1) == 0
    in_sync.recorded({0}, 1.2)

    assert in_sync.confirm(100, 1.2) == 100


def test_a_replica_joins_once_it_has_what_it_was_told_of() -> None:
    in_sync = leading()
    in_sync.confirm(100, 0.0)
    in_sync.attach(1, 0, 0.0)
    in_sync.told(1, 100, 0.0)
    in_sync.acknowledged(1, 99, 0.1)
    assert in_sync.wanted(0.1) == {0}
    in_sync.acknowledged(1, 100, 0.2)

    join(in_sync, 1, 0.2)


def test_a_replica_that_is_told_of_less_than_is_confirmed_does_not_join_yet() -> None:
    in_sync = leading()
    in_sync.attach(1, 0, 0.0)
    in_sync.told(1, 100, 0.0)
    in_sync.confirm(150, 0.05)
    in_sync.acknowledged(1, 100, 0.1)
    assert in_sync.wanted(0.1) == {0}
    assert in_sync.confirm(300, 0.1) == 150  # it stands still for the replica to reach it
    in_sync.acknowledged(1, 150, 0.2)

    join(in_sync, 1, 0.2)


def test_a_replica_that_stops_while_it_joins_holds_nothing_up_for_long() -> None:
    in_sync = leading()
    in_sync.attach(1, 0, 0.0)
    in_sync.told(1, 100, 0.0)
    in_sync.confirm(150, 0.05)
    in_sync.acknowledged(1, 100, 0.1)

    assert in_sync.confirm(300, 1.05) == 150
    assert in_sync.confirm(300, 1.15) == 300


def test_a_replica_that_is_late_for_most_of_the_longest_lag_does_not_join() -> None:
    in_sync = leading(sync=False)
    in_sync.attach(1, 0, 0.0)
    in_sync.told(1, 100, 0.0)
    in_sync.acknowledged(1, 100, 2.0)

    assert in_sync.wanted(2.0) == {0}


def test_a_member_that_does_not_catch_up_leaves_though_it_follows() -> None:
    in_sync = leading(1)
    in_sync.attach(1, 0, 0.0)
    for second in range(1, 6):
        in_sync.told(1, 100 * second, float(second))
        in_sync.acknowledged(1, 10 * second, float(second))

    assert in_sync.wanted(4.9) == {0, 1}
    assert in_sync.wanted(5.1) == {0}


def test_a_member_that_has_lost_what_is_confirmed_leaves_at_once() -> None:
    in_sync = leading(1, confirmed=100)
    in_sync.attach(1, 60, 0.0)

    assert in_sync.wanted(0.0) == {0}


def test_a_member_of_an_asynchronous_master_that_was_offline_for_a_moment_has_its_time_to_catch_up() -> None:
    in_sync = leading(1, sync=False)
    in_sync.attach(1, 1000, 0.0)
    in_sync.told(1, 1000, 10.0)
    in_sync.detach(1, 10.0)
    in_sync.confirm(1500, 10.2)
    in_sync.attach(1, 1000, 10.2)
    assert in_sync.wanted(14.9) == {0, 1}
    assert in_sync.wanted(15.1) == {0}
    in_sync.told(1, 1500, 15.2)
    in_sync.acknowledged(1, 1500, 15.2)
    assert in_sync.wanted(15.2) == {0, 1}
    in_sync.attach(1, 1499, 15.3)  # it has lost something
    assert in_sync.wanted(15.3) == {0}


def test_what_a_member_had_before_this_leadership_is_not_known_so_that_it_leaves_if_it_lacks_something() -> None:
    in_sync = leading(1, sync=False, confirmed=100)
    in_sync.attach(1, 99, 0.0)

    assert in_sync.wanted(0.0) == {0}


@for_each("seed", range(SEED, SEED + 30))
def test_whoever_may_be_recorded_has_all_that_is_confirmed(seed: int) -> None:
    """A master with three replicas that come, go, stop and lose their logs; answers of the controller get lost."""
    chance = random.Random(seed)
    in_sync = InSync(0, {0}, TIMEOUT, 0.0, sync=True)
    end, now, confirmed = 0, 0.0, 0
    synced = dict.fromkeys((1, 2, 3), 0)
    following: set[int] = set()
    at_controller = frozenset({0})
    for _ in range(2000):
        now += chance.choice((0.001, 0.01, 0.1, 0.5))
        replica = chance.choice((1, 2, 3))
        match chance.choice(("write", "write", "sync", "sync", "sync", "tell", "come", "go", "record", "record")):
            case "write":
                end += chance.randrange(1, 100)
            case "come" if replica not in following:
                following.add(replica)
                in_sync.attach(replica, synced[replica], now)
            case "go" if replica in following and chance.random() < 0.3:
                following.discard(replica)
                in_sync.detach(replica, now)
            case "tell" if replica in following:
                in_sync.told(replica, end, now)
            case "sync" if replica in following:
                synced[replica] = min(end, synced[replica] + chance.choice((10, 1000)))
                in_sync.acknowledged(replica, synced[replica], now)
            case "record":
                wanted = in_sync.wanted(now)
                in_sync.ask(wanted)
                arrives, is_answered = chance.random() < 0.8, chance.random() < 0.8
                at_controller = wanted if arrives else at_controller
                if is_answered:
                    in_sync.recorded(at_controller, now)
        before, confirmed = confirmed, in_sync.confirm(end, now)
        assert before <= confirmed <= end, seed
        for member in at_controller - {0}:
            assert synced[member] >= confirmed, (seed, member, now)
    assert confirmed > 0, seed


def test_what_every_member_has_is_what_is_confirmed_unless_the_master_decides_that_alone() -> None:
    for sync, common in ((True, 80), (False, 60)):
        in_sync = leading(1, sync=sync)
        in_sync.attach(1, 0, 0.0)
        in_sync.acknowledged(1, 80, 0.1)
        in_sync.confirm(100, 0.1)
        assert in_sync.common_end(100, 0.1) == 80
        in_sync.detach(1, 0.2)
        in_sync.attach(1, 60, 0.3)  # it has lost something
        assert in_sync.common_end(100, 0.3) == common
