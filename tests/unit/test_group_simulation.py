"""Schedules of faults in virtual time: at no instant has a queue two owners, and in the end each has one."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from itertools import chain

import pytest

from support.cases import for_each
from support.chance import SEED
from support.group_world import World
from support.simulation import Times, Violation

#: How many schedules of each kind; MINIMQ_TEST_SCHEDULES=100000 for a long run.
SCHEDULES = int(os.environ.get("MINIMQ_TEST_SCHEDULES", "40"))
#: The number of the first one, so that several runs add up to a longer one.
FIRST = int(os.environ.get("MINIMQ_TEST_FIRST_SCHEDULE", "0"))
#: How many of them make one test, so that processes can share a long run.
CHUNK = 250
LASTS_S, SETTLES_S = 25.0, 40.0

CAREFUL = Times()
HOLDING = Times(handover_timeout_s=2.5)
#: A broken connection is taken for a dead client soon, also when the client lives and only cannot come back. One that
#: hangs is not among the faults: it cannot know that its connection broke.
QUICK = Times(grace_s=1.5, longest_delay_s=0.1)
ALL = ("join", "join", "leave", "crash", "hang", "cut", "restart", "broker hangs", "reset")
#: What members may subscribe to.
ONE_TOPIC = (("t",),)
DIFFERENT_TOPICS = (("t",), ("u",), ("t", "u"))


@pytest.mark.rounds
@pytest.mark.parametrize("first", range(FIRST, FIRST + SCHEDULES, CHUNK))
@pytest.mark.parametrize("strategy", ["averagely", "sticky"])
@pytest.mark.parametrize(
    ("times", "kinds", "topics"),
    [
        (CAREFUL, ALL, ONE_TOPIC),
        (HOLDING, ALL, ONE_TOPIC),
        (QUICK, ("join", "join", "leave", "crash", "blink", "cut", "cut", "restart", "reset"), ONE_TOPIC),
        (CAREFUL, ALL, DIFFERENT_TOPICS),
    ],
    ids=["careful", "holding", "quick", "topics"],
)
def test_a_queue_never_has_two_owners(
    times: Times, kinds: Sequence[str], topics: Sequence[Sequence[str]], strategy: str, first: int
) -> None:
    play_many(str(SEED), range(first, min(first + CHUNK, FIRST + SCHEDULES)), times, kinds, strategy, topics)


def play_many(
    seed: str,
    numbers: Iterable[int],
    times: Times,
    kinds: Sequence[str],
    strategy: str,
    topics: Sequence[Sequence[str]] = ONE_TOPIC,
) -> None:
    for number in numbers:
        play(f"{seed} {number}", times, kinds, strategy, topics)


def play(
    seed: str, times: Times, kinds: Sequence[str], strategy: str, topics: Sequence[Sequence[str]] = ONE_TOPIC
) -> None:
    """Play one schedule."""
    chance = random.Random(seed)
    world = World(chance, times, strategy, chance.randint(1, 4), sorted(set(chain.from_iterable(topics))))
    try:
        for _ in range(chance.randint(1, 3)):
            join(world, topics)
        for _ in range(chance.randint(3, 14)):
            when = world.now + chance.expovariate(chance.choice((0.3, 1.0, 4.0)))
            world.run(min(when, 1000.0 + LASTS_S))
            make(world, chance.choice(kinds), topics)
        world.note("no more faults")
        world.settle(SETTLES_S)
    except Exception as error:
        trace = "\n".join(world.trace[-120:])
        first, _, _ = seed.partition(" ")
        text = f"MINIMQ_TEST_SEED={first}, schedule {seed!r}, {times}, {strategy}:\n{trace}\n{error!r}"
        raise AssertionError(text) from error


def join(world: World, topics: Sequence[Sequence[str]]) -> None:
    world.join(*(world.chance.choice(topics) if len(topics) > 1 else topics[0]))


def make(world: World, kind: str, topics: Sequence[Sequence[str]]) -> None:
    """Let something happen."""
    chance = world.chance
    live = [member for member in world.members.values() if member.alive]
    member = chance.choice(live) if live else None
    broker = chance.choice(list(world.brokers.values()))
    if kind == "join" or member is None:
        join(world, topics)
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
        world.settle(SETTLES_S)


#: Only the end of a conflict brings members in: no round that is made in any case, and no reader is slow.
PROMPT = Times(interval_s=20.0, longest_delay_s=0.05, revoke_timeout_s=0.3)


@for_each("strategy", ["averagely", "sticky"])
@for_each("ends", ["leave", "crash"])
def test_a_rejected_member_reads_within_a_second_of_the_end_of_the_last_that_it_contradicts(
    ends: str, strategy: str
) -> None:
    for number in range(20):
        world = World(random.Random(number), PROMPT, strategy, queues=2)
        old = [world.join(wanted="old") for _ in range(2)]
        world.run(world.now + 2.0)
        for leaving in old:
            new = world.join(wanted="new")
            world.run(world.now + 2.0)
            assert not new.reads
            getattr(leaving, ends)()
        world.run(world.now + 1.0 + (PROMPT.grace_s if ends == "crash" else 0.0))
        world.check_settled()


@pytest.mark.parametrize("strategy", ["averagely", "sticky"])
def test_a_topic_is_divided_among_its_subscribers_while_a_deploy_rolls(strategy: str) -> None:
    """First one that adds a topic, then one that takes it away."""
    for number in range(8):
        world = World(random.Random(number), PROMPT, strategy, queues=3, topics=("t", "u"))
        for before, after in ((("t",), ("t", "u")), (("t", "u"), ("t",))):
            old = [world.join(*before) for _ in range(2)]
            for leaving in old:
                world.run(world.now + 1.0)
                world.check_settled()
                world.join(*after)
                world.run(world.now + 1.0)
                world.check_settled()
                leaving.leave()


def test_a_violation_is_found() -> None:
    """The checks can fail: members that trust their leases for longer than a broker waits are found out."""
    with pytest.raises(AssertionError, match=Violation.__name__):
        play_many("careless", range(1000), Times(lease_timeout_s=60.0), ALL, "averagely")
