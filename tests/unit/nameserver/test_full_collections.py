"""Full garbage collections take a small part of the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from minimq_nameserver.full_collections import FullCollections


class Clock:
    """Every look takes as long as it says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    others = gc.callbacks[:]  # such as those of name servers in this process
    gc.callbacks.clear()
    clock = Clock()
    collections = FullCollections(clock)
    collections.start()
    yield clock
    collections.stop()
    gc.callbacks[:] = others


def test_after_a_full_collection_there_is_none_for_a_hundred_times_as_long(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, ...]] = []
    monkeypatch.setattr(gc, "set_threshold", lambda *thresholds: told.append(thresholds))
    young, old, full = gc.get_threshold()
    clock.step = 0.1
    gc.collect()
    clock.step = 0.0
    assert told == [(young, old, 1 << 30)]
    clock.now += 9.9
    gc.collect(0)
    assert len(told) == 1
    clock.now += 0.1
    gc.collect(0)
    assert told[1:] == [(young, old, full)]
    gc.collect(0)
    assert len(told) == 2
