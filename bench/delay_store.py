"""The store of delayed batches without a network: CPU of storing, publishing and recalling, and memory.

delay_store.py                      rates of single messages and of full batches, with and without recalls
delay_store.py --waiting 10000000   memory and start-up time with this number of waiting batches
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Set
from pathlib import Path
from random import Random
from threading import Semaphore

from processes import anonymous_bytes

import minimq_broker.assembly  # noqa: F401 - registers the features
from minimq_broker.commit.jobs import AppendJob, FactJob, Job
from minimq_broker.commit.store import Store, StoreOptions
from minimq_broker.features.delayed.delaying import next_due_ms
from minimq_broker.features.delayed.jobs import DueJob, RecallJob
from minimq_broker.features.delayed.table import Delay
from minimq_broker.state.facts import Topic, TopicSet
from minimq_broker.state.queue_ends import HeldKey
from minimq_common.batch import header as batch
from minimq_common.batch.builder import BatchBuilder
from minimq_common.model import Message

NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000
#: Maximum number of appends in flight.
WINDOW = 500


class Bench:
    """A store with a simulated clock."""

    def __init__(self, path: Path) -> None:
        self.now_ms = NOW_MS
        self.window = Semaphore(WINDOW)
        self.store = Store(path, self._notify, StoreOptions(), lambda: self.now_ms)
        self.store.writer.submit(FactJob(topic_set))

    def _notify(self, jobs: list[Job], grown: Set[object]) -> None:
        for job in jobs:
            if job.error is not None:
                raise job.error
            job.done(job)

    def append(self, data: bytes, count: int, due_ms: Callable[[], int]) -> list[HeldKey]:
        """Append batches, with at most `WINDOW` in flight."""
        keys: list[HeldKey] = []
        header = batch.read_header(data)

        def done(job: AppendJob) -> None:
            assert job.held is not None
            keys.append(job.held)
            self.window.release()

        for _ in range(count):
            self.window.acquire()
            delay = Delay(due_ms=due_ms(), recallable=True)
            self.store.writer.submit(AppendJob("t", 0, data, header, hold=delay, done=done))
        self.store.writer.call(lambda: None)
        return keys

    def soon(self) -> int:
        return self.now_ms + 1_000

    def publish(self) -> int:
        """Publish all due batches, one job after the other."""
        published = 0
        done = Semaphore(0)
        has_more = True
        while has_more:
            job = DueJob(done=lambda _: done.release())
            self.store.writer.submit(job)
            done.acquire()
            published += job.published
            has_more = job.has_more
        return published

    def recall(self, keys: list[HeldKey], at_once: int) -> None:
        """Recall batches, `at_once` in each request."""
        for start in range(0, len(keys), at_once):
            self.window.acquire()
            self.store.writer.submit(
                RecallJob("t", keys[start : start + at_once], done=lambda _: self.window.release())
            )
        self.store.writer.call(lambda: None)


def topic_set(state: object) -> TopicSet | None:
    return TopicSet(Topic("t", 1, 1, 1)) if not state.topics else None  # type: ignore[attr-defined]


def made(messages: int) -> bytes:
    builder = BatchBuilder(32 << 20)
    builder.add([Message("", b"x" * 100) for _ in range(messages)])
    return builder.build(NOW_MS, 0, 0, 0)


def some_day(rng: Random) -> int:
    return NOW_MS + rng.randrange(1, YEAR_MS)


def timed(what: str, count: int, run: Callable[[], object]) -> None:
    """Print rate and CPU of `run`, which processes `count` items."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:42} {count / wall:>12,.0f}/s {cpu / count * 1e6:>9.2f} us of CPU each")


def rates(path: Path) -> None:
    bench = Bench(path)
    rng = Random(1)
    lone, large = made(1), made(4_000)
    count = 30_000
    timed(
        "lone, due at many times: in",
        count,
        lambda: bench.append(lone, count, lambda: NOW_MS + rng.randrange(1, YEAR_MS)),
    )
    bench.now_ms += YEAR_MS
    timed("lone, due at many times: out", count, bench.publish)
    keys: list[HeldKey] = []
    timed(
        "lone, to be recalled: in", count, lambda: keys.extend(bench.append(lone, count, lambda: bench.now_ms + 1_000))
    )
    timed("recalled one by one", count // 2, lambda: bench.recall(keys[: count // 2], 1))
    timed("recalled by 1,000", count // 2, lambda: bench.recall(keys[count // 2 :], 1_000))
    bench.now_ms += 1_000
    timed("passed over, since they were recalled", count, bench.publish)
    messages = 4_000 * 500
    timed(
        "in batches of 4,000, one due time: in",
        messages,
        lambda: bench.append(large, 500, lambda: bench.now_ms + 1_000),
    )
    bench.now_ms += 1_000
    timed("in batches of 4,000, one due time: out", messages, bench.publish)
    bench.store.close()


def waiting(path: Path, count: int) -> None:
    """Print memory and start-up time by the number of waiting batches."""
    bench, rng, lone = Bench(path), Random(1), made(1)
    print("waiting       memory        start")
    step = max(count // 5, 1)
    for so_far in range(0, count + 1, step):
        if so_far:
            bench.append(lone, step, lambda: some_day(rng))
        bench.store.close()
        began = time.perf_counter()
        bench = Bench(path)
        next_ms = next_due_ms(bench.store)
        took = time.perf_counter() - began
        print(f"{so_far:>12,} {anonymous_bytes(os.getpid()) >> 20:>6} MiB {took:>9.3f} s   next due {next_ms}")
    bench.store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None, help="where the data is; a temporary folder")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        if arguments.waiting:
            waiting(folder / "data", arguments.waiting)
        else:
            rates(folder / "data")
        print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB, with mapped files")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
