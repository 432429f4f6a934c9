"""The unsettled messages of a popped queue: a bitmap per block of offsets for each status that occurs in the block.

Settled messages are in no bitmap. So the memory depends on how many blocks have unsettled messages, and on how many
different statuses these have, but not on their pattern.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated

import msgspec

from minimq_broker.features.work_queues.pop_runs import NEVER, Run, RunState, Status
from minimq_common.errors import StoreError

#: Offsets of one block. Larger blocks need less memory, smaller ones less time for each change.
BLOCK = 256

_Bits = Annotated[bytes, msgspec.Meta(max_length=BLOCK // 8)]


class BlockRow(msgspec.Struct, frozen=True, array_like=True):
    """A block in the checkpoint."""

    #: Disjoint bitmaps, least significant byte first.
    states: list[tuple[Status, _Bits]]
    #: Group hashes of the unsettled messages as 4 bytes each, ascending by offset; empty if none has one.
    group_hashes: bytes = b""


class Block:
    """The unsettled messages of `BLOCK` adjacent offsets."""

    __slots__ = ("first", "group_hashes", "states", "used")

    def __init__(self, number: int) -> None:
        self.first = number * BLOCK
        self.states: dict[Status, int] = {}
        #: The union of the bitmaps in `states`.
        self.used = 0
        #: Group hashes by bit; None if no message ever had one.
        self.group_hashes: array[int] | None = None

    def row(self) -> BlockRow:
        states = sorted((bits, status) for status, bits in self.states.items())
        group_hashes = b""
        if self.group_hashes is not None and any(self.group_hashes):
            group_hashes = b"".join(self.group_hashes[at].to_bytes(4, "little") for at in _positions(self.used))
        return BlockRow([(status, bits.to_bytes(BLOCK // 8, "little")) for bits, status in states], group_hashes)

    def runs(self, wanted: int) -> list[Run]:
        """Return the unsettled messages of a bitmap, ascending."""
        found: list[Run] = []
        base = self.first
        for status, bits in [*self.states.items()]:
            for first, end in spans_in(bits & wanted):
                if self.group_hashes is None:
                    found.append(status.run(base + first, base + end))
                else:
                    found += [
                        status.run(base + at, base + to, group_hash)
                        for at, to, group_hash in _by_group_hash(self.group_hashes, first, end)
                    ]
        found.sort(key=lambda run: run.first)
        return found

    def group_hash_bits(self, group_hash: int) -> int:
        if self.group_hashes is None:
            return 0 if group_hash else self.used
        # Searching bytes takes a tenth of the time of searching numbers.
        every, wanted = self.group_hashes.tobytes(), group_hash.to_bytes(4, sys.byteorder)
        bits, at = 0, every.find(wanted)
        while at >= 0:
            if not at % 4:
                bits |= 1 << at // 4
            at = every.find(wanted, at + 1)
        return bits & self.used

    def group_hashes_of(self, bits: int) -> Sequence[int]:
        """Return the message group of each of some messages; 0 for those without one."""
        count = bits.bit_count()
        if self.group_hashes is None:
            return [0] * count
        end = bits.bit_length()
        first = (bits & -bits).bit_length() - 1
        if end - first == count:
            return self.group_hashes[first:end]
        return [self.group_hashes[at] for at in _positions(bits)]


def spans_in(bits: int) -> list[tuple[int, int]]:
    """Return first and end of each sequence of set bits, ascending."""
    found: list[tuple[int, int]] = []
    at = 0
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        found.append((at + zeros, at + zeros + ones))
        at += zeros + ones
        bits >>= ones
    return found


def _by_group_hash(group_hashes: Sequence[int], first: int, end: int) -> Iterator[tuple[int, int, int]]:
    for group_hash, same in groupby(group_hashes[first:end]):
        behind = first + sum(1 for _ in same)
        yield first, behind, group_hash
        first = behind


def _positions(bits: int) -> list[int]:
    found: list[int] = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def mask(number: int, first: int, end: int) -> int:
    """Return the bitmap of the offsets from `first` to before `end` that are in a block."""
    low = max(0, first - number * BLOCK)
    return (1 << max(low, min(BLOCK, end - number * BLOCK))) - (1 << low)


class PopBlocks:
    """The unsettled messages of a queue, with their counts, and the blocks that have messages of a message group."""

    def __init__(self) -> None:
        #: Blocks with unsettled messages, by number.
        self.blocks: dict[int, Block] = {}
        self._numbers: list[int] = []
        #: Blocks with messages of each message group, ascending.
        self._group_hashes: dict[int, list[int]] = {}
        #: By message group, the messages with an epoch.
        self._delivered = defaultdict[int, int](int)
        #: By block, how many statuses of messages in flight it has.
        self._flights = defaultdict[int, int](int)
        #: Bitmaps in all.
        self.bitmaps = 0
        #: Unsettled messages, those in flight, and those with which a consumer died.
        self.count = self.held = self.lost = 0
        #: Blocks changed since `touched` was cleared.
        self.touched: set[int] = set()
        #: Message groups, and -1 minus the numbers of blocks with messages without a message group, whose due time may
        #: have changed; with the new one if it is known.
        self.dirty: dict[int, int | None] = {}

    # ---- changes -----------------------------------------------------------------------------------

    def put(self, first: int, end: int, status: Status | None, group_hash: int = 0) -> None:
        """Set the status of messages; None: they are settled."""
        if status is None and end - first > BLOCK:  # most blocks of a long span may have no unsettled messages
            numbers: Iterable[int] = self._between(first, end)
        else:
            numbers = range(first // BLOCK, (end - 1) // BLOCK + 1)
        for number in numbers:
            block = self.blocks.get(number)
            if block is None:
                if status is None:
                    continue
                block = self._begin(number)
            at = block.first
            bits = (1 << min(BLOCK, end - at)) - (1 << max(0, first - at))
            if group_hash or block.group_hashes is not None:
                self._put_group_hashes(block, bits, status, group_hash)
            else:
                self._put(block, bits, status)
            self.touched.add(number)
            if not block.used:
                del self.blocks[number]
                del self._numbers[bisect_left(self._numbers, number)]

    def _begin(self, number: int) -> Block:
        insort(self._numbers, number)
        block = self.blocks[number] = Block(number)
        return block

    def _between(self, first: int, end: int) -> list[int]:
        begin, behind = bisect_left(self._numbers, first // BLOCK), bisect_left(self._numbers, (end - 1) // BLOCK + 1)
        return self._numbers[begin:behind]

    def _put(self, block: Block, bits: int, status: Status | None) -> None:
        if former := block.used & bits:
            for each, every in [*block.states.items()]:
                if hit := every & former:
                    self._flip(block, hit, each, -1)
                    if each.epoch and block.group_hashes is not None:
                        self._forget_delivered(block.group_hashes_of(hit))
                    former ^= hit
                    if not former:
                        break
        if status is not None:
            self._flip(block, bits, status, 1)

    def _put_group_hashes(self, block: Block, bits: int, status: Status | None, group_hash: int) -> None:
        number, former = block.first // BLOCK, block.used & bits
        if former:
            group_hashes = {*block.group_hashes_of(former)}
            self._put(block, former, None)
            for each in group_hashes:
                self.dirty[each or -1 - number] = None
                if each and not (block.used and block.group_hash_bits(each)):
                    self._leave(each, number)
        if status is not None:
            if block.group_hashes is None:
                block.group_hashes = array("I", bytes(4 * BLOCK))
            end, count = bits.bit_length(), bits.bit_count()
            if count == 1:
                block.group_hashes[end - 1] = group_hash
            else:
                block.group_hashes[end - count : end] = array("I", [group_hash]) * count
            self._flip(block, bits, status, 1)
            if status.epoch and group_hash:
                self._delivered[group_hash] += count
            if group_hash in self._group_hashes or not group_hash:
                self.dirty[group_hash or -1 - number] = None
            else:
                self.dirty[group_hash] = status.until_ms
            if group_hash:
                self._enter(group_hash, number)

    def _flip(self, block: Block, bits: int, status: Status, sign: int) -> None:
        """Add messages to the bitmap of a status, or remove them if `sign` is -1."""
        every = block.states.get(status, 0)
        block.used ^= bits
        if every == bits:
            del block.states[status]
        else:
            block.states[status] = every ^ bits
        is_out = status.state is RunState.OUT
        if not every or every == bits:
            self.bitmaps += sign
            number = block.first // BLOCK
            if block.group_hashes is None:  # the time when the rest is due depends on the statuses alone
                self.dirty[-1 - number] = None
            if is_out:
                self._flights[number] += sign
                if not self._flights[number]:
                    del self._flights[number]
        count = sign * bits.bit_count()
        self.count += count
        if is_out:
            self.held += count
        if status.lost:
            self.lost += count

    def _forget_delivered(self, group_hashes: Iterable[int]) -> None:
        for group_hash in group_hashes:
            if group_hash:
                self._delivered[group_hash] -= 1
                if not self._delivered[group_hash]:
                    del self._delivered[group_hash]

    def _enter(self, group_hash: int, number: int) -> None:
        numbers = self._group_hashes.setdefault(group_hash, [])
        if not numbers or numbers[-1] < number:
            numbers.append(number)
        elif (at := bisect_left(numbers, number)) == len(numbers) or numbers[at] != number:
            numbers.insert(at, number)

    def _leave(self, group_hash: int, number: int) -> None:
        numbers = self._group_hashes[group_hash]
        del numbers[bisect_left(numbers, number)]
        if not numbers:
            del self._group_hashes[group_hash]

    # ---- lookups; any thread may call those of the first group ----------------------------------------

    def runs(self, first: int = 0, end: int = NEVER) -> Iterator[Run]:
        """Yield the unsettled messages of a span, ascending; adjacent ones may be in several runs."""
        for number in self._between(first, end):
            if (block := self.blocks.get(number)) is not None:
                yield from block.runs(mask(number, first, end))

    def statuses(self, first: int = 0) -> Iterator[tuple[Status, int]]:
        """Yield the statuses of the messages from an offset on, with numbers of messages."""
        for number in self._between(first, NEVER):
            if (block := self.blocks.get(number)) is not None:
                wanted = mask(number, first, NEVER)
                for status, bits in [*block.states.items()]:
                    if count := (bits & wanted).bit_count():
                        yield status, count

    def count_before(self, offset: int) -> int:
        blocks = [(number, self.blocks.get(number)) for number in self._between(0, offset)]
        return sum((block.used & mask(number, 0, offset)).bit_count() for number, block in blocks if block is not None)

    def numbers(self) -> list[int]:
        """Return the numbers of the blocks that have unsettled messages."""
        return self._numbers.copy()

    @property
    def first(self) -> int:
        """The oldest unsettled message, `NEVER` if there is none."""
        if not self._numbers:
            return NEVER
        block = self.blocks[self._numbers[0]]
        return block.first + (block.used & -block.used).bit_length() - 1

    @property
    def last(self) -> int:
        """The offset behind the last unsettled message; 0 if there is none."""
        if not self._numbers:
            return 0
        block = self.blocks[self._numbers[-1]]
        return block.first + block.used.bit_length()

    @property
    def has_group_hashes(self) -> bool:
        return bool(self._group_hashes)

    def has_group_hash(self, group_hash: int, first: int = 0) -> bool:
        """Return whether messages of a message group are unsettled, from an offset on."""
        numbers = self._group_hashes.get(group_hash)
        if numbers is None:
            return False
        if numbers[-1] > first // BLOCK:
            return True
        return numbers[-1] == first // BLOCK and bool(
            self.blocks[numbers[-1]].group_hash_bits(group_hash) >> first % BLOCK
        )

    def group_hash_runs(self, group_hash: int) -> Iterator[Run]:
        """Yield the messages of a message group, ascending."""
        for number in self._group_hashes.get(group_hash, ())[:]:
            block = self.blocks[number]
            yield from block.runs(block.group_hash_bits(group_hash))

    def delivered_runs(self, group_hashes: Iterable[int]) -> list[Run]:
        found: list[Run] = []
        for group_hash in group_hashes:
            left = self._delivered.get(group_hash, 0)
            for run in self.group_hash_runs(group_hash) if left else ():
                if run.epoch:
                    found.append(run)
                    left -= run.count
                    if not left:
                        break
        return found

    def flights(self) -> Iterator[Status]:
        """Yield the statuses of the messages in flight, by block."""
        for number in [*self._flights]:
            if (block := self.blocks.get(number)) is not None:
                yield from (status for status in [*block.states] if status.state is RunState.OUT)

    def runs_in_flight(self, client: str) -> Iterator[Run]:
        """Yield the messages that a consumer has. Only on the thread of the writer."""
        for number in sorted(self._flights):
            block, bits = self.blocks[number], 0
            for status, each in block.states.items():
                if status.state is RunState.OUT and status.client == client:
                    bits |= each
            yield from block.runs(bits)

    def due_ms(self, unit: int) -> int | None:
        """Return when a member of `dirty` is due; None if it has no messages."""
        if unit >= 0:
            return self._group_hash_due_ms(unit)
        block = self.blocks.get(-1 - unit)
        if block is None:
            return None
        found, bits = None, block.group_hash_bits(0)
        for status, each in block.states.items():
            if each & bits and (found is None or status.until_ms < found):
                found = status.until_ms
        return found

    def _group_hash_due_ms(self, group_hash: int) -> int | None:
        found, left = None, self._delivered.get(group_hash, 0)
        for number in self._group_hashes.get(group_hash, ()):
            block = self.blocks[number]
            bits = block.group_hash_bits(group_hash)
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
        """Yield the due messages of a member of `dirty`, ascending; of a message group those before any other."""
        if unit >= 0:
            for run in self.group_hash_runs(unit):
                if run.until_ms > now_ms:
                    break
                yield run
        elif (block := self.blocks.get(-1 - unit)) is not None:
            yield from (run for run in block.runs(block.group_hash_bits(0)) if run.until_ms <= now_ms)

    def is_bitmap(self, run: Run) -> bool:
        """Return whether a run is all messages of its status in their block."""
        block = self.blocks[run.first // BLOCK]
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
        if row.group_hashes and len(row.group_hashes) != 4 * used.bit_count():
            raise StoreError(f"messages {base} to {base + BLOCK} have {len(row.group_hashes)} bytes of group hashes")
        group_hashes = [0] * BLOCK
        for at, position in enumerate(_positions(used) if row.group_hashes else ()):
            group_hashes[position] = int.from_bytes(row.group_hashes[4 * at : 4 * at + 4], "little")
        for status, bits in every:
            for first, end in spans_in(bits):
                for at, to, group_hash in _by_group_hash(group_hashes, first, end):
                    self.put(base + at, base + to, status, group_hash)
