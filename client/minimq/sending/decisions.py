"""The end of a transaction over several brokers: what is asked of whom, and which decision stands.

A transaction is decided once, by one broker, its *coordinator*: the first decision that reaches it stands, and whoever
comes later, with whatever it has staged by then, is told that one and brings it to the other brokers. For this all who
want to end a transaction have to go to the same coordinator, though brokers come and go meanwhile. So every decision
names the brokers that have to be asked for the next one, and the lowest-named of these is its coordinator; a broker
that appears later has no say in that, however low its name. Only the first transaction of a name has nothing to go by
but the brokers that carry its topics, and so has one whose predecessors are known only to brokers that are all away.

Which brokers have to answer follows from that. Whoever knows a decision has it from its coordinator, which the decision
before names; all that one names are needed, and so are those that carry the topics. Any other broker is asked, because
it may name further ones, if topics were moved to other brokers since; but it is passed over when it does not answer. As
long as one broker that is needed knows the decision before, it could tell nothing that these do not; and if none does,
it is like one that is away, of which nobody can tell whether it ever was in the row. To wait for it would mean that a
broker which has nothing to do with a transaction keeps it from its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass

from minimq.sending.receipt import BatchReceipt
from minimq_common.errors import InternalError, InvalidArgument, TransactionEnded, TransactionExpired
from minimq_common.names import check_transaction


@dataclass(frozen=True, slots=True)
class Transaction:
    """One of a row of transactions of the same name.

    Attributes:
        name: of the row; whoever writes under it ends one transaction before the next.
        number: 0 or above, and higher than those of all that were ended before.
    """

    name: str
    number: int

    def __post_init__(self) -> None:
        check_transaction(self.name)
        if not 0 <= self.number < 1 << 63:
            raise InvalidArgument(f"the number of a transaction is {self.number}: it must be 0 or above")

    def __str__(self) -> str:
        return f"{self.name!r} number {self.number}"


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Batches of one producer that were staged at one broker; small, and can be pickled.

    Attributes:
        broker_name: where they are.
        producer_id: of the producer.
        sequences: their numbers, in the order in which they are to be published.
    """

    broker_name: str
    producer_id: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """The end of a transaction: the same at all brokers.

    Attributes:
        number: of the transaction.
        parts: what is published of it; at each broker in this order.
        broker_names: all that have to be asked for the end of the next transaction, sorted.
    """

    number: int
    parts: tuple[StagedPart, ...]
    broker_names: tuple[str, ...]

    @property
    def publishers(self) -> frozenset[str]:
        """The brokers that have something to publish."""
        return frozenset(part.broker_name for part in self.parts)


def staged_parts(receipts: Iterable[BatchReceipt]) -> tuple[StagedPart, ...]:
    """Return where batches were staged; those of each broker keep the order of the receipts."""
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


@dataclass(frozen=True, slots=True)
class Describe:
    """Ask a broker what it knows of the transactions of the name.

    Attributes:
        broker_name: the broker.
        parts: what it has staged for this one: it keeps that until it hears of a decision, or says what is missing.
    """

    broker_name: str
    parts: tuple[StagedPart, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitCall:
    """Tell a broker a decision; it answers with the one that it keeps."""

    broker_name: str
    decision: Decision


Call = Describe | CommitCall


class CommitProtocol:
    """One attempt to end a transaction: says which calls to make, and takes in what comes of them. Not thread-safe.

    Calls may be made again and answers may be lost, and the attempt may itself end at any moment: the next one goes on
    from what the brokers know.

    Args:
        transaction: to be ended.
        parts: all that was staged for it by this attempt.
        decided: a broker has refused to stage something because the transaction is decided. Then `parts` is not all,
            and nothing new is decided.

    Attributes:
        transaction, decided: as above.
        decision: the one that stands; None as long as it is not known.
    """

    def __init__(self, transaction: Transaction, parts: Sequence[StagedPart], *, decided: bool = False) -> None:
        self.transaction = transaction
        self.decided = decided
        self.decision: Decision | None = None
        self._parts = tuple(sorted(parts, key=lambda part: part.broker_name))
        #: Brokers that carry the topics, or have staged something.
        self._taking_part = {part.broker_name for part in parts}
        #: Brokers that may know something, and are not waited for.
        self._others: set[str] = set()
        #: Brokers that were asked in vain: unless they are needed, they are not asked again.
        self._passed_over: set[str] = set()
        #: What brokers have decided last, whichever number that was.
        self._latest: dict[str, Decision | None] = {}
        #: Brokers that have let go of what they had staged, and of how many batches.
        self._missing: dict[str, int] = {}
        #: Who has published its part of the latest transaction before this one, or cannot any more.
        self._caught_up: set[str] = set()
        #: Who has published its part of this one.
        self._done: set[str] = set()

    # ---- what is known --------------------------------------------------------------------------

    def see(self, carrying: Collection[str], others: Collection[str] = ()) -> None:
        """Take in which brokers carry the topics, and which other ones there are; again whenever that has changed."""
        self._taking_part.update(carrying)
        self._others.update(set(others) - self._latest.keys() - self._passed_over)

    def described(self, broker_name: str, latest: Decision | None, missing: int = 0) -> None:
        """Take in what a broker has decided last, and how many of the batches of this attempt it has let go of.

        Raises:
            TransactionEnded: it is of a later number.
            InternalError: another broker keeps a different decision for the same number.
        """
        self._others.discard(broker_name)
        self._passed_over.discard(broker_name)
        self._latest[broker_name] = latest
        if missing:
            self._missing[broker_name] = missing
        if latest is None or latest.number < self.transaction.number:
            return
        if latest.number > self.transaction.number:
            raise TransactionEnded(
                f"transaction {self.transaction} is over: broker {broker_name} has decided number {latest.number}, so "
                "another writer of that name is ahead; let only one write under a name"
            )
        if self.decision is None:
            self.decision = latest
        elif self.decision != latest:
            raise InternalError(
                f"broker {broker_name} keeps another decision for transaction {self.transaction} than others do: two "
                "writers have ended the first of that name at once; compare what is stored before writing on"
            )

    def committed(self, broker_name: str, kept: Decision) -> None:
        """Take in which decision a broker keeps after it was told one: it has published that. Raises as `described`."""
        self.described(broker_name, kept)
        (self._done if kept.number == self.transaction.number else self._caught_up).add(broker_name)

    def failed(self, broker_name: str) -> None:
        """Take in that a broker gave no answer; if it need not answer, it is passed over from now on."""
        self._others.discard(broker_name)
        self._passed_over.add(broker_name)

    def cannot_catch_up(self, broker_name: str) -> None:
        """Take in that a broker has lost what it was to publish of an earlier transaction."""
        self._caught_up.add(broker_name)

    # ---- what follows ---------------------------------------------------------------------------

    @property
    def needed(self) -> Set[str]:
        """The brokers that have to answer: without one of them nobody can tell what is decided, or it is not done."""
        latest = self.decision or self._last
        return self._taking_part | set(latest.broker_names if latest else ()) | (latest.publishers if latest else set())

    @property
    def finished(self) -> bool:
        """True if all of it is published, everywhere."""
        return self.decision is not None and self.needed <= self._done

    def calls(self) -> Sequence[Call]:
        """Return the calls to make now, in any order or at once; none when it is finished.

        Raises:
            TransactionExpired: a broker has let go of something, so that nothing may be decided.
        """
        if self.decision is not None:
            return [CommitCall(name, self.decision) for name in sorted(self.needed - self._done)]
        unheard = (self.needed - self._latest.keys()) | self._others
        if unheard:
            return [self._describe(name) for name in sorted(unheard)]
        last = self._last
        if last is not None and (behind := self._behind(last)):
            return [CommitCall(name, last) for name in behind]
        if self.decided:  # a broker has said so, and will tell how: also one that was passed over may be that
            return [self._describe(name) for name in sorted(self.needed | self._passed_over)]
        if self._missing:
            which = " and ".join(
                f"broker {name} has let go of {number:,} of its batches"
                for name, number in sorted(self._missing.items())
            )
            raise TransactionExpired(
                f"transaction {self.transaction} is not decided: {which}, since they were staged too long ago "
                "(--transaction-expiry, --retention), nothing was staged for too long while there was little room "
                "(--transaction-idle), or their topic is gone"
            )
        names = tuple(sorted(self._taking_part))
        coordinator = min(last.broker_names if last and last.broker_names else names)
        return [CommitCall(coordinator, Decision(self.transaction.number, self._parts, names))]

    def _describe(self, broker_name: str) -> Describe:
        """Return the question to a broker. Of an attempt whose parts are not all, nothing is to be kept."""
        own = () if self.decided else tuple(part for part in self._parts if part.broker_name == broker_name)
        return Describe(broker_name, own)

    @property
    def _last(self) -> Decision | None:
        """The latest decision that a broker has reported."""
        reported = [decision for decision in self._latest.values() if decision is not None]
        return max(reported, key=lambda decision: decision.number, default=None)

    def _behind(self, last: Decision) -> list[str]:
        """Return who has not heard of an earlier transaction in which it takes part: this one would end that part."""
        heard = {name for name, decision in self._latest.items() if decision and decision.number >= last.number}
        return sorted(last.publishers - heard - self._caught_up)
