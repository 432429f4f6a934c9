"""The unsettled messages of a popped queue: a bitmap per block of offsets for each status that occurs in the block.

Settled messages are in no bitmap. So the memory depends on how many blocks have unsettled messages, and on how many
different statuses these have, but not on their pattern.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated

import msgspec

from minimq_broker.core.popping.pop_runs import NEVER, Run, RunState, Status
from minimq_common.errors import StoreError

#: Offsets of one block. Larger blocks need less memory, smaller ones less time for each change.
BLOCK = 256

_Bits = Annotated[bytes, msgspec.Meta(max_length=BLOCK // 8)]


class BlockRow(msgspec.Struct, frozen=True, array_like=True):
    """A block in the checkpoint."""

    #: Disjoint bitmaps, least significant byte first.
    states: list[tuple[Status, _Bits]]
    #: Lanes of the unsettled messages as 4 bytes each, ascending by offset; empty if none has one.
    lanes: bytes = b""


class Block:
    """The unsettled messages of `BLOCK` adjacent offsets."""

    __slots__ = ("first", "lanes", "states", "used")

    def __init__(self, number: int) -> None:
        self.first = number * BLOCK
        self.states: dict[Status, int] = {}
        #: The union of the bitmaps in `states`.
        self.used = 0
        #: Lanes by bit; None if no message ever had one.
        self.lanes: array[int] | None = None

    def row(self) -> BlockRow:
        """Return its row in the checkpoint."""
        states = sorted((bits, status) for status, bits in self.states.items())
        lanes = b""
        if self.lanes is not None and any(self.lanes):
            lanes = b"".join(self.lanes[at].to_bytes(4, "little") for at in _positions(self.used))
        return BlockRow([(status, bits.to_bytes(BLOCK // 8, "little")) for bits, status in states], lanes)

    def runs(self, wanted: int) -> list[Run]:
        """Return the unsettled messages of a bitmap, ascending."""
        found: list[Run] = []
        base = self.first
        for status, bits in [*self.states.items()]:
            for first, end in spans_in(bits & wanted):
                if self.lanes is None:
                    found.append(status.run(base + first, base + end))
                else:
                    found += [
                        status.run(base + at, base + to, lane) for at, to, lane in _by_lane(self.lanes, first, end)
                    ]
        found.sort(key=lambda run: run.first)
        return found

    def lane_bits(self, lane: int) -> int:
        """Return the bitmap of the unsettled messages of a lane."""
        if self.lanes is None:
            return 0 if lane else self.used
        # Searching bytes takes a tenth of the time of searching numbers.
        every, wanted = self.lanes.tobytes(), lane.to_bytes(4, sys.byteorder)
        bits, at = 0, every.find(wanted)
        while at >= 0:
            if not at % 4:
                bits |= 1 << at // 4
            at = every.find(wanted, at + 1)
        return bits & self.used

    def lanes_in(self, bits: int) -> set[int]:
        """Return the lanes of some messages; 0 for those without one."""
        lanes = self.lanes
        return {0} if lanes is None else {lanes[at] for at in _positions(bits)}


def spans_in(bits: int) -> Iterator[tuple[int, int]]:
    """Yield first and end of each sequence of set bits, ascending."""
    at = 0
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        yield at + zeros, at + zeros + ones
        at += zeros + ones
        bits >>= ones


def _by_lane(lanes: Sequence[int], first: int, end: int) -> Iterator[tuple[int, int, int]]:
    for lane, same in groupby(lanes[first:end]):
        behind = first + sum(1 for _ in same)
        yield first, behind, lane
        first = behind


def _positions(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def mask(number: int, first: int, end: int) -> int:
    """Return the bitmap of the offsets from `first` to before `end` that are in a block."""
    low, high = max(0, first - number * BLOCK), min(BLOCK, end - number * BLOCK)
    return (1 << high) - (1 << low)


def masks(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield number and bitmap of each block with offsets from `first` to before `end`."""
    for number in range(first // BLOCK, (end + BLOCK - 1) // BLOCK):
        yield number, mask(number, first, end)


class PopBlocks:
    """The unsettled messages of a queue, with their counts, and the blocks that have messages of a lane."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._numbers: list[int] = []
        #: Blocks with messages of each lane, ascending.
        self._lanes: dict[int, list[int]] = {}
        #: By lane, the messages with an epoch.
        self._delivered: Counter[int] = Counter()
        #: By block, how many statuses of messages in flight it has.
        self._flights: Counter[int] = Counter()
        #: Bitmaps in all.
        self.bitmaps = 0
        #: Unsettled messages, those in flight, and those with which a consumer died.
        self.count = self.held = self.lost = 0
        #: Blocks changed since `touched` was cleared.
        self.touched: set[int] = set()
        #: Lanes, and -1 minus the numbers of blocks with messages without a lane, whose due time may have changed.
        self.dirty: set[int] = set()

    # ---- changes -----------------------------------------------------------------------------------

    def put(self, first: int, end: int, status: Status | None, lane: int = 0) -> None:
        """Set the status of messages; None: they are settled."""
        if status is None and end - first > BLOCK:  # most blocks of a long span may have no unsettled messages
            for number in self._between(first, end):
                self._assign(number, mask(number, first, end), None, 0)
            return
        for number, bits in masks(first, end):
            self._assign(number, bits, status, lane)

    def _between(self, first: int, end: int) -> list[int]:
        begin, behind = bisect_left(self._numbers, first // BLOCK), bisect_left(self._numbers, (end - 1) // BLOCK + 1)
        return self._numbers[begin:behind]

    def _assign(self, number: int, bits: int, status: Status | None, lane: int) -> None:
        block = self._blocks.get(number)
        if block is None:
            if status is None:
                return
            block = self._blocks[number] = Block(number)
            insort(self._numbers, number)
        former = block.used & bits
        lanes = block.lanes_in(former) if former else set[int]()
        if former:
            self._remove(block, number, former)
        if status is not None:
            self._add(block, number, bits, status, lane)
            lanes.add(lane)
        elif not block.used:
            del self._blocks[number]
            del self._numbers[bisect_left(self._numbers, number)]
        self.touched.add(number)
        for each in lanes:
            self.dirty.add(each or -1 - number)
            if each and each != lane and not block.lane_bits(each):
                self._leave(each, number)

    def _remove(self, block: Block, number: int, bits: int) -> None:
        block.used &= ~bits
        for status, every in [*block.states.items()]:
            if not (hit := every & bits):
                continue
            if every == hit:
                del block.states[status]
                self.bitmaps -= 1
                if status.state is RunState.OUT:
                    self._flights[number] -= 1
                    if not self._flights[number]:
                        del self._flights[number]
            else:
                block.states[status] = every ^ hit
            self._count(block, hit, status, -1)
            bits ^= hit
            if not bits:
                return

    def _add(self, block: Block, number: int, bits: int, status: Status, lane: int) -> None:
        if block.lanes is None and lane:
            block.lanes = array("I", bytes(4 * BLOCK))
        if block.lanes is not None:
            low = (bits & -bits).bit_length() - 1
            block.lanes[low : bits.bit_length()] = array("I", [lane]) * bits.bit_count()
        every = block.states.get(status, 0)
        if not every:
            self.bitmaps += 1
            if status.state is RunState.OUT:
                self._flights[number] += 1
        block.states[status] = every | bits
        block.used |= bits
        self._count(block, bits, status, 1)
        if lane:
            self._enter(lane, number)

    def _count(self, block: Block, bits: int, status: Status, sign: int) -> None:
        count = sign * bits.bit_count()
        self.count += count
        if status.state is RunState.OUT:
            self.held += count
        if status.lost:
            self.lost += count
        if status.epoch and block.lanes is not None:
            for at in _positions(bits):
                if lane := block.lanes[at]:
                    self._delivered[lane] += sign
                    if not self._delivered[lane]:
                        del self._delivered[lane]

    def _enter(self, lane: int, number: int) -> None:
        numbers = self._lanes.setdefault(lane, [])
        if not numbers or numbers[-1] < number:
            numbers.append(number)
        elif (at := bisect_left(numbers, number)) == len(numbers) or numbers[at] != number:
            numbers.insert(at, number)

    def _leave(self, lane: int, number: int) -> None:
        numbers = self._lanes[lane]
        del numbers[bisect_left(numbers, number)]
        if not numbers:
            del self._lanes[lane]

    # ---- lookups; any thread may call those of the first group ----------------------------------------

    def runs(self, first: int = 0, end: int = NEVER) -> Iterator[Run]:
        """Yield the unsettled messages of a span, ascending; adjacent ones may be in several runs."""
        for number in self._between(first, end):
            if (block := self._blocks.get(number)) is not None:
                yield from block.runs(mask(number, first, end))

    def statuses(self, first: int = 0) -> Iterator[tuple[Status, int]]:
        """Yield the statuses of the messages from an offset on, with numbers of messages."""
        for number in self._between(first, NEVER):
            if (block := self._blocks.get(number)) is not None:
                wanted = mask(number, first, NEVER)
                for status, bits in [*block.states.items()]:
                    if count := (bits & wanted).bit_count():
                        yield status, count

    def count_before(self, offset: int) -> int:
        """Return how many unsettled messages are before an offset."""
        blocks = [(number, self._blocks.get(number)) for number in self._between(0, offset)]
        return sum((block.used & mask(number, 0, offset)).bit_count() for number, block in blocks if block is not None)

    def numbers(self) -> list[int]:
        """Return the numbers of the blocks that have unsettled messages."""
        return self._numbers.copy()

    def block(self, number: int) -> Block | None:
        """Return a block, None if all of its messages are settled."""
        return self._blocks.get(number)

    @property
    def first(self) -> int:
        """The oldest unsettled message, `NEVER` if there is none."""
        if not self._numbers:
            return NEVER
        block = self._blocks[self._numbers[0]]
        return block.first + (block.used & -block.used).bit_length() - 1

    @property
    def last(self) -> int:
        """The offset behind the last unsettled message; 0 if there is none."""
        if not self._numbers:
            return 0
        block = self._blocks[self._numbers[-1]]
        return block.first + block.used.bit_length()

    @property
    def has_lanes(self) -> bool:
        """True if a message has a lane."""
        return bool(self._lanes)

    def has_lane(self, lane: int, first: int = 0) -> bool:
        """Return whether messages of a lane are unsettled, from an offset on."""
        numbers = self._lanes.get(lane)
        if numbers is None:
            return False
        if numbers[-1] > first // BLOCK:
            return True
        return numbers[-1] == first // BLOCK and bool(self._blocks[numbers[-1]].lane_bits(lane) >> first % BLOCK)

    def lane_runs(self, lane: int) -> Iterator[Run]:
        """Yield the messages of a lane, ascending."""
        for number in self._lanes.get(lane, ())[:]:
            block = self._blocks[number]
            yield from block.runs(block.lane_bits(lane))

    def delivered_runs(self, lanes: Iterable[int]) -> list[Run]:
        """Return the messages of some lanes that have an epoch."""
        found: list[Run] = []
        for lane in lanes:
            left = self._delivered[lane]
            for run in self.lane_runs(lane) if left else ():
                if run.epoch:
                    found.append(run)
                    left -= run.count
                    if not left:
                        break
        return found

    def flights(self) -> Iterator[Status]:
        """Yield the statuses of the messages in flight, by block."""
        for number in [*self._flights]:
            for status in self._blocks[number].states:
                if status.state is RunState.OUT:
                    yield status

    def runs_in_flight(self, client: str) -> Iterator[Run]:
        """Yield the messages that a consumer has."""
        for number in sorted(self._flights):
            block, bits = self._blocks[number], 0
            for status, each in block.states.items():
                if status.state is RunState.OUT and status.client == client:
                    bits |= each
            yield from block.runs(bits)

    def due_ms(self, unit: int) -> int | None:
        """Return when a member of `dirty` is due; None if it has no messages."""
        if unit >= 0:
            return self._lane_due_ms(unit)
        block = self._blocks.get(-1 - unit)
        if block is None:
            return None
        bits = block.lane_bits(0)
        return min((status.until_ms for status, each in block.states.items() if each & bits), default=None)

    def _lane_due_ms(self, lane: int) -> int | None:
        found, left = None, self._delivered[lane]
        for number in self._lanes.get(lane, ()):
            block = self._blocks[number]
            bits = block.lane_bits(lane)
            wanted = bits & -bits if found is None else 0  # the oldest message, and those in flight
            for status, each in block.states.items():
                hit = each & bits
                if hit and (hit & wanted or status.state is RunState.OUT):
                    found = status.until_ms if found is None else max(found, status.until_ms)
                left -= hit.bit_count() if status.epoch else 0
            if left <= 0:
                break
        return found

    def due_runs(self, unit: int, now_ms: int) -> Iterator[Run]:
        """Yield the messages of a member of `dirty` that are due, ascending; of a lane those before any other."""
        if unit >= 0:
            for run in self.lane_runs(unit):
                if run.until_ms > now_ms:
                    break
                yield run
        elif (block := self._blocks.get(-1 - unit)) is not None:
            yield from (run for run in block.runs(block.lane_bits(0)) if run.until_ms <= now_ms)

    def is_bitmap(self, run: Run) -> bool:
        """Return whether a run is all messages of its status in their block."""
        block = self._blocks[run.first // BLOCK]
        return block.states.get(run.status, 0).bit_count() == run.count

    # ---- the checkpoint ------------------------------------------------------------------------------

    def load(self, number: int, row: BlockRow) -> None:
        """Load a block from its row. Raises `StoreError` if two of its bitmaps overlap."""
        every, base = [(status, int.from_bytes(bits, "little")) for status, bits in row.states], number * BLOCK
        used = 0
        for _, bits in every:
            if not bits or used & bits:
                raise StoreError(f"messages {base} to {base + BLOCK} have two states, or none")
            used |= bits
        if row.lanes and len(row.lanes) != 4 * used.bit_count():
            raise StoreError(f"messages {base} to {base + BLOCK} have {len(row.lanes)} bytes of lanes")
        lanes = [0] * BLOCK
        for at, position in enumerate(_positions(used) if row.lanes else ()):
            lanes[position] = int.from_bytes(row.lanes[4 * at : 4 * at + 4], "little")
        for status, bits in every:
            for first, end in spans_in(bits):
                for at, to, lane in _by_lane(lanes, first, end):
                    self.put(base + at, base + to, status, lane)
