"""Staged batches, and the staging space: how many of them may wait for the ends of their transactions."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import ClassVar, NamedTuple

import msgspec

from minimq_broker.state.queue_ends import BatchHeld
from minimq_common.batch.header import Header
from minimq_common.errors import CorruptEntry, SystemBusy
from minimq_common.names import is_half_name

#: Of the feature; see `Feature.name` and `Feature.tag`.
NAME, TAG = "staged", 2


def size_of(batches: Iterable[StagedEntry]) -> int:
    """Return the size of batches in bytes."""
    return sum(batch.size for batch in batches)


class TransactionId(NamedTuple):
    """A transaction; the numbers of transactions with the same name grow, except those of half messages."""

    name: str
    number: int

    def __str__(self) -> str:
        if is_half_name(self.name):
            return f"transaction {self.number} of producer group {self.name[1:]!r}"
        return f"transaction {self.number} of {self.name!r}"


@dataclass(frozen=True, slots=True)
class TransactionHold:
    """The transaction that a batch waits for; see `Hold`."""

    feature: ClassVar[str] = NAME
    numbered: ClassVar[bool] = False  # its stage remembers a batch, not the producer table

    transaction: TransactionId


class StagedEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A staged batch: log position of its entry, size, target queue, and number."""

    position: int
    size: int
    topic_id: int
    queue_id: int
    stored_ms: int
    producer_id: int
    sequence: int


_SEQUENCE_OF = attrgetter("sequence")
#: Numbers of the transaction, the producer and the batch, size of the batch; the name of the transaction follows.
_NOTE = struct.Struct("<qQQI")


class HalfOutcome(IntEnum):
    COMMITTED = 1
    ROLLED_BACK = 2
    #: Not decided in time, or some of its batches were lost.
    EXPIRED = 3

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


def note_of(transaction: TransactionId, header: Header, size: int) -> bytes:
    """Return the note in the entry of a staged batch of a size."""
    return _NOTE.pack(transaction.number, header.producer_id, header.sequence, size) + transaction.name.encode()


def staged_in(held: BatchHeld) -> tuple[TransactionId, StagedEntry]:
    """Return the transaction of a batch, and what the table has of it. Raises `CorruptEntry`."""
    place = held.place
    try:
        number, producer_id, sequence, size = _NOTE.unpack_from(held.note)
        name = held.note[_NOTE.size :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptEntry(f"the staged batch at position {place.base_offset} has a malformed note: {error}") from error
    staged = StagedEntry(
        place.base_offset, size, place.topic_id, place.queue_id, place.stored_ms, producer_id, sequence
    )
    return TransactionId(name, number), staged


class StageKey(NamedTuple):
    name: str
    number: int
    producer_id: int


class Stage(msgspec.Struct, array_like=True):
    """The batches that one producer has staged for an undecided transaction; also its row in the checkpoint.

    Not empty, and no batch is removed from it, so that other threads may read it.
    """

    batches: dict[int, StagedEntry] = {}

    @property
    def in_order(self) -> list[StagedEntry]:
        """The batches, in the order in which they were sent. Any thread may read this."""
        return sorted(self.batches.copy().values(), key=_SEQUENCE_OF)

    @property
    def began_ms(self) -> int:
        """When its first batch was staged, in ms since 1970. Any thread may read this."""
        return min(batch.stored_ms for batch in self.batches.copy().values())


class HalfTransaction(NamedTuple):
    """An undecided transaction with half messages: its only producer, and the batches that this has staged."""

    producer_id: int
    stage: Stage


@dataclass(frozen=True, slots=True)
class StagingLimits:
    #: Take up to 30 MB of memory.
    batches: int = 200_000
    #: Their bytes in the log.
    size: int = 1 << 62
    #: An open part is everything that one producer has staged for one transaction. They take up to 50 MB of memory.
    parts: int = 50_000


class Staged(msgspec.Struct, gc=False):
    """An amount of staged batches; units as in `StagingLimits`."""

    batches: int = 0
    size: int = 0
    parts: int = 0


_NOTHING = Staged()
_UNITS = {"batches": "staged batches", "size": "bytes of staged batches", "parts": "open parts"}


class StagedCount:
    """Counts staged batches: in total, per transaction name, and per producer."""

    def __init__(self) -> None:
        #: By name or producer id; None is the total. Has no zero amounts.
        self.parties: dict[str | int | None, Staged] = {}

    @property
    def all(self) -> Staged:
        return self.parties.get(None, _NOTHING)

    def add(self, name: str, producer_id: int, batches: int, size: int, parts: int = 0) -> None:
        """Add an amount, which is negative if batches are removed."""
        for party in (None, name, producer_id):
            own = self.parties.setdefault(party, Staged())
            own.batches += batches
            own.size += size
            own.parts += parts
            if not own.batches and not own.parts:
                del self.parties[party]


def check_room(limits: StagingLimits, counts: Sequence[StagedCount], name: str, producer_id: int, more: Staged) -> None:
    """Raise `SystemBusy` if `more` exceeds the free space or the share of its name or producer."""
    for unit, words in _UNITS.items():
        wanted, limit = getattr(more, unit), getattr(limits, unit)
        of_all = _amount(counts, None, unit)
        free = limit - of_all
        if not wanted or of_all + wanted <= free:  # then no single party can exceed its share
            continue
        of_name, of_producer = _amount(counts, name, unit), _amount(counts, producer_id, unit)
        if wanted > free:
            raise SystemBusy(
                "staged batches fill the broker, and there is no room for more "
                f"({limit:,} {words} at most): commit or end open transactions, or send larger batches; those of dead "
                "producers expire after --transaction-expiry",
                limit="staged",
            )
        if max(of_name, of_producer) + wanted > free:
            is_name = of_name + wanted > free
            party = f"transaction name {name!r}" if is_name else f"producer {producer_id:016x}"
            own = of_name if is_name else of_producer
            raise SystemBusy(
                f"{party} has {own:,} {words} in open transactions, and not more than "
                f"this is left for all others: commit or end open transactions, or send larger batches",
                limit="staged",
            )


def _amount(counts: Sequence[StagedCount], party: str | int | None, unit: str) -> int:
    return sum(getattr(count.parties.get(party, _NOTHING), unit) for count in counts)
