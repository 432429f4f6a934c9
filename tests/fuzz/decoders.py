"""Every decoder against inputs made at random: in two processes, each with little memory.

A finding is an error that the decoder does not document, more memory than four times the largest batch, an input that
takes more than a second, a crash. It is printed with the number of its input, which repeats it.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import resource
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from fuzz.target import Target
from fuzz.targets import TARGETS
from minimq_common.batch.compression import MAX_CONTENT_BYTES

PROCESSES: Final = 2
#: What one input may take besides what the process has anyway.
MEMORY_BYTES: Final = 4 * MAX_CONTENT_BYTES
#: Processor time that one input may take.
MAX_S: Final = 1.0
#: A process that is that long at one input hangs, however loaded the machine is.
HANGS_S: Final = 120.0
#: Inputs after which a process has loaded what it needs, so that its memory is measured.
_WARM_UP: Final = 20
_SHOWN: Final = 300
_TOLD_EVERY_S: Final = 60.0


@dataclass
class _Progress:
    """The progress of a process, in memory that its parent reads: after a crash it names the input."""

    target: Any = field(default_factory=lambda: multiprocessing.get_context("spawn").RawValue(ctypes.c_int64, -1))
    number: Any = field(default_factory=lambda: multiprocessing.get_context("spawn").RawValue(ctypes.c_int64, -1))


def shares(targets: Iterable[Target], numbers: range) -> list[range]:
    """Return which of its inputs each target gets of these."""
    weights = [target.weight for target in targets]

    def of(weight: float, amount: int) -> int:
        return max(1, round(amount * weight / sum(weights))) if amount else 0

    return [range(of(weight, numbers.start), of(weight, numbers.stop)) for weight in weights]


def chosen(only: str) -> list[Target]:
    """Return the targets whose name has this text."""
    return [target for target in TARGETS if only in target.name]


def input_of(target: Target, seed: int, number: int, rng: Random) -> Any:
    """Return input `number` of a target, the same in every process."""
    rng.seed(f"{target.name} {seed} {number}")
    return target.make(rng)


def play(seed: int, amount: int, only: str = "", first: int = 0) -> list[str]:
    """Play inputs at all decoders, and return what was found."""
    context = multiprocessing.get_context("spawn")
    findings: list[str] = []
    rest = [_Share(context, seed, range(first, first + amount), only, worker) for worker in range(PROCESSES)]
    for share in rest:
        share.start()
    told = time.monotonic()
    while rest:
        multiprocessing.connection.wait([share.process.sentinel for share in rest], timeout=1.0)
        if time.monotonic() - told > _TOLD_EVERY_S:
            told = time.monotonic()
            print(f"  at {', '.join(share.place for share in rest)}; {len(findings)} findings", flush=True)
        for share in list(rest):
            findings += share.look()
            if share.is_done:
                rest.remove(share)
    return findings


class _Share:
    """The inputs of one process, which is started again behind an input that ended it."""

    def __init__(self, context: Any, seed: int, numbers: range, only: str, worker: int) -> None:
        self._context = context
        self._work = (seed, numbers, only, worker)
        self._progress = _Progress()
        self._seen = (-1, -1)
        self._seen_at = time.monotonic()
        self.is_done = False

    def start(self, target: int = 0, number: int = 0) -> None:
        self._found, theirs = self._context.Pipe(duplex=False)
        begin = (target, number)
        self.process = self._context.Process(target=_work, args=(*self._work, begin, self._progress, theirs))
        self.process.start()
        theirs.close()

    @property
    def place(self) -> str:
        """The present input, for people."""
        target, number = self._progress.target.value, self._progress.number.value
        return f"{chosen(self._work[2])[target].name} {number:,}" if target >= 0 else "the beginning"

    def look(self) -> list[str]:
        """Return what was found since the last look."""
        found: list[str] = []
        with contextlib.suppress(EOFError):
            while self._found.poll():
                found.append(self._found.recv())
        place = (self._progress.target.value, self._progress.number.value)
        if place != self._seen:
            self._seen, self._seen_at = place, time.monotonic()
        is_loading = place[0] < 0  # what it needs, which takes its time on a loaded machine
        if self.process.is_alive() and (is_loading or time.monotonic() - self._seen_at < HANGS_S):
            return found
        hangs = self.process.is_alive()
        if hangs:
            self.process.kill()
        self.process.join()
        if not hangs and self.process.exitcode == 0:
            self.is_done = True
            return found
        target, number = place
        if target < 0:
            self.is_done = True
            return [*found, f"a process ended with {self.process.exitcode} before its first input"]
        what = f"hangs for {HANGS_S:.0f} s" if hangs else f"ends the process with {self.process.exitcode}"
        found.append(f"{chosen(self._work[2])[target].name}: input {number} {what}")
        self._seen_at = time.monotonic()
        self.start(target, number + 1)
        return found


def _work(
    seed: int, numbers: range, only: str, worker: int, begin: tuple[int, int], progress: _Progress, found: Any
) -> None:
    targets = chosen(only)
    told: dict[tuple[str, str], int] = {}
    rng = Random()
    for target in targets:
        for number in range(_WARM_UP):
            problem_of(target, input_of(target, seed, -1 - number, rng))
    bound_memory()
    for index, (target, share) in enumerate(zip(targets, shares(targets, numbers), strict=True)):
        if index < begin[0]:
            continue
        progress.target.value = index
        first = max(begin[1], share.start) if index == begin[0] else share.start
        for number in range(first + (worker - first) % PROCESSES, share.stop, PROCESSES):
            progress.number.value = number
            given = input_of(target, seed, number, rng)
            problem = problem_of(target, given)
            if problem is None:
                continue
            key = (target.name, problem.partition(": ")[0])
            told[key] = told.get(key, 0) + 1
            if told[key] == 1:
                found.send(f"{target.name}: input {number}: {problem}\n    {_shown(given)}")
    for (name, problem), times in told.items():
        if times > 1:
            found.send(f"{name}: {times} times: {problem}")


def problem_of(target: Target, given: Any) -> str | None:
    """Decode an input and return what is wrong with how that went."""
    begun = time.process_time()
    try:
        target.decode(given)
    except target.errors:
        pass
    except MemoryError:
        return f"takes more than {MEMORY_BYTES >> 20} MiB"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = str(error).partition("\n")[0][:_SHOWN]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {said}"
    taken = time.process_time() - begun
    return f"takes {taken:.1f} s of processor time" if taken > MAX_S else None


def bound_memory() -> None:
    """Let this process have no more memory than it has now and one input may take."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _shown(given: object) -> str:
    shown = repr(given).replace("\n", " ")
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}... ({len(shown)} characters)"


def replay(name: str, seed: int, number: int) -> None:
    """Decode one input again, for a debugger: `python -c 'from fuzz import decoders; decoders.replay(...)'`."""
    [target] = [target for target in TARGETS if target.name == name]
    given = input_of(target, seed, number, Random())
    print(_shown(given))
    target.decode(given)
