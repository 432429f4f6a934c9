"""The commit protocol of a transaction over several brokers. Pure.

A transaction is decided once, by one broker, its *coordinator*: the first decision that reaches it is final. Any later
attempt, whatever it has staged, receives that decision and delivers it to the other brokers. So all attempts must use
the same coordinator, even if brokers join or leave meanwhile. Therefore every decision names the brokers that must be
asked about the next transaction; the one with the lowest name is its coordinator. A broker that joins later is ignored,
however low its name. Only the first transaction of a name, or one whose predecessors are known only to unavailable
brokers, uses the brokers that carry its topics.

An attempt waits for the required brokers: those that the latest known decision names, as one of these is the
coordinator, and those that carry the topics. All others are optional: they are asked, because they may name further
brokers if topics were moved, but skipped if they do not answer. If a required broker knows the previous decision, an
optional one has nothing to add. If none does, the optional one may never have taken part: to wait for it would let an
unrelated broker block the transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from minimq.sending.receipt import BatchReceipt
from minimq_common.errors import InternalError, InvalidArgument, TransactionEnded, TransactionExpired
from minimq_common.model import MessageQueue
from minimq_common.names import check_transaction


@dataclass(frozen=True, slots=True)
class Transaction:
    """One of a sequence of transactions of the same name."""

    name: str
    number: int

    def __post_init__(self) -> None:
        check_transaction(self.name)
        if not 0 <= self.number < 1 << 63:
            raise InvalidArgument(f"the number of a transaction is {self.number}: it must be 0 or above")

    def __str__(self) -> str:
        return f"{self.name!r} number {self.number}"

    # ---- the `Hold` of its batches ----------------------------------------------------------------

    @property
    def bucket(self) -> Transaction:
        return self

    def merged(self, _other: Transaction) -> Transaction:
        return self

    def write(self, request: Any, _now: float) -> None:
        request.transaction.name, request.transaction.number = self.name, self.number

    def held(self, _queue: MessageQueue, _result: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Batches of one producer that are staged at one broker; small and picklable."""

    broker_name: str
    producer_id: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a transaction, the same at all brokers."""

    number: int
    parts: tuple[StagedPart, ...]
    broker_names: tuple[str, ...]

    @property
    def publishers(self) -> frozenset[str]:
        return frozenset(part.broker_name for part in self.parts)


def staged_parts(receipts: Iterable[BatchReceipt]) -> tuple[StagedPart, ...]:
    """Return the parts of staged batches. Batches of the same broker keep the order of the receipts."""
    runs: dict[str, list[tuple[int, list[int]]]] = {}
    for receipt in receipts:
        at = runs.setdefault(receipt.queue.broker_name, [])
        if not at or at[-1][0] != receipt.producer_id:
            at.append((receipt.producer_id, []))
        at[-1][1].append(receipt.sequence)
    return tuple(
        StagedPart(broker_name, producer_id, tuple(sequences))
        for broker_name, at in sorted(runs.items())
        for producer_id, sequences in at
    )


class Calls(NamedTuple):
    """Calls to brokers: each gets `decision` and returns the one that it keeps; without it, each reports its latest."""

    broker_names: list[str]
    decision: Decision | None = None


class CommitProtocol:
    """One attempt to end a transaction. It may stop anywhere: the next attempt continues from what the brokers know."""

    def __init__(self, transaction: Transaction, parts: Sequence[StagedPart], *, decided: bool = False) -> None:
        self.transaction = transaction
        self.decided = decided
        self.decision: Decision | None = None
        self._parts = tuple(sorted(parts, key=lambda part: part.broker_name))
        #: Brokers that carry the topics, or that have staged batches.
        self._taking_part = {part.broker_name for part in parts}
        #: Optional brokers that are still to be asked.
        self._others: set[str] = set()
        #: Brokers that did not answer; optional ones are not asked again.
        self._passed_over: set[str] = set()
        #: The latest decision of each broker, whatever its number.
        self._latest: dict[str, Decision | None] = {}
        #: Brokers that have dropped staged batches, with the number of batches.
        self._missing: dict[str, int] = {}
        #: Brokers that have published their part of the previous transaction, or have lost it.
        self._caught_up: set[str] = set()
        #: Brokers that have published their part of this transaction.
        self._done: set[str] = set()

    # ---- what is known --------------------------------------------------------------------------

    def see(self, carrying: Collection[str], others: Collection[str] = ()) -> None:
        """Record the brokers that carry the topics, and all others; call it again when these change."""
        self._taking_part.update(carrying)
        self._others.update(set(others) - self._latest.keys() - self._passed_over)

    def described(self, broker_name: str, latest: Decision | None, missing: int = 0) -> None:
        """Record the latest decision of a broker, and the number of batches of this attempt that it has dropped."""
        self._others.discard(broker_name)
        self._passed_over.discard(broker_name)
        self._latest[broker_name] = latest
        if missing:
            self._missing[broker_name] = missing
        if latest is None or latest.number < self.transaction.number:
            return
        if latest.number > self.transaction.number:
            raise TransactionEnded(
                f"transaction {self.transaction} has ended: broker {broker_name} has decided number {latest.number}, "
                "so another writer of that name is ahead; use a name for one writer only"
            )
        if self.decision is None:
            self.decision = latest
        elif self.decision != latest:
            raise InternalError(
                f"broker {broker_name} keeps another decision for transaction {self.transaction} than others do: two "
                "writers have ended the first of that name at once; compare what is stored before writing on"
            )

    def committed(self, broker_name: str, kept: Decision) -> None:
        """Record the decision that a broker keeps and has published. Raises as `described`."""
        self.described(broker_name, kept)
        (self._done if kept.number == self.transaction.number else self._caught_up).add(broker_name)

    def failed(self, broker_name: str) -> None:
        """Record that a broker did not answer. If it is optional, it is skipped from now on."""
        self._others.discard(broker_name)
        self._passed_over.add(broker_name)

    def cannot_catch_up(self, broker_name: str) -> None:
        """Record that a broker has lost its part of an earlier transaction."""
        self._caught_up.add(broker_name)

    # ---- next calls -----------------------------------------------------------------------------

    @property
    def needed(self) -> Set[str]:
        """The required brokers: without one of them the decision is unknown, or not published everywhere."""
        latest = self.decision or self._last
        return self._taking_part | set(latest.broker_names if latest else ()) | (latest.publishers if latest else set())

    @property
    def finished(self) -> bool:
        """True if all parts are published at all brokers."""
        return self.decision is not None and self.needed <= self._done

    def calls(self) -> Calls:
        """Return the calls to make now, in any order or in parallel; none if `finished`."""
        if self.decision is not None:
            return Calls(sorted(self.needed - self._done), self.decision)
        unheard = (self.needed - self._latest.keys()) | self._others
        if unheard:
            return Calls(sorted(unheard))
        last = self._last
        if last is not None and (behind := self._behind(last)):
            return Calls(behind, last)
        if self.decided:  # some broker, perhaps a skipped one, has reported a decision: ask all until one returns it
            return Calls(sorted(self.needed | self._passed_over))
        if self._missing:
            which = " and ".join(
                f"broker {name} has dropped {number:,} of its batches" for name, number in sorted(self._missing.items())
            )
            raise TransactionExpired(
                f"transaction {self.transaction} is not decided: {which}, since they were staged too long ago "
                "(--transaction-expiry, --retention), or their topic is gone"
            )
        names = tuple(sorted(self._taking_part))
        coordinator = min(last.broker_names if last and last.broker_names else names)
        return Calls([coordinator], Decision(self.transaction.number, self._parts, names))

    def staged_at(self, broker_name: str) -> tuple[StagedPart, ...]:
        """Return the parts that a broker must keep until a decision, or else report as missing."""
        # If an earlier attempt is decided, the broker need not keep the batches of this one.
        return () if self.decided else tuple(part for part in self._parts if part.broker_name == broker_name)

    @property
    def _last(self) -> Decision | None:
        reported = [decision for decision in self._latest.values() if decision is not None]
        return max(reported, key=lambda decision: decision.number, default=None)

    def _behind(self, last: Decision) -> list[str]:
        heard = {name for name, decision in self._latest.items() if decision and decision.number >= last.number}
        return sorted(last.publishers - heard - self._caught_up)
