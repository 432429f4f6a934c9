"""When freed memory is returned to the system."""

from __future__ import annotations

import pytest

from minimq_common.freed_memory import FreedMemory

MIB = 1 << 20


class World:
    """A process as a test says it is, in MiB. Returning its memory takes 0.1 s."""

    def __init__(self) -> None:
        self.now = 100.0
        self.kept = 0
        self.returned = 0
        self.freed = FreedMemory(lambda: self.kept * MIB, self._give_back, lambda: self.now)

    def look(self, memory: int, kept: int) -> int:
        """Look 25 ms after the last look; returns how often memory was returned so far."""
        self.now += 0.025
        self.kept = kept
        self.freed.look(memory * MIB)
        return self.returned

    def _give_back(self) -> None:
        self.now += 0.1
        self.returned += 1
        self.kept = 0


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_used_again_and_again_is_kept(world: World) -> None:
    for number in range(1_000):
        assert world.look(250, 100 if number % 20 else 10) == 0


def test_with_much_memory_it_is_returned_at_once(world: World) -> None:
    assert world.look(321, 49) == 1
    assert world.look(321, 0) == 1
    for _ in range(1_000):
        world.look(400, 200)
    assert 55 < world.returned < 65  # 0.1 s of each 0.5, and 25 s between the looks


def test_a_little_is_never_returned(world: World) -> None:
    for _ in range(1_000):
        assert world.look(500, 48) == 0


def test_what_is_unused_is_returned_once(world: World) -> None:
    for _ in range(200):
        assert world.look(250, 100) == 0
    for _ in range(2):
        world.look(250, 100)
    assert world.returned == 1
    for _ in range(300):
        world.look(150, 0)
    assert world.returned == 1


def test_nobody_knows_what_was_used_while_it_was_not_looked_at(world: World) -> None:
    assert world.look(250, 100) == 0
    world.freed.pause()
    world.now += 60
    assert world.look(250, 100) == 0
