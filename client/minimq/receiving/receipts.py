"""The messages of a settle, by the deliveries that they came with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from minimq.receiving.pop_stream import Span
from minimq.receiving.popped import PoppedMessage
from minimq.receiving.receipt_handle import ReceiptHandle
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue

#: A message that was received, or its handle as text; or some of them.
Receivables = PoppedMessage | str | Iterable[PoppedMessage | str]

#: Spans of offsets by queue and epoch.
Receipts = dict[tuple[MessageQueue, int], list[Span]]


def receipts_of(what: Receivables, group: str) -> Receipts:
    """Return the receipts of messages. Raises `InvalidArgument` if a value is no message or handle of the group."""
    found: Receipts = {}
    for receipt, count in _runs(each_of(what)):
        if receipt.group != group:
            raise InvalidArgument(
                f"a handle of group {receipt.group!r} cannot be settled by a consumer of group {group!r}"
            )
        found.setdefault((receipt.queue, receipt.epoch), []).append((receipt.offset, receipt.offset + count))
    return found


def each_of(what: object) -> Iterable[Any]:
    """Return the values of an iterable, or the value if it is none, in an iterable."""
    return what if isinstance(what, Iterable) and not isinstance(what, str | bytes) else [what]


def united(parts: Iterable[Receipts]) -> Receipts:
    """Return the receipts of all parts together."""
    found: Receipts = {}
    for part in parts:
        for key, spans in part.items():
            found.setdefault(key, []).extend(spans)
    return found


def _runs(items: Iterable[object]) -> Iterator[tuple[ReceiptHandle, int]]:
    first: PoppedMessage | None = None
    following = 0
    for item in items:
        if isinstance(item, PoppedMessage):
            if first is not None:
                if item.index == following and item.batch is first.batch and item.epoch == first.epoch:
                    following += 1
                    continue
                yield first.receipt, following - first.index
            first, following = item, item.index + 1
        elif isinstance(item, str):
            yield ReceiptHandle.parse(item), 1
        else:
            raise InvalidArgument(
                f"{type(item).__name__} cannot be settled: give a message that was received, or its handle"
            )
    if first is not None:
        yield first.receipt, following - first.index
