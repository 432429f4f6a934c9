"""The part of `Admin` that concerns transactions with half messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from minimq.administration.end_stream import EndStream
from minimq.administration.failures import raise_failures
from minimq.administration.masters import Masters
from minimq.administration.resolutions import OUTCOMES, UNKNOWN, TransactionResolution
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import InvalidArgument, MiniMQError, TransactionEnded, TransactionExpired
from minimq_common.names import check_producer_group
from minimq_common.wire.convert import from_wire
from minimq_proto.v1 import halves_pb2

#: Transactions that are listed at most, and bytes of a body.
_MOST = 10_000
_SHOWN_BYTES = 200
#: Takes note of a broker that did not answer, and why.
OnFailure = Callable[[str, MiniMQError], None]
_RESOLUTIONS = {wire: resolution for resolution, wire in OUTCOMES.items()}


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transaction with half messages that has not ended.

    Attributes:
        group: the producer group.
        number: by which it is ended by hand.
        broker_name: the broker that has it.
        topics: of its messages.
        batches: how many batches it has.
        keys: of its first message; None if that is large, or damaged.
        body: the first bytes of that; None likewise.
        age_s: seconds since it began.
        expires_s: seconds until it expires.
        checks: how often a member of the group was asked how it ends.
        is_undecided: nobody is asked any more: somebody has to decide by hand.
    """

    group: str
    number: int
    broker_name: str
    topics: Sequence[str]
    batches: int
    keys: Sequence[str] | None
    body: bytes | None
    age_s: float
    expires_s: float
    checks: int
    is_undecided: bool


@dataclass(frozen=True, slots=True)
class ListedTransactions:
    """The transactions with half messages that have not ended.

    Attributes:
        transactions: the oldest first.
        count: how many there are in all; not more than 10,000 are listed.
    """

    transactions: Sequence[ListedTransaction]
    count: int


class TransactionAdmin:
    """Lists transactions with half messages, and ends them by hand; users have it as `Admin`."""

    def __init__(self, masters: Masters) -> None:
        self._masters = masters

    def list_transactions(
        self, group: str | None = None, *, most: int = _MOST, on_failure: OnFailure | None = None
    ) -> ListedTransactions:
        """Return the transactions with half messages that have not ended, on all brokers.

        Args:
            group: only those of this producer group.
            most: list so many of them.
            on_failure: called with the name of each broker that does not answer, and the error; those of the others are
                returned then. By default the error is raised.

        Raises:
            InvalidArgument: the group cannot be one.
            Unavailable: a broker does not answer, or has no master.
        """
        if not 1 <= most <= _MOST:
            raise InvalidArgument(f"most is {most}: it must be 1 to {_MOST:,}")
        answers = self._ask_for_halves(group, -1, most, on_failure)
        found = [_listed(name, half) for name, answer in answers.items() for half in answer.halves]
        found.sort(key=lambda each: -each.age_s)
        return ListedTransactions(tuple(found[:most]), sum(answer.count for answer in answers.values()))

    def end_transaction(self, group: str, number: int, resolution: TransactionResolution) -> TransactionResolution:
        """End a transaction with half messages by hand; return how it has ended.

        Args:
            group: the producer group.
            number: of the transaction.
            resolution: `COMMIT` or `ROLLBACK`.

        Raises:
            TransactionEnded: it has ended otherwise before.
            TransactionExpired: no broker knows it.
            Unavailable: a broker does not answer, or has no master.
        """
        if resolution not in OUTCOMES or resolution is UNKNOWN:
            raise InvalidArgument(f"resolution is {resolution!r}: give COMMIT or ROLLBACK")
        answers = self._ask_for_halves(check_producer_group(group), number, 1)
        named = f"transaction {number} of producer group {group!r}"
        for name, answer in answers.items():
            if answer.halves or answer.outcome:
                request = halves_pb2.EndHalfRequest(producer_group=group, number=number, outcome=OUTCOMES[resolution])
                return _resolution_of(named, resolution, self._masters.at(name, partial(self._end_half, request)))
        raise TransactionExpired(
            f"no broker knows {named}: it ended so long ago that its outcome is forgotten, or it never began: see "
            "`minimq transaction list`"
        )

    def _ask_for_halves(
        self, group: str | None, number: int, most: int, on_failure: OnFailure | None = None
    ) -> Mapping[str, halves_pb2.ListHalvesResponse]:
        addresses = self._masters.find_all() if on_failure is None else self._masters.find()
        name = "" if group is None else check_producer_group(group)
        request = halves_pb2.ListHalvesRequest(producer_group=name, number=number, most=most)
        answers, failures = self._masters.call_all(addresses, lambda stub: stub.ListHalves, request)
        if on_failure is None:
            raise_failures("transactions are not known", failures, addresses, "try again")
        else:
            for broker, error in failures.items():
                on_failure(broker, error)
        return answers

    async def _end_half(self, request: halves_pb2.EndHalfRequest, address: str) -> halves_pb2.EndHalfResult:
        stream = EndStream(self._masters.calls.connection, address)
        try:
            return await stream.end(request)
        finally:
            stream.close()


def _resolution_of(
    named: str, wanted: TransactionResolution, result: halves_pb2.EndHalfResult
) -> TransactionResolution:
    stands = _RESOLUTIONS.get(result.outcome)
    if stands is wanted:
        return stands
    if stands is None:
        raise TransactionExpired(f"{named} has expired: nobody has decided on it in time, or a part of it was lost")
    done = "committed" if result.outcome == halves_pb2.HALF_OUTCOME_COMMITTED else "rolled back"
    raise TransactionEnded(f"{named} was {done} before: that outcome stands")


def _listed(broker_name: str, half: halves_pb2.OpenHalf) -> ListedTransaction:
    keys: Sequence[str] | None = None
    body: bytes | None = None
    if half.batch:
        with suppress(MiniMQError):  # whoever may write may send anything
            records = RecordBatch(half.batch)
            records.check_values()
            records.check_texts()
            keys, body = records.keys(0), records.bodies()[0][:_SHOWN_BYTES]
    return from_wire(
        ListedTransaction,
        half,
        group=half.producer_group,
        broker_name=broker_name,
        topics=tuple(half.topics),
        keys=keys,
        body=body,
    )
