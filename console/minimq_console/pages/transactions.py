"""Transactions with half messages that have not ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from minimq.operations.transactions import ListedTransaction, ListedTransactions
from minimq_common.errors import MiniMQError
from minimq_console.action import Offer
from minimq_console.body_text import preview
from minimq_console.operation_actions import FORMS
from minimq_console.page import Page, PageData, Visit
from minimq_console.table_part import TablePart, part_of

#: Transactions that are listed at most: the oldest.
_MOST = 1_000


class TransactionRow(msgspec.Struct, frozen=True):
    """One transaction that has not ended."""

    group: str
    number: int
    broker: str
    topics: tuple[str, ...]
    batches: int
    #: Of its first message; None if that is large or damaged.
    keys: tuple[str, ...] | None
    #: The beginning of that message; None likewise.
    preview: str | None
    #: Seconds since it began.
    age_s: float
    expires_s: float
    checks: int
    is_undecided: bool
    #: Those that the visitor may use on it.
    actions: tuple[Offer, ...] = ()


class TransactionsPage(PageData, frozen=True, kw_only=True):
    """Transactions that have not ended."""

    #: Only those of this producer group; empty for all.
    group: str
    count: int
    #: Which are shown, of the 1,000 oldest.
    part: TablePart
    transactions: tuple[TransactionRow, ...]


def gather(visit: Visit) -> TransactionsPage:
    """Return the transactions that all brokers list."""
    group, bounds = visit.parameters.text("group", most=127), visit.parameters.rows()
    admin = visit.observer.admin
    failed: list[str] = []

    def note(broker: str, error: MiniMQError) -> None:
        failed.append(f"broker {broker}: {error.message}")

    def read() -> ListedTransactions:
        return admin.list_transactions(group or None, most=_MOST, on_failure=note)

    listed = visit.ask("the transactions", read).required()
    shown, part = part_of(listed.transactions, bounds)
    return TransactionsPage(
        group=group,
        count=listed.count,
        part=part,
        transactions=_rows(visit, shown),
        missing=(*visit.missing, *failed),
    )


#: The actions that end one.
_ENDS = ("commit-transaction", "rollback-transaction")


def _rows(visit: Visit, listed: Sequence[ListedTransaction]) -> tuple[TransactionRow, ...]:
    targets = [[FORMS[name].on(group=each.group, number=str(each.number)) for name in _ENDS] for each in listed]
    offered = {offer.address: offer for offer in visit.offers(*chain.from_iterable(targets))}
    return tuple(
        _row(each, tuple(offered[target.address] for target in own if target.address in offered))
        for each, own in zip(listed, targets, strict=True)
    )


def _row(listed: ListedTransaction, actions: tuple[Offer, ...]) -> TransactionRow:
    return TransactionRow(
        group=listed.group,
        number=listed.number,
        broker=listed.broker_name,
        topics=tuple(listed.topics),
        batches=listed.batches,
        keys=None if listed.keys is None else tuple(listed.keys[:20]),
        preview=None if listed.body is None else preview(listed.body),
        age_s=listed.age_s,
        expires_s=listed.expires_s,
        checks=listed.checks,
        is_undecided=listed.is_undecided,
        actions=actions,
    )


PAGE = Page(
    path="/transactions", template="transactions.html", gather=gather, title="Transactions", label="Transactions"
)
