"""Operations on delayed messages: list and recall them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from minimq.admin import values
from minimq.admin.master_client import raise_failures
from minimq.admin.operation import Arguments, Form, Operation, Operations, Param, iterating, method
from minimq.admin.texts import duration_of, instant_of, missing, size_of
from minimq.admin.views import Plan, PlanRow, Rows, Table, View, columns, filled, row_of
from minimq.connection.offline_brokers import by_broker
from minimq.features.delayed.recall_handle import RecallHandle
from minimq_common.errors import HandleExpired, InternalError, InvalidArgument, MinimqError, TopicNotFound
from minimq_common.model import MessageQueue, OfflineBroker
from minimq_common.names import check_topic
from minimq_common.timestamps import Time, moment, timestamp_ms
from minimq_proto.v1 import delayed_pb2

if TYPE_CHECKING:
    from minimq.admin.master_client import MasterClient
    from minimq.features.delayed.recalls import RecallResult

#: Maximum number of batches in a page of a broker.
_PAGE = 1_000
_TOTALS = Table("no delayed messages", columns("topic messages batches next_due_at", next_due_at="Next due"))
_WAITING = Table(
    "no delayed messages", columns("due_at due_in broker queue messages size recall_handle", due_at="Due", due_in="In")
)
_TIME = Param(read=values.any_moment, metavar="TIME")


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """A delayed batch; a recallable message is a batch of its own."""

    queue: MessageQueue
    due_at: datetime
    stored_at: datetime
    messages: int
    bytes: int
    #: The handle that recalls the message; None if it cannot be recalled.
    recall_handle: str | None


@dataclass(frozen=True, slots=True)
class DelayedTotals:
    """The delayed messages of one topic."""

    topic: str
    messages: int
    batches: int
    next_due_at: datetime | None
    #: Brokers that carry the topic and are offline; their messages are not counted.
    offline: tuple[OfflineBroker, ...] = ()


def _view_list(
    _admin: object, given: Arguments, found: Sequence[DelayedMessages | DelayedTotals], _plan: Plan | None
) -> View:
    if given.topic is None:
        rows = [row_of(each) for each in found]
        totals = [each for each in found if isinstance(each, DelayedTotals)]
        notes = missing(by_broker(offline for each in totals for offline in each.offline), {}, "not counted")
        return View(json=rows, lines=[Rows(_TOTALS, [row for row in rows if row["messages"]])], notes=notes)
    keep = ("due_at", "stored_at", "queue", "messages", "bytes", "recall_handle")
    rows, now = [row_of(each, keep=keep) for each in found[: given.limit]], datetime.now(UTC)
    shown = [
        {**row, "due_in": duration_of((row["due_at"] - now).total_seconds()), "size": size_of(row["bytes"])}
        for row in rows
    ]
    is_cut = len(found) > given.limit
    notes = [f"only the first {given.limit:,} are shown: see --limit, --since and --until"] if is_cut else []
    notes += missing(vars(given).get("collected", ()), {}, "not listed")
    return View(json=rows, lines=[filled(_WAITING, shown, "recall_handle")], notes=notes)


def _handle(given: Arguments) -> RecallHandle:
    handle = RecallHandle.parse(given.handle)
    if getattr(given, "topic", handle.topic) != handle.topic:
        raise InvalidArgument(f"this recall handle is of topic {handle.topic}: open the form of that topic")
    return handle


def _plan_recall(_admin: object, given: Arguments) -> Plan:
    handle = _handle(given)
    what, due = f"message for {handle.topic} on {handle.broker_name}", instant_of(moment(handle.due_ms))
    return Plan(rows=[PlanRow(what, f"due {due}", "recalled", "never delivered, unless it is due before")])


def _view_recall(_admin: object, _given: Arguments, result: RecallResult, plan: Plan) -> View:
    if not result:
        raise HandleExpired("too late: the message was due, and is in its queue")
    return plan.view([replace(plan.rows[0], then=result.value, note="")])


class DelayedOperations(Operations):
    """Lists and recalls delayed messages; a part of `Admin`."""

    @Operation(
        "delayed list", reads=True, example="delayed list --topic reminders --until 2026-12-24T18:00Z", view=_view_list
    )
    def _list_delayed(
        self,
        *,
        topic: Annotated[str | None, Param(metavar="TOPIC", complete="topics")] = None,
        since: Annotated[Time | None, _TIME] = None,
        until: Annotated[Time | None, _TIME] = None,
        limit: Annotated[int, Param(letter="-n", low=1, high=10_000, metavar="N")] = 100,
        on_offline: Annotated[Callable[[OfflineBroker], object] | None, Param(is_collected=True)] = None,
    ) -> Sequence[DelayedMessages | DelayedTotals]:
        """List the delayed messages of a topic, or count those of each topic.

        They are sorted by due time. Messages that were sent together and are due together share a line.
        `minimq delayed recall` takes the "Recall handle"; messages that were sent without --recallable have none.

        Args:
            topic: list the messages of this topic.
            since: only messages due at or after this time, such as "2026-12-24T18:00Z".
            until: only messages due before that time.
            limit: maximum number of lines: those that are due first.
            on_offline: called with each broker that carries `topic` and is offline.
        """
        if topic is not None:
            if on_offline is not None:
                for each in self._masters.offline(topic):
                    on_offline(each)
            found = self.delayed_messages(topic, since=since, until=until)
            return [*islice(found, limit + 1)]
        if since or until:
            raise InvalidArgument("--since and --until need --topic")
        return [each for each in self.delayed_totals() if each.messages or each.offline]

    @iterating
    def delayed_messages(
        self, topic: str, *, since: Time | None = None, until: Time | None = None
    ) -> Iterator[DelayedMessages]:
        """Return the delayed batches of a topic, sorted by due time; they are read a page at a time.

        Args:
            topic: its name.
            since: only those that are due at this time or later.
            until: only those that are due before this time.

        Raises:
            TopicNotFound: no broker carries the topic.
        """
        now = time.time()
        from_ms, before_ms = (
            0 if given is None else timestamp_ms(given, now, name)
            for given, name in ((since, "since"), (until, "until"))
        )
        request = delayed_pb2.ListDelayedRequest(topic=topic, from_ms=from_ms, before_ms=before_ms, max_batches=_PAGE)
        found = (_of_broker(self._masters, broker, request) for broker in _carrying(self._masters, topic))
        return (about for about, _ in merge(*found, key=lambda batch: batch[0].due_at))

    @method
    def delayed_totals(self, topics: Sequence[str] = ()) -> list[DelayedTotals]:
        """Return the number of delayed messages of each topic, sorted by topic; of all topics if none is named.

        It calls all brokers in parallel. Brokers that are offline are listed in `offline`. Raises as
        `delayed_messages`.
        """
        given = sorted(set(topics)) or self._masters.topic_names()
        names, masters = list(map(check_topic, given)), self._masters.find(need="all")
        asked = self._masters.call_about(
            names,
            masters,
            lambda stub: stub.of(delayed_pb2).ListDelayed,
            lambda name: delayed_pb2.ListDelayedRequest(topic=name, max_batches=1),
        )
        offline, found = self._masters.offline_lookup(), []
        for name, (pages, failures) in asked.items():
            failed = {broker: error for broker, error in failures.items() if not isinstance(error, TopicNotFound)}
            raise_failures(f"the delayed messages of topic {name} are not known", failed, masters, "try again")
            gone = tuple(broker for broker in offline(name) if broker.broker_name not in pages)
            if topics and not (pages or gone):
                self._masters.route(name)  # raises the proper error if the topic does not exist
            found.append(self._totals(name, pages, gone))
        return found

    def _totals(
        self, topic: str, pages: Mapping[str, delayed_pb2.ListDelayedResponse], offline: tuple[OfflineBroker, ...]
    ) -> DelayedTotals:
        dues = []
        for broker, page in pages.items():
            first = page
            if not page.batches and page.HasField("next"):
                request = delayed_pb2.ListDelayedRequest(topic=topic, max_batches=1, after=page.next)
                first = next((each for each in _pages(self._masters, broker, request) if each.batches), page)
            if first.batches:
                dues.append(first.batches[0].key.due_ms)
        return DelayedTotals(
            topic,
            sum(page.waiting_messages for page in pages.values()),
            sum(page.waiting_batches for page in pages.values()),
            moment(min(dues)) if dues else None,
            offline,
        )

    @Operation(
        "delayed recall",
        example="delayed recall pu6yY5SlbG9nc6hicm9rZXItYc8AAAGb",
        plan=_plan_recall,
        view=_view_recall,
        asks="Recall this message?",
        forms=[
            Form(
                "recall",
                "/delayed/{topic}",
                "Recall a delayed message of {topic}",
                "Recall",
                fields={"handle": "Recall handle"},
            )
        ],
    )
    def recall(self, handle: Annotated[str | None, Param(metavar="HANDLE")]) -> RecallResult:
        """Recall a delayed message by its handle, so that it is never delivered.

        Args:
            handle: `recall_handle` of its receipt, or of `minimq delayed list`.

        Returns:
            Whether it was recalled; false if the message was due before that.

        Raises:
            AccessDenied: another user sent it, and this user may not manage the topic.
        """
        from minimq.features.delayed.recalls import recall

        calls = self._masters.calls
        return calls.wait(lambda: recall(calls, handle, calls.timeout_s))


def delayed_batches(masters: MasterClient, topic: str, *, recalled: bool) -> Iterator[tuple[DelayedMessages, bytes]]:
    """Yield the delayed or the recalled batches of a topic, with their bytes, broker by broker."""
    request = delayed_pb2.ListDelayedRequest(topic=topic, max_batches=_PAGE, with_batches=True, recalled=recalled)
    for broker in _carrying(masters, topic):
        yield from _of_broker(masters, broker, request)


def _carrying(masters: MasterClient, topic: str) -> list[str]:
    return sorted(data.broker_name for data in masters.route(check_topic(topic)).queues)


def _of_broker(
    masters: MasterClient, broker: str, asked: delayed_pb2.ListDelayedRequest
) -> Iterator[tuple[DelayedMessages, bytes]]:
    request = delayed_pb2.ListDelayedRequest()
    request.CopyFrom(asked)  # its `after` advances from page to page
    for page in _pages(masters, broker, request):
        for batch in page.batches:
            yield _from_wire(request.topic, broker, batch), batch.batch


def _pages(
    masters: MasterClient, broker: str, request: delayed_pb2.ListDelayedRequest
) -> Iterator[delayed_pb2.ListDelayedResponse]:
    while True:
        try:
            page = masters.call(broker, lambda stub: stub.of(delayed_pb2).ListDelayed, request)
        except MinimqError as error:
            what = f"the delayed messages of topic {request.topic} are not known"
            raise error.with_message(f"{what}: broker {broker}: {error.message}") from None
        yield page
        if not page.HasField("next"):
            return
        behind = (page.next.due_ms, page.next.recall_id)
        if request.HasField("after") and behind <= (request.after.due_ms, request.after.recall_id):
            raise InternalError(f"broker {broker} lists the same delayed messages again and again")
        request.after.CopyFrom(page.next)


def _from_wire(topic: str, broker: str, batch: delayed_pb2.DelayedBatch) -> DelayedMessages:
    handle = RecallHandle(topic, broker, batch.key.due_ms, batch.key.recall_id)
    return DelayedMessages(
        MessageQueue(topic, broker, batch.queue_id),
        moment(batch.key.due_ms),
        moment(batch.store_timestamp_ms),
        batch.count,
        batch.size,
        str(handle) if batch.recallable else None,
    )
