"""Every file of a data directory against a disk that does not keep what it was given.

A case damages one file of a copy of a directory, then opens what reads it, in a process of its own, and reads
everything back. It is found and named, or harmless: all that was acknowledged is as it was. A finding is anything else:
other data, something that is missing without a word, an error that nobody expects, the end of the process. `--only 123`
plays case 123 again, `--only state` those that damage a file with that in its name.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import multiprocessing
import os
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import lmdb

from fuzz.specimens import OWNER, Truth, key_of, make, records
from minimq_broker.backup.check import check_directory
from minimq_broker.commit.store import Store, StoreOptions
from minimq_broker.log import lmdb_file, start_check
from minimq_broker.log.file_checksum import has_checksum
from minimq_broker.log.page_walk import PageDamage, walk
from minimq_broker.log.rows import StoredBatch
from minimq_broker.log.segment import Segment
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import MinimqError
from minimq_nameserver.controller.decisions import DecisionFile
from support.kernel_stores import batches_of

PROCESSES: Final = 2
#: A case that takes so long hangs, however loaded the machine is.
HANGS_S: Final = 120
PAGE: Final = 4096
#: What the services of a broker make an error of that says what cannot be read.
NAMED: Final = (MinimqError, lmdb.Error, struct.error)
#: What may become of a damage: a check, the start or a reader has found it, the broker does not start, or all is there.
FOUND, STOPPED, HARMLESS = OUTCOMES = ("found", "the broker stopped", "harmless")
_RAM: Final = Path("/dev/shm")
_OPTIONS: Final = StoreOptions(segment_bytes=1 << 20, checkpoint_interval_s=3600.0, owner=OWNER)


def play(seed: int, amount: int, only: str = "", first: int = 0) -> list[str]:
    """Play so many cases, and return what was found."""
    numbers = [int(only)] if only.isdecimal() else range(first, first + amount)
    part = "" if only.isdecimal() else only

    def cases(sound: Path) -> list[Case]:
        files = sorted(file.relative_to(sound) for file in sound.rglob("*") if _is_data(file))
        return [case for number in numbers if part in str((case := _random_case(seed, number, files)).file)]

    return sorted(finding for finding in _play(cases) if finding not in OUTCOMES)


def flip_bytes(seed: int, amount: int) -> list[str]:
    """Flip a byte in each of so many places: a quarter each in sealed segments, the active one, index, and checkpoint.

    Returns an outcome or a finding for each place. One in eight is played as a whole: `check`, a start, and reads. The
    checksum alone has to find the others in sealed segments; other files are not checked before the start.
    """

    def cases(sound: Path) -> list[Case]:
        chance = Random(seed)
        folder = sound / "master"
        *sealed, active = sorted((folder / "commitlog").glob("*.mdb"))
        parts = [
            [(file, range(file.stat().st_size)) for file in sealed],
            [(active, range(active.stat().st_size))],
            [(file, page) for file in (*sealed, active) for page in _index_pages(file)],
            [(folder / "state.mdb", range((folder / "state.mdb").stat().st_size))],
        ]
        found: list[Case] = []
        for number in range(amount):
            file, places = chance.choice(parts[number % len(parts)])
            flip = partial(_flip_byte, at=chance.choice(places), mask=chance.randrange(1, 256))
            found.append(Case(number, file.relative_to(sound), chance, flip, is_whole=number // len(parts) % 8 == 0))
        return found

    return _play(cases)


@dataclass(frozen=True)
class Case:
    """One damage to one file."""

    number: int
    file: Path
    chance: Random
    damage: Callable[[bytearray, Random], str]
    is_whole: bool = True


def _random_case(seed: int, number: int, files: Sequence[Path]) -> Case:
    chance = Random(f"{seed} {number}")
    file = chance.choice(files)
    return Case(number, file, chance, chance.choice(_DAMAGES))


def _index_pages(file: Path) -> list[range]:
    """Return the places of the pages that have rows of the index."""
    data = file.read_bytes()
    with closing(Segment(file, int(file.stem), 1 << 20, readonly=True)) as segment:
        rows = [key + value for _, key, value in segment.stored_rows()]
    pages = {data.index(row) // PAGE for row in rows}
    return [range(page * PAGE, (page + 1) * PAGE) for page in sorted(pages)]


def _play(cases: Callable[[Path], list[Case]]) -> list[str]:
    with _workplace() as folder:
        truths = make(folder / "sound")
        context = multiprocessing.get_context("fork")
        every = cases(folder / "sound")
        workers, pipes = [], []
        for worker in range(min(PROCESSES, len(every))):
            ours, theirs = context.Pipe(duplex=False)
            place, share = folder / f"worker-{worker}", every[worker::PROCESSES]
            workers.append(context.Process(target=_work, args=(folder / "sound", place, truths, share, theirs)))
            pipes.append(ours)
            workers[-1].start()
            theirs.close()
        findings = [finding for pipe in pipes for finding in _all_of(pipe)]
        for process in workers:
            process.join()
            if process.exitcode:
                findings.append(f"a process that plays cases ended with {process.exitcode}")
    return findings


@contextmanager
def _workplace() -> Iterator[Path]:
    in_ram = _RAM.is_dir() and shutil.disk_usage(_RAM).free > 64 << 20
    with tempfile.TemporaryDirectory(prefix="minimq-fuzz-", dir=_RAM if in_ram else None) as folder:
        yield Path(folder)


def _all_of(pipe: Any) -> list[str]:
    found: list[str] = []
    try:
        while True:
            found.append(pipe.recv())
    except EOFError:
        return found


def _work(sound: Path, place: Path, truths: dict[str, Truth], cases: Sequence[Case], findings: Any) -> None:
    for module in (start_check, lmdb_file):  # a process of its own, without the start of an interpreter
        name = "unreadable" if module is start_check else "unreadable_files"
        setattr(module, name, _unreadable_in_forks)
    for case in cases:
        if place.exists():
            shutil.rmtree(place)
        kind = case.file.parts[0]
        shutil.copytree(sound / kind, place / kind)
        what = damage(place / case.file, case.damage, case.chance)
        if what is None:
            continue
        if not case.is_whole and has_checksum(sound / case.file):
            findings.send(FOUND if start_check.damaged([place / case.file]) else f"case {case.number}: not found")
            continue
        for problem in in_child(partial(examine, place / kind, kind, truths, is_checked=case.is_whole)):
            findings.send(problem if problem in OUTCOMES else f"case {case.number}: {case.file}, {what}: {problem}")
    findings.close()


def _unreadable_in_forks(paths: Sequence[Path]) -> dict[Path, PageDamage | OSError]:
    def read(path: Path) -> list[str]:
        try:
            walk(path)
        except (PageDamage, lmdb.Error, OSError) as error:
            return [str(error)]
        return []

    reasons = {path: in_child(partial(read, path)) for path in paths}
    return {path: PageDamage(found[0]) for path, found in reasons.items() if found}


def _is_data(file: Path) -> bool:
    return file.is_file() and file.name != "lock" and not file.name.endswith("-lock")


# ---- what a disk may do -------------------------------------------------------------------------


def damage(file: Path, how: Callable[[bytearray, Random], str], chance: Random) -> str | None:
    """Damage a file, and return in words how; None when it stayed as it was."""
    before = file.read_bytes()
    data = bytearray(before)
    what = how(data, chance) if data else "it was empty"
    if data == before:
        return None
    file.write_bytes(data)
    return what


def _flip_byte(data: bytearray, _: Random, *, at: int, mask: int) -> str:
    data[at] ^= mask
    return f"byte {at} xor {mask}"


def _flip(data: bytearray, chance: Random) -> str:
    at, bit = chance.randrange(len(data)), chance.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at} flipped"


def _flip_in_header(data: bytearray, chance: Random) -> str:
    """Flip a bit where a page describes its content, which a random flip seldom hits."""
    page = chance.randrange((len(data) + PAGE - 1) // PAGE)
    at, bit = min(page * PAGE + chance.randrange(64), len(data) - 1), chance.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at} flipped"


def _flip_in_meta(data: bytearray, chance: Random) -> str:
    """Flip a bit where an LMDB file tells its length and its last transaction."""
    page, at, bit = chance.randrange(2), chance.randrange(136, 152), chance.randrange(8)
    at = min(page * PAGE + at, len(data) - 1)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at} flipped"


def _overwrite(data: bytearray, chance: Random) -> str:
    size = chance.choice((1, 2, 4, 8, 16, 64, 512, 3000))
    at = chance.randrange(len(data))
    run = chance.choice((b"\0" * size, b"\xff" * size, chance.randbytes(size)))[: len(data) - at]
    data[at : at + len(run)] = run
    return f"{len(run)} bytes from {at} on overwritten"


def _cut(data: bytearray, chance: Random) -> str:
    at = chance.choice((chance.randrange(len(data)), chance.randrange(len(data) // PAGE + 1) * PAGE))
    del data[at:]
    return f"cut off at {at}"


def _zero_page(data: bytearray, chance: Random) -> str:
    page, count = chance.randrange(len(data) // PAGE + 1), chance.choice((1, 1, 1, 2, 8))
    begin, end = page * PAGE, min((page + count) * PAGE, len(data))
    data[begin:end] = bytes(max(end - begin, 0))
    return f"{count} pages from page {page} on are zeros"


def _swap_pages(data: bytearray, chance: Random) -> str:
    one, two = (chance.randrange(len(data) // PAGE + 1) * PAGE for _ in range(2))
    if max(one, two) + PAGE <= len(data):
        data[one : one + PAGE], data[two : two + PAGE] = data[two : two + PAGE], data[one : one + PAGE]
    return f"pages {one // PAGE} and {two // PAGE} swapped"


def _copy_page(data: bytearray, chance: Random) -> str:
    one, two = (chance.randrange(len(data) // PAGE + 1) * PAGE for _ in range(2))
    if max(one, two) + PAGE <= len(data):
        data[one : one + PAGE] = data[two : two + PAGE]
    return f"page {two // PAGE} written over page {one // PAGE}"


_DAMAGES: Final[tuple[Callable[[bytearray, Random], str], ...]] = (
    *(_flip, _flip, _flip_in_header, _flip_in_header, _flip_in_meta),
    *(_overwrite, _cut, _zero_page, _swap_pages, _swap_pages, _copy_page),
)


# ---- what becomes of it -------------------------------------------------------------------------


def in_child(work: Callable[[], list[str]]) -> list[str]:
    """Return what something returns in a process of its own, or how that ended."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        faulthandler.disable()  # the parent names the signal
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS_S)
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - it is what is looked for
            found = [_described(error)]
        with os.fdopen(theirs, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        return [f"the process ended by {signal.Signals(-status).name if status < 0 else status}"]
    return list(json.loads(text))


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = next((frame for frame in reversed(frames) if "minimq" in frame.filename), frames[-1])
    return f"{type(error).__name__} at {Path(own.filename).name}:{own.lineno}: {str(error)[:200]}"


def examine(path: Path, kind: str, truths: dict[str, Truth], *, is_checked: bool = True) -> list[str]:
    """Check a directory, open it, read everything back, and return the outcome or what is wrong about that."""
    if kind == "controller":
        return _examine_controller(path)
    named = _Named()
    try:
        named.texts += map(str, check_directory(path).findings if is_checked else ())
    except MinimqError as error:
        named.texts.append(error.message)
    is_missed = is_checked and not named.texts
    truth = truths[kind]
    try:
        store = Store(path, lambda jobs, grown: None, _OPTIONS, lambda: 1_800_000_000_000, alone=kind == "master")
    except MinimqError:
        return ["it does not start, and check says clean"] if is_missed else [STOPPED]
    with closing(store):
        store.confirmation.confirm(store.end)
        problems = _compare(store, truth, named)
    if not problems:
        return [FOUND if named.texts else HARMLESS]
    return [f"{problem} (and check says clean)" for problem in problems] if is_missed else problems


def _examine_controller(path: Path) -> list[str]:
    try:
        with closing(DecisionFile(path)) as decisions:
            found = {record.key: record for record in decisions.load()}
            return [HARMLESS] if found == {record.key: record for record in records()} else ["decisions are others"]
    except MinimqError:
        return [STOPPED]


class _Named(logging.Handler):
    """The texts that name damage: findings, errors, and the log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        logger = logging.getLogger()
        logger.handlers = [self]
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - until the process ends

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _compare(store: Store, truth: Truth, named: _Named) -> list[str]:
    """Return what is not as it was written."""
    problems: list[str] = []
    for name, queue_id, batches in truth.queues:
        try:
            key_of(store, name, queue_id)
        except MinimqError:
            return [f"the topic {name} is not there"]
        queue = _Queue(store, name, queue_id, batches, named)
        # The first segment, or an index row of it, may be unreadable, which the log says.
        queue.may_begin_later = any("a segment is damaged" in text for text in named.texts)
        problems += queue.walk() or queue.look_up()
    for group, queue_id, offset in truth.offsets:
        found = store.state.offset(group, key_of(store, "t", queue_id))
        if (-1 if found is None else found) != offset:
            problems.append(f"{group} goes on at {found} of queue {queue_id}, and had committed {offset}")
            break
    return problems


class _Queue:
    """A queue that is read back."""

    def __init__(self, store: Store, name: str, queue_id: int, batches: Sequence[Any], named: _Named) -> None:
        self._store, self._named = store, named
        self._key = key_of(store, name, queue_id)
        self._where = f"{name}/{queue_id}"
        self._batches = batches
        self._expected = {batch.base_offset: batch for batch in batches}
        self.may_begin_later = False

    def walk(self) -> list[str]:
        """Read it from its begin to its end, or to the first error."""
        start, stop = self._batches[0].base_offset, self._batches[-1].base_offset + len(self._batches[-1].bodies)
        try:
            first, end = self._store.bounds(self._key)
            if end != stop or (first != start and not self.may_begin_later):
                return [f"{self._where} has {first} to {end}, and not {start} to {stop}"]
            offset = first
            while offset < stop:
                found = batches_of(self._store, self._key, offset, 3, 1 << 20)
                if not found:
                    return [f"{self._where} has nothing from {offset} on"]
                for stored in found:
                    if problems := self._compare(stored, offset):
                        return problems
                    offset = stored.base_offset + stored.count
        except NAMED as error:
            self._named.texts.append(str(error))
        return []

    def look_up(self) -> list[str]:
        """Read each of its batches, found by offset, and its time."""
        for batch in self._batches:
            try:
                if batch.base_offset < self._store.bounds(self._key)[0]:
                    continue  # a pull is told which offsets there are
                for stored in batches_of(self._store, self._key, batch.base_offset, 1, 1)[:1]:
                    if problems := self._compare(stored, batch.base_offset):
                        return problems
                at = self._store.offset_at(self._key, batch.stored_ms)
            except NAMED:
                continue
            earliest = min(each.base_offset for each in self._batches if each.stored_ms >= batch.stored_ms)
            if at != earliest and not self.may_begin_later:
                return [f"{self._where} is at {at} at time {batch.stored_ms}, and not at {earliest}"]
        return []

    def _compare(self, stored: StoredBatch, offset: int) -> list[str]:
        if stored.base_offset != offset:
            return [f"{self._where} goes on at {stored.base_offset}, and not at {offset}"]
        try:
            bodies = list(map(bytes, RecordBatch(stored.data).bodies()))
        except MinimqError as error:  # a reader verifies what it gets
            self._named.texts.append(error.message)
            return []
        batch = self._expected.get(stored.base_offset)
        if batch is None or bodies != batch.bodies:
            return [f"{self._where} at {stored.base_offset} has other messages"]
        if (stored.count, stored.stored_ms) != (len(bodies), batch.stored_ms):
            return [f"{self._where} at {stored.base_offset} says {stored.count} messages of {stored.stored_ms}"]
        return []
