"""Transactions with half messages: list them, and end them by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from minimq.admin import values
from minimq.admin.master_client import raise_failures
from minimq.admin.operation import HIDDEN, Arguments, Form, Operation, Operations, Param
from minimq.admin.texts import SHOWN_BODY_BYTES, duration_of, left_out, listing
from minimq.admin.views import Plan, PlanRow, Rows, Table, View, columns, row_of
from minimq.features.half_messages.resolutions import OUTCOMES, TransactionResolution
from minimq_common.errors import InvalidArgument, MinimqError, TransactionEnded, TransactionExpired
from minimq_common.model import OfflineBroker
from minimq_common.names import check_producer_group
from minimq_common.text_units import count_of
from minimq_common.wire.convert import from_wire
from minimq_proto.v1 import staged_pb2

#: Maximum number of transactions listed.
_MAX = 10_000
#: Called with the name of a broker that did not answer, and the error.
OnFailure = Callable[[str, MinimqError], None]
_DONE = {TransactionResolution.COMMIT: "committed", TransactionResolution.ROLLBACK: "rolled back"}
_RESOLUTIONS = {wire: resolution for resolution, wire in OUTCOMES.items()}


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transaction with half messages that has not ended."""

    group: str
    #: Identifies it for `Admin.end_transaction`.
    number: int
    broker_name: str
    topics: Sequence[str]
    batches: int
    #: Keys of its first message; None if that is damaged, you may not read its topic, or the broker omits it: each
    #: broker lists first batches of up to 64 KiB, and 8 MiB of them in all, those of the oldest transactions first.
    keys: Sequence[str] | None
    #: First bytes of the body of that message; None likewise.
    body: bytes | None
    age_s: float
    expires_s: float
    checks: int
    #: Brokers no longer ask the producer group: an operator has to decide.
    is_undecided: bool


@dataclass(frozen=True, slots=True)
class ListedTransactions:
    """The transactions with half messages that have not ended."""

    #: The oldest first.
    transactions: Sequence[ListedTransaction]
    #: How many there are in all; not more than 10,000 are listed.
    count: int
    #: Brokers that are offline; their transactions are missing.
    offline: tuple[OfflineBroker, ...] = ()


_OPEN = Table(
    "no open transactions", columns("group number broker topics batches keys age checks state", group="Producer group")
)


def _view_list(_admin: object, given: Arguments, found: ListedTransactions, _plan: Plan | None) -> View:
    rows = [
        row_of(
            each,
            age_s=round(each.age_s, 3),
            expires_s=round(each.expires_s, 3),
            state="undecided" if each.is_undecided else "open",
        )
        for each in found.transactions
    ]
    for row in rows:
        del row["is_undecided"]
    # As text, without thousands separators: users copy the numbers into commands.
    shown = [{**row, "number": str(row["number"]), "age": duration_of(row["age_s"])} for row in rows]
    is_cut = found.count > len(rows)
    notes = [f"only the oldest {len(rows):,} are shown: see --limit and --group"] if is_cut else []
    notes += left_out(found.offline, "its transactions are not listed")
    return View(json=rows, lines=[Rows(_OPEN, shown)], notes=notes)


def _plan_end(admin: TransactionOperations, given: Arguments) -> Plan:
    group, number, then = given.group, given.number, _DONE[given.resolution]
    broker, answer = admin._find_transaction(group, number)
    what = f"transaction {number} of {group} on {broker}"
    if not answer.halves:
        _resolution_of(group, number, given.resolution, answer.outcome)
        return Plan(rows=[PlanRow(what, then, then, "it has ended before")], is_harmless=True)
    found = _listed(broker, answer.halves[0])
    note = f"{count_of(found.batches, 'batch', 'batches')} for {listing(found.topics)}"
    if not found.is_undecided:
        note += "; its producer group is still asked, and may know better"
    return Plan(rows=[PlanRow(what, f"open for {duration_of(found.age_s)}", then, note)])


def _ending(verb: str, resolution: TransactionResolution, done: str) -> Operation:
    label = "Commit" if resolution is TransactionResolution.COMMIT else "Roll back"
    return Operation(
        f"transaction {verb}",
        example=f"transaction {verb} shop 4611686018427387904",
        plan=_plan_end,
        asks=f"{label} transaction {{number}} of producer group {{group}}?",
        fixed={"resolution": resolution},
        text=f"{done} This cannot be undone.",
        forms=[
            Form(
                f"{verb}-transaction",
                "/transactions",
                f"{label} transaction {{number}} of {{group}}",
                label,
                path=f"/transactions/{{group}}/{{number}}/{verb}",
            )
        ],
    )


class TransactionOperations(Operations):
    """Lists transactions with half messages, and ends them by hand; a part of `Admin`."""

    @Operation("transaction list", reads=True, example="transaction list --group shop --undecided", view=_view_list)
    def list_transactions(
        self,
        group: Annotated[str | None, values.ProducerGroup] = None,
        *,
        undecided: bool = False,
        limit: Annotated[int, Param(letter="-n", low=1, high=_MAX, default="100", metavar="N")] = _MAX,
        on_failure: Annotated[OnFailure | None, HIDDEN] = None,
    ) -> ListedTransactions:
        """List the transactions that have not ended, the oldest first.

        "Open": its producer is still at work, or brokers will ask the producer group how it ends. "Undecided": the
        group has not answered any of these checks; end the transaction by hand, or it expires. "Keys" are those of the
        first message.

        Args:
            group: only those of this producer group.
            undecided: only those that brokers no longer ask about.
            limit: maximum number of transactions: the oldest.
            on_failure: called with the name of each broker that does not answer, and the error; the result then has the
                transactions of the others. By default the error is raised.
        """
        if not 1 <= limit <= _MAX:
            raise InvalidArgument(f"limit is {limit}: it must be 1 to {_MAX:,}")
        answers = self._ask_for_halves(group, -1, _MAX if undecided else limit, on_failure)
        found = [_listed(name, half) for name, answer in answers.items() for half in answer.halves]
        found = sorted((each for each in found if each.is_undecided or not undecided), key=lambda each: -each.age_s)
        count = len(found) if undecided else sum(answer.count for answer in answers.values())
        return ListedTransactions(tuple(found[:limit]), count, self._masters.offline())

    @_ending("commit", TransactionResolution.COMMIT, "Commit a transaction by hand: its messages are delivered.")
    @_ending("rollback", TransactionResolution.ROLLBACK, "Roll a transaction back by hand: its messages are dropped.")
    def end_transaction(
        self,
        group: Annotated[str, values.ProducerGroup],
        number: Annotated[int, Param(low=0)],
        resolution: TransactionResolution,
    ) -> TransactionResolution:
        """End a transaction with half messages by hand. This cannot be undone.

        Args:
            group: the producer group.
            number: of the transaction.
            resolution: `COMMIT` or `ROLLBACK`.

        Raises:
            TransactionEnded: it has ended otherwise before.
            TransactionExpired: no broker knows it.
            Unavailable: a broker is offline, and no other knows it.
        """
        if resolution not in OUTCOMES or resolution is TransactionResolution.UNKNOWN:
            raise InvalidArgument(f"resolution is {resolution!r}: give COMMIT or ROLLBACK")
        broker, _ = self._find_transaction(group, number)
        end = staged_pb2.EndHalfRequest(producer_group=group, number=number, outcome=OUTCOMES[resolution])
        answer: staged_pb2.EndHalfResponse = self._masters.call(broker, lambda stub: stub.of(staged_pb2).EndHalf, end)
        return _resolution_of(group, number, resolution, answer.outcome)

    def _find_transaction(self, group: str, number: int) -> tuple[str, staged_pb2.ListHalvesResponse]:
        """Return the broker that knows a transaction, and its response. Raises as `end_transaction`."""
        answers = self._ask_for_halves(check_producer_group(group), number, 1)
        for broker, answer in answers.items():
            if answer.halves or answer.outcome:
                return broker, answer
        what = f"no broker that answers knows transaction {number} of producer group {group!r}"
        self._masters.reject_if_offline(what, "give a number that `minimq transaction list` shows")
        raise TransactionExpired(
            f"no broker knows transaction {number} of producer group {group!r}: it ended so long ago that its outcome "
            "is forgotten, or it never began: see `minimq transaction list`"
        )

    def _ask_for_halves(
        self, group: str | None, number: int, most: int, on_failure: OnFailure | None = None
    ) -> Mapping[str, staged_pb2.ListHalvesResponse]:
        addresses = self._masters.find(need="all") if on_failure is None else self._masters.find()
        name = "" if group is None else check_producer_group(group)
        request = staged_pb2.ListHalvesRequest(producer_group=name, number=number, most=most)
        answers, failures = self._masters.call_all(addresses, lambda stub: stub.of(staged_pb2).ListHalves, request)
        if on_failure is None:
            raise_failures("transactions are not known", failures, addresses, "try again")
        else:
            for broker, error in failures.items():
                on_failure(broker, error)
        return answers


def _resolution_of(
    group: str, number: int, wanted: TransactionResolution, outcome: staged_pb2.HalfOutcome.ValueType
) -> TransactionResolution:
    named = f"transaction {number} of producer group {group!r}"
    stands = _RESOLUTIONS.get(outcome)
    if stands is None:
        raise TransactionExpired(f"{named} has expired: nobody has decided on it in time, or a part of it was lost")
    if stands is not wanted:
        raise TransactionEnded(f"{named} was {_DONE[stands]} before: that outcome stands")
    return stands


def _listed(broker_name: str, half: staged_pb2.OpenHalf) -> ListedTransaction:
    keys: Sequence[str] | None = None
    body: bytes | None = None
    if half.batch:
        from minimq_common.batch.records import RecordBatch

        with suppress(MinimqError):  # producers may send malformed batches
            records = RecordBatch(half.batch)
            records.check_values()
            records.check_texts()
            keys, body = records.keys(0), records.bodies()[0][:SHOWN_BODY_BYTES]
    return from_wire(
        ListedTransaction,
        half,
        group=half.producer_group,
        broker_name=broker_name,
        topics=tuple(half.topics),
        keys=keys,
        body=body,
    )
