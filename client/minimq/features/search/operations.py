"""Operations on single messages: find and trace them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Unpack

from minimq.admin import values
from minimq.admin.message_rows import fields_of, message_row
from minimq.admin.operation import HIDDEN, Arguments, Operation, Operations, Param, method
from minimq.admin.texts import instant_of, missing
from minimq.admin.views import Plan, Row, Rows, Table, View, columns, row_of
from minimq.features.search.search_bounds import DEFAULT_SINCE, MessageAddress, SearchRange, bounds_of, parse_address
from minimq_common.errors import InvalidArgument, OffsetOutOfRange
from minimq_common.names import check_topic

if TYPE_CHECKING:
    from minimq.consuming.received import ReceivedMessage
    from minimq.features.search.message_search import FoundMessages
    from minimq.features.search.message_trace import MessageTrace

_FOUND = Table(
    "no messages",
    columns(
        "address stored_at tag keys bytes message_id",
        address="ADDRESS",
        stored_at="STORED",
        tag="TAG",
        keys="KEYS",
        bytes="BYTES",
        message_id="ID",
    ),
)
_TRACE = Table("no message", columns("field value"))
_FATES = Table(
    "no group has begun to read the topic",
    columns("group state client_id delivery_count until copy", client_id="Consumer", delivery_count="Deliveries"),
)
_SINCE: Final = Param(default=DEFAULT_SINCE, metavar="earliest|TIME", read=values.beginning)
_RANGE: Final = {
    "since": _SINCE,
    "until": Param(metavar="TIME", read=values.any_moment),
    "limit": Param(letter="-n", low=1, high=10_000, default="1000", metavar="N"),
    "verify": Param(),
}


def _trace_row(trace: MessageTrace) -> dict[str, Any]:
    stored, half = trace.message, trace.half
    return {
        "message_id": trace.message_id,
        "address": str(trace.address) if trace.address else None,
        "stored_at": stored.stored_at if stored else None,
        "born_at": stored.born_at if stored else None,
        "groups": [row_of(each, copy=str(each.copy) if each.copy else None) for each in trace.groups],
        "due": _due_row(trace.due),
        "recalled": _due_row(trace.recalled),
        "half": half and row_of(half, keep=("producer_group", "number", "checks"), undecided=half.is_undecided),
        "complete": trace.is_complete,
    }


def _due_row(due: Any) -> Row | None:
    return None if due is None else {"queue": str(due.queue), "due_at": due.due_at, "handle": due.recall_handle}


def _trace_lines(row: dict[str, Any]) -> list[str | Rows]:
    groups = row["groups"]
    lines: list[str | Rows] = [Rows(_TRACE, list(fields_of({**row, "groups": None, "complete": None})))]
    return [*lines, "", Rows(_FATES, groups)] if row["stored_at"] else lines


def _view_found(_admin: object, _given: Arguments, found: FoundMessages, _plan: Plan | None) -> View:
    rows = [message_row(each, body=True) for each in found.messages]
    notes = _not_looked_at(found)
    if found.is_cut:
        notes.append(f"the search ended with {len(found.messages):,} messages: there may be more (--limit)")
    is_complete = not (found.unread or found.offline)
    return View(json=rows, lines=[Rows(_FOUND, rows)], notes=notes, is_complete=is_complete)


def _view_trace(_admin: object, given: Arguments, found: MessageTrace, _plan: Plan | None) -> View:
    notes = [
        f"{broker}: open transactions not searched: {reason}" for broker, reason in sorted(found.unread_halves.items())
    ]
    notes += _not_looked_at(found)
    if not found.is_known:
        since = instant_of(given.since) if isinstance(given.since, datetime) else given.since
        where = f"in no queue since {since}, neither delayed nor half, nor was it recalled"
        notes.insert(0, f"message {found.message_id} is {where}")
    row = _trace_row(found)
    return View(
        json=row,
        lines=_trace_lines(row) if found.is_known else [],
        notes=notes,
        is_complete=found.is_known and not found.unread and not found.offline,
    )


def _not_looked_at(found: FoundMessages | MessageTrace) -> list[str]:
    said = []
    for each in found.unread:
        where = f"{each.queue}@{each.offset}" + (f" to {each.end_offset - 1}" if each.end_offset > each.offset else "")
        said.append(f"{where}: not searched: {each.reason}")
    slaves = [f"{broker}: a slave answered, which may lack the latest messages" for broker in found.from_slaves]
    return [*said, *missing(found.offline, {}, "not searched"), *slaves]


class MessageOperations(Operations):
    """Finds and traces single messages; a part of `Admin`. It needs no group, and commits nothing."""

    @method
    def message_at(self, address: str | MessageAddress) -> ReceivedMessage:
        """Return the message that is stored at an address.

        Args:
            address: such as "orders/broker-a/3@10423".

        Raises:
            OffsetOutOfRange: no message is stored there.
            DamagedMessages: its batch is damaged.
            TopicNotFound, QueueNotFound: there is no such queue.
        """
        from minimq.consuming.range_reader import RangeOptions, RangeReader  # other commands start faster without it

        found = parse_address(address)
        queue, offset, client = found.queue, found.offset, self._masters.calls
        reader = RangeReader(client.cluster, RangeOptions(max_wait_s=client.timeout_s))
        try:
            for batch in reader.read(queue, offset, offset + 1):
                for message in batch.messages(offset)[:1]:
                    if message.queue_offset == offset:
                        return message
        finally:
            reader.close()
        raise OffsetOutOfRange(f"the message at offset {offset} of queue {queue} is gone: compaction has removed it")

    @Operation(
        "message find",
        reads=True,
        example="message find orders --key 4711 --since -7d --until -6d",
        view=_view_found,
        abouts=_RANGE,
    )
    def find_messages(
        self,
        topic: values.TopicName,
        *,
        key: Annotated[str | None, Param(metavar="KEY")] = None,
        message_id: Annotated[str | None, Param(flag="--id", metavar="ID")] = None,
        progress: Annotated[values.OnProgress | None, HIDDEN] = None,
        **within: Unpack[SearchRange],
    ) -> FoundMessages:
        """Find the messages of a topic with a key or an id.

        They are in the order of their store times. The brokers search their stored batches in short calls, so they
        serve others meanwhile. The client compares what they find, so every message that is returned has the key or the
        id.

        Args:
            topic: its name.
            key: messages with exactly this key.
            message_id: the message with this id, as a receipt has it.
            progress: called with the number of offsets searched so far, and of those known to be in the range.
            **within: the bounds of the search; see `SearchRange`.

        Raises:
            TopicNotFound, TopicUnavailable: it does not exist, or none of its brokers is there.
        """
        from minimq.features.search.message_search import MessageSearch, by_id, by_key  # as above

        if (key is None) == (message_id is None):
            raise InvalidArgument("key and message_id: give one of them")
        criterion = by_id(message_id) if message_id is not None else by_key(key)
        client = self._masters.calls
        search = MessageSearch(client, criterion, bounds_of(within, client.timeout_s), progress)
        route = self._masters.route(check_topic(topic))
        return search.run(route.read_queues(), route.offline)

    @Operation(
        "message trace",
        reads=True,
        example="message trace orders/broker-a/3@10423",
        view=_view_trace,
        abouts={**dict.fromkeys(_RANGE, HIDDEN), "since": _SINCE},
    )
    def trace_message(
        self,
        message: Annotated[str | MessageAddress, Param(metavar="ID|ADDRESS")],
        *,
        topic: Annotated[str | None, Param(metavar="TOPIC", complete="topics")] = None,
        progress: Annotated[values.OnProgress | None, HIDDEN] = None,
        **within: Unpack[SearchRange],
    ) -> MessageTrace:
        """Show where a message is stored, and what each group has done with it.

        The brokers answer from their present state; no history is recorded.

        Args:
            message: its address, which is the fastest, or its id.
            topic: search for the id in this topic; by default in all that you may read.
            progress: see `find_messages`.
            **within: the bounds of the search for an id; see `SearchRange`.

        Raises:
            OffsetOutOfRange: no message is stored at the address.
        """
        from minimq.features.search.message_search import is_id  # as above
        from minimq.features.search.message_trace import Tracer  # as above

        tracer = Tracer(self._masters, bounds_of(within, self._masters.calls.timeout_s), progress)
        if is_id(message):
            return tracer.trace_id(str(message), None if topic is None else check_topic(topic))
        return tracer.trace(self.message_at(message))
