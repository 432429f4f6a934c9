"""Workers of Spark keep what they have loaded out of garbage collections, and acknowledge at once; others do not."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from pyspark_minimq import worker_process
from pyspark_minimq.worker_process import freeze_gc


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    before = gc.get_freeze_count()
    yield
    if not before:
        gc.unfreeze()
    worker_process._calls.pop(os.getpid(), None)
    worker_process._connections.pop(os.getpid(), None)


def test_a_program_of_somebody_else_is_left_alone() -> None:
    before = gc.get_freeze_count()
    freeze_gc()
    assert gc.get_freeze_count() == before


def test_the_first_calls_of_a_worker_spare_what_is_loaded_and_no_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="pyspark.daemon"))
    freeze_gc()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000  # the modules of this process
    kept = [[number] for number in range(2000)]
    freeze_gc()
    frozen_with_kept = gc.get_freeze_count()
    assert frozen_with_kept >= frozen + len(kept)
    kept += [[number] for number in range(2000)]
    freeze_gc()
    assert gc.get_freeze_count() <= frozen_with_kept
