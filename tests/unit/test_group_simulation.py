"""Schedules of faults in virtual time: at no instant has a queue two owners, and in the end each has one."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import pytest

from support.group_world import World
from support.simulation import Times, Violation

#: How many schedules of each kind; MINIMQ_TEST_SCHEDULES=5000 for a long run.
SCHEDULES = int(os.environ.get("MINIMQ_TEST_SCHEDULES", "40"))
#: Repeats the schedules of an earlier run, which printed it.
SEED = int(os.environ.get("MINIMQ_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
LASTS_S, SETTLES_S = 25.0, 40.0

CAREFUL = Times()
HOLDING = Times(hold_s=2.5)
#: A broken connection is taken for a dead client soon, also when the client lives and only cannot come back. One that
#: hangs is not among the faults: it cannot know that its connection broke.
QUICK = Times(grace_s=1.5, longest_delay_s=0.1)
ALL = ("join", "join", "leave", "crash", "hang", "cut", "restart", "broker hangs", "reset")


@pytest.mark.parametrize("strategy", ["averagely", "sticky"])
@pytest.mark.parametrize(
    ("times", "kinds"),
    [
        (CAREFUL, ALL),
        (HOLDING, ALL),
        (QUICK, ("join", "join", "leave", "crash", "blink", "cut", "cut", "restart", "reset")),
    ],
    ids=["careful", "holding", "quick"],
)
def test_a_queue_never_has_two_owners(times: Times, kinds: Sequence[str], strategy: str) -> None:
    play_many(str(SEED), SCHEDULES, times, kinds, strategy)


def play_many(seed: str, schedules: int, times: Times, kinds: Sequence[str], strategy: str) -> None:
    for number in range(schedules):
        play(f"{seed} {number}", times, kinds, strategy)


def play(seed: str, times: Times, kinds: Sequence[str], strategy: str) -> None:
    """Play one schedule."""
    chance = random.Random(seed)
    world = World(chance, times, strategy, queues=chance.randint(1, 4))
    try:
        for _ in range(chance.randint(1, 3)):
            world.join()
        for _ in range(chance.randint(3, 14)):
            when = world.now + chance.expovariate(chance.choice((0.3, 1.0, 4.0)))
            world.run(min(when, 1000.0 + LASTS_S))
            make(world, chance.choice(kinds))
        world.note("no more faults")
        world.run(world.now + SETTLES_S)
        world.check_settled()
    except Exception as error:
        trace = "\n".join(world.trace[-120:])
        text = f"MINIMQ_TEST_SEED={SEED}, schedule {seed!r}, {times}, {strategy}:\n{trace}\n{error!r}"
        raise AssertionError(text) from error


def make(world: World, kind: str) -> None:
    """Let something happen."""
    chance = world.chance
    live = [member for member in world.members.values() if member.alive]
    member = chance.choice(live) if live else None
    broker = chance.choice(list(world.brokers.values()))
    if kind == "join" or member is None:
        world.join()
    elif kind == "leave" and not member.hangs:
        world.note(f"{member.name} leaves")
        member.leave()
    elif kind == "crash":
        world.note(f"{member.name} crashes")
        member.crash()
    elif kind == "hang" and not member.hangs:
        seconds = chance.choice((0.3, 2.0, 5.0, 9.0, 15.0)) * chance.uniform(0.5, 1.5)
        world.note(f"{member.name} hangs for {seconds:.3f} s")
        member.hang(seconds)
    elif kind in ("cut", "blink"):
        seconds = 0.0 if kind == "blink" else chance.choice((0.0, 1.0, 5.0, 12.0)) * chance.uniform(0.5, 1.5)
        world.note(f"{member.name} is cut off from {broker.name} for {seconds:.3f} s")
        member.cut(broker.name, seconds)
    elif kind == "restart" and broker.alive:
        world.note(f"{broker.name} is killed")
        broker.stop()
        world.after(chance.uniform(0.05, 3.0), broker.start)
    elif kind == "reset" and broker.alive:
        queue = chance.choice([queue for queue in world.queues if queue.broker_name == broker.name])
        world.note(f"{queue} is reset")
        broker.reset(queue)
    elif kind == "broker hangs" and broker.alive and not broker.hangs:
        seconds = chance.uniform(0.2, 9.0)
        world.note(f"{broker.name} hangs for {seconds:.3f} s")
        broker.hang(seconds)


def test_a_member_that_slept_does_not_claim_what_it_held_before() -> None:
    """Its queues have gone to another, whom the broker has forgotten when the sleeper comes back before the other."""
    for number in range(100):
        world = World(random.Random(number), Times(longest_delay_s=0.05), "averagely", queues=1)
        sleeper, other = world.join(), world.join()
        world.run(world.now + 2.7)
        sleeper.hang(13.0)
        world.run(world.now + 12.6)
        for broker in world.brokers.values():
            broker.stop()
            other.cut(broker.name, 1.2)
            world.after(0.1, broker.start)
        world.run(world.now + SETTLES_S)
        world.check_settled()


def test_a_violation_is_found() -> None:
    """The checks can fail: members that trust their leases for longer than a broker waits are found out."""
    with pytest.raises(AssertionError, match=Violation.__name__):
        play_many("careless", 1000, Times(trust_s=60.0), ALL, "averagely")
