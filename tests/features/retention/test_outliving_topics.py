"""Topics with rules of their own, delayed and undecided batches over many segments that expire: against a model."""

from __future__ import annotations

import asyncio
import logging

import pytest

from minimq_broker.features.retention.retention import FOR_EVER, RetentionOptions, RetentionRules
from minimq_broker.features.retention.retention_service import Retention
from minimq_broker.metrics.counters import Counters
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from support.kernel_stores import TIMEOUT_S
from support.stores import Stores
from support.topic_rules import set_rules
from support.waiting import wait_until

SEGMENT_BYTES = 64 << 10
BROKER_AGE_MS = 20_000


class World:
    """A store with its retention, and all that was sent to it."""

    def __init__(
        self, stores: Stores, name: str = "data", *, max_bytes: int = 0, dead_letters: RetentionRules = FOR_EVER
    ) -> None:
        self.stores, self.name, self.max_bytes, self.dead_letters = stores, name, max_bytes, dead_letters
        self.sent: dict[str, list[tuple[int, int, int, bytes]]] = {}
        self.counters = Counters()
        self.needed_from = NOTHING_NEEDED
        self.open()

    def open(self) -> None:
        self.store = self.stores.open(self.name, segment_bytes=SEGMENT_BYTES, checkpoint_interval_s=0.01)
        options = RetentionOptions(RetentionRules(BROKER_AGE_MS, self.max_bytes), self.dead_letters, 0.0)

        async def made() -> Retention:
            return Retention(self.store.store, self.counters, 1.0, lambda: self.needed_from, self.stores.clock, options)

        self.retention = asyncio.run(made())

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def create(self, name: str, *, age_ms: int = 0, size: int = 0) -> None:
        self.store.create_topic(name, 2)
        self.sent[name] = []
        if age_ms or size:
            set_rules(self.store, name, age_ms=age_ms, size=size)

    def send(self, name: str, queue: int, body: bytes) -> None:
        offset = self.store.append(name, queue, body)
        self.sent[name].append((queue, offset, self.stores.clock.now_ms, body))

    def look(self, times: int = 1) -> None:
        async def looks() -> None:
            for _ in range(times):
                await self.retention._look()

        for _ in range(2):  # what is needed is known once the state is saved
            wait_until(self._is_saved, TIMEOUT_S, what="the state is saved")
            asyncio.run(looks())

    def settle(self) -> None:
        """Look until nothing changes any more: whoever rewrites the same again and again never gets there."""
        for _ in range(10):
            before = self.starts
            self.look(3)
            if self.starts == before:
                return
        pytest.fail(f"still rewritten after 30 looks: {self.starts}")

    def _is_saved(self) -> bool:
        return self.store.store.saved_position >= self.store.store.end

    def verify(self, name: str, max_age_ms: int, *, exact: bool) -> None:
        """Check that all which is young enough is read in its order, and if `exact` nothing older."""
        now = self.stores.clock.now_ms
        for queue in range(2):
            mine = [item for item in self.sent[name] if item[0] == queue]
            young = [item for item in mine if item[2] + max_age_ms > now]
            start, end = self.store.store.bounds(self.store.key(name, queue))
            assert end == len(mine)
            assert self.store.bodies(name, queue, start) == [body for *_, body in mine[start:]]
            assert self.store.bodies(name, queue, 0) == [body for *_, body in mine[start:]]
            assert start <= end - len(young)
            if exact:
                assert start == end - len(young)

    @property
    def starts(self) -> list[int]:
        return [segment.start for segment in self.store.store.log.segments]


def test_the_disk_of_a_shorter_topic_comes_back(stores: Stores) -> None:
    world = World(stores)
    world.create("default")
    world.create("short", age_ms=1_000)
    for number in range(40):
        stores.clock.now_ms += 100
        world.send("default", number % 2, b"%d" % number + bytes(500))
        world.send("short", number % 2, b"%d" % number + bytes(6_000))
    used = world.store.store.log.disk_bytes
    world.needed_from = 0  # a slave is behind
    world.look(10)
    world.verify("short", 1_000, exact=True)
    assert world.counters.segments_rewritten == 0
    world.needed_from = NOTHING_NEEDED
    world.look(20)
    assert world.counters.segments_rewritten > len(world.starts) // 2
    assert world.store.store.log.disk_bytes < 0.8 * used
    world.verify("short", 1_000, exact=True)
    world.verify("default", BROKER_AGE_MS, exact=True)


def test_the_size_of_the_broker_beats_the_age_of_topics(stores: Stores) -> None:
    world = World(stores, max_bytes=4 * SEGMENT_BYTES)
    world.create("long", age_ms=600_000)
    for number in range(60):
        world.send("long", number % 2, b"%d" % number + bytes(6_000))
        stores.clock.now_ms += 1_000
        if number % 20 == 19:
            world.look(5)
            assert world.store.store.log.disk_bytes <= 6 * SEGMENT_BYTES
    world.verify("long", 5_000, exact=False)


DEAD = "%DLQ%g"
FOREVER_MS = 1 << 50


def with_dead_letters(world: World, count: int = 60, step_ms: int = 1_000) -> None:
    """Fill segments with dead letters among larger messages."""
    for name in ("default", DEAD):
        world.create(name)
    for number in range(count):
        world.send("default", number % 2, b"%d" % number + bytes(5_000))
        world.send(DEAD, number % 2, b"%d" % number + bytes(1_000))
        world.stores.clock.now_ms += step_ms


@pytest.mark.parametrize("max_bytes", [0, 3 * SEGMENT_BYTES])
def test_dead_letters_outlive_the_age_and_the_size_of_the_log(stores: Stores, max_bytes: int) -> None:
    world = World(stores, max_bytes=max_bytes)
    with_dead_letters(world)
    stores.clock.now_ms += 10 * BROKER_AGE_MS
    world.settle()
    assert world.store.store.bounds(world.store.key("default", 0)) == (30, 30)
    world.reopen()
    world.settle()
    world.verify(DEAD, FOREVER_MS, exact=True)
    assert world.store.store.log.disk_bytes < 6 * SEGMENT_BYTES
    assert 60_000 < world.retention.dead_letter_bytes < 100_000
    assert world.retention.dead_letters_deleted == 0


def test_dead_letters_go_by_a_time_of_their_own_and_the_log_says_whose(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(stores, dead_letters=RetentionRules(90_000))
    with_dead_letters(world)
    world.settle()
    world.verify(DEAD, FOREVER_MS, exact=True)
    stores.clock.now_ms += 60_000
    with caplog.at_level(logging.WARNING):
        world.look()
    world.verify(DEAD, 90_000, exact=True)
    gone = [world.store.store.bounds(world.store.key(DEAD, queue))[0] for queue in range(2)]
    assert gone[0] > 0
    assert sorted(line for line in caplog.messages if "dead letters" in line) == [
        f"retention: dead letters deleted group=g queue={queue} count={count}" for queue, count in enumerate(gone)
    ]
    assert world.retention.dead_letters_deleted == sum(gone)
    stores.clock.now_ms += 90_000
    world.settle()
    assert len(world.starts) <= 2


def test_the_oldest_dead_letters_of_a_group_go_when_they_are_too_many(stores: Stores) -> None:
    world = World(stores, dead_letters=RetentionRules(max_bytes=30_000))
    with_dead_letters(world, 10)
    world.create("%DLQ%h")
    world.send("%DLQ%h", 0, b"of another group")
    world.look()
    for number in range(10, 60):
        world.send(DEAD, number % 2, b"%d" % number + bytes(1_000))
    world.look()
    left = [60 // 2 - world.store.store.bounds(world.store.key(DEAD, queue))[0] for queue in range(2)]
    assert 20 < sum(left) < 40
    assert world.retention.dead_letters_deleted == 60 - sum(left)
    for name in (DEAD, "%DLQ%h"):
        world.verify(name, 0, exact=False)
    assert world.store.bodies("%DLQ%h", 0) == [b"of another group"]


def test_a_damaged_segment_keeps_its_dead_letters_and_does_not_stop_retention(stores: Stores) -> None:
    world = World(stores)
    with_dead_letters(world)
    second, third, *_ = world.store.store.log.segments
    assert world.store.store.log.mark_damaged(second.start, "a test says so")
    stores.clock.now_ms += 2 * BROKER_AGE_MS
    for _ in range(4):
        world.look(3)
    assert second.start in world.starts
    assert third.rewritten_to or third not in world.store.store.log.segments
    for number in range(2):
        kept = [body for at, _, _, body in world.sent[DEAD] if at == number]
        assert world.store.bodies(DEAD, number, world.store.store.bounds(world.store.key(DEAD, number))[0]) == kept
    stores.damaged.add(world.store.path)
