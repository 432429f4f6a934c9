"""The durable facts about staged batches."""

from __future__ import annotations

import msgspec

from minimq_broker.features.staged.staging import HalfOutcome


class StagedSequences(msgspec.Struct, frozen=True, array_like=True):
    """Staged batches of one producer, by their sequence numbers."""

    producer_id: int
    sequences: tuple[int, ...]


class TransactionDecided(msgspec.Struct, frozen=True, tag="staged.decided"):
    """A transaction was decided: the batches in `parts` will be published."""

    name: str
    number: int
    #: The decision of the client for all brokers, as it was received.
    decision: bytes
    #: The batches that are staged on this broker, in the order of publication.
    parts: tuple[StagedSequences, ...]


class TransactionsExpired(msgspec.Struct, frozen=True, tag="staged.expired"):
    """Undecided transactions, given by name and number, expired: their staged batches are dropped."""

    transactions: tuple[tuple[str, int], ...]


class HalfEnded(msgspec.Struct, frozen=True, tag="staged.half-ended"):
    """A transaction with half messages ended. Its batches are published if it was committed."""

    name: str
    number: int
    outcome: HalfOutcome


class PublicationSkipped(msgspec.Struct, frozen=True, tag="staged.skipped"):
    """The batch that was staged at a log position is skipped instead of published: it can no longer be read."""

    position: int
