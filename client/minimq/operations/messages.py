"""Single messages: show, find and trace them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Unpack

from minimq.operations import values
from minimq.operations.asynchronous import AsyncOperations, asynchronous
from minimq.operations.message_text import message_lines, message_row, trace_lines, trace_row
from minimq.operations.operation import HIDDEN, Given, Operation, Operations, Param
from minimq.operations.places import DEFAULT_SINCE, MessageAddress, SearchRange, parse_address
from minimq.operations.views import Plan, Rows, Table, View, columns
from minimq.operations.words import missing
from minimq_common.errors import InvalidArgument, OffsetOutOfRange
from minimq_common.names import check_topic

if TYPE_CHECKING:  # other administration does not need to load receiving
    from minimq.admin import Admin
    from minimq.operations.message_search import FoundMessages
    from minimq.operations.message_trace import MessageTrace
    from minimq.receiving.received import ReceivedMessage

Progress = Callable[[int, int], None]

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
_SINCE: Final = Param(default=DEFAULT_SINCE, metavar="earliest|TIME")
_RANGE: Final = {
    "since": _SINCE,
    "until": Param(metavar="TIME"),
    "max_messages": Param(flag="--max", low=1, default="1000"),
    "verify": Param(),
}


def _view_message(_admin: Admin, _given: Given, found: ReceivedMessage, _plan: Plan | None) -> View:
    return View(json=message_row(found, body=True), lines=list(message_lines(found)))


def _view_found(_admin: Admin, _given: Given, found: FoundMessages, _plan: Plan | None) -> View:
    rows = [message_row(each, body=True) for each in found.messages]
    notes = _not_looked_at(found)
    if found.is_cut:
        notes.append(f"the search ended with {len(found.messages):,} messages: there may be more (--max)")
    is_complete = not (found.unread or found.away)
    return View(json=rows, lines=[Rows(_FOUND, rows)], notes=notes, is_complete=is_complete)


def _view_trace(_admin: Admin, given: Given, found: MessageTrace, _plan: Plan | None) -> View:
    notes = _not_looked_at(found)
    if not found.is_known:
        where = f"in no queue since {given.since}, neither delayed nor half, nor was it recalled"
        notes.insert(0, f"message {found.message_id} is {where}")
    return View(
        json=trace_row(found),
        lines=list(trace_lines(found)) if found.is_known else [],
        notes=notes,
        is_complete=found.is_known and not found.unread and not found.away,
    )


def _not_looked_at(found: FoundMessages | MessageTrace) -> list[str]:
    said = []
    for each in found.unread:
        where = f"{each.queue}@{each.offset}" + (f" to {each.end_offset - 1}" if each.end_offset > each.offset else "")
        said.append(f"{where}: not looked at: {each.reason}")
    slaves = [f"{broker}: a slave answered, which may lack the latest messages" for broker in found.from_slaves]
    return [*said, *missing(found.away, {}, "not looked at"), *slaves]


class MessageOperations(Operations):
    """Shows single messages, and finds them; users have it as `Admin`. Nothing is committed, and no group is needed."""

    @Operation("message view", example="message view orders/broker-a/3@10423", view=_view_message)
    def message_at(self, address: str | MessageAddress) -> ReceivedMessage:
        """Show the message that is stored at an address.

        Args:
            address: such as "orders/broker-a/3@10423".

        Raises:
            InvalidArgument: it is not an address.
            OffsetOutOfRange: no message is stored there.
            DamagedMessages: its batch is damaged.
            TopicNotFound, QueueNotFound: there is no such queue.
            MiniMQError: its broker is not known or did not answer.
        """
        from minimq.receiving.range_reader import RangeOptions, RangeReader  # as above

        found = parse_address(address)
        queue, offset, client = found.queue, found.offset, self._masters.calls
        reader = RangeReader(client.cluster, RangeOptions(patience_s=client.timeout_s))
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
        example="message find orders --key 4711 --since -7d --until -6d",
        view=_view_found,
        abouts=_RANGE,
        short="Find the messages of a topic with a key or an id.",
    )
    def find_messages(
        self,
        topic: values.TopicName,
        *,
        key: Annotated[str | None, Param(metavar="KEY")] = None,
        message_id: Annotated[str | None, Param(flag="--id", metavar="ID")] = None,
        progress: Annotated[Progress | None, values.ProgressBar] = None,
        **within: Unpack[SearchRange],
    ) -> FoundMessages:
        """Find the messages of a topic with a key or an id, in the order of their store times.

        The brokers look into their stored batches, a short time for each call, and serve others meanwhile. What they
        find is opened and compared here, so every message that is returned has the key or the id.

        Args:
            topic: its name.
            key: messages that have this key, as a whole.
            message_id: the message with this id, as a receipt has it.
            progress: called with the number of offsets that were looked at, and of those in the range so far as they
                are known.
            **within: the bounds of the search; see `SearchRange`.

        Returns:
            The messages, and what could not be looked at.

        Raises:
            InvalidArgument: an argument breaks a rule.
            AccessDenied: you may not read the topic.
            TopicNotFound, TopicUnavailable: it does not exist, or none of its brokers is there.
            MiniMQError: no name server answers.
        """
        from minimq.operations.message_search import (  # as above
            MessageSearch,  # as above
            by_id,
            by_key,
        )
        from minimq.operations.places import bounds_of  # as above

        if (key is None) == (message_id is None):
            raise InvalidArgument("key and message_id: give one of them")
        criterion = by_id(message_id) if message_id is not None else by_key(key)
        client = self._masters.calls
        search = MessageSearch(client, criterion, bounds_of(within, client.timeout_s), progress)
        route = self._masters.route(check_topic(topic))
        return search.run(route.read_queues(), route.away)

    @Operation(
        "message trace",
        example="message trace orders/broker-a/3@10423",
        view=_view_trace,
        abouts={**dict.fromkeys(_RANGE, HIDDEN), "since": _SINCE},
    )
    def trace_message(
        self,
        message: Annotated[str | MessageAddress, Param(metavar="ID|ADDRESS")],
        *,
        topic: Annotated[str | None, Param(metavar="TOPIC", complete="topics")] = None,
        progress: Annotated[Progress | None, values.ProgressBar] = None,
        **within: Unpack[SearchRange],
    ) -> MessageTrace:
        """Show where a message is stored, and what each group has done with it.

        It is worked out from what the brokers know at this moment; nothing is recorded for it.

        Args:
            message: its address, which is the fastest, or its id.
            topic: in which an id is looked for; by default in all that you may read.
            progress: as of `find_messages`.
            **within: the bounds of the search for an id; see `SearchRange`.

        Raises:
            InvalidArgument: it is neither an address nor an id, or another argument breaks a rule.
            OffsetOutOfRange: no message is stored at the address.
            MiniMQError: as of `message_at` and `find_messages`.
        """
        from minimq.operations.message_search import is_id  # as above
        from minimq.operations.message_trace import Tracer  # as above
        from minimq.operations.places import bounds_of  # as above

        tracer = Tracer(self._masters, bounds_of(within, self._masters.calls.timeout_s), progress)
        if is_id(message):
            return tracer.trace_id(str(message), None if topic is None else check_topic(topic))
        return tracer.trace(self.message_at(message))


class AsyncMessageOperations(AsyncOperations):
    """The same for `minimq.aio.Admin`."""

    message_at = asynchronous(MessageOperations.message_at)
    find_messages = asynchronous(MessageOperations.find_messages)
    trace_message = asynchronous(MessageOperations.trace_message)
