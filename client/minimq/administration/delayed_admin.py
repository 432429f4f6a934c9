"""The part of `Admin` that concerns delayed messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge

from minimq.administration.failures import raise_failures
from minimq.administration.masters import Masters
from minimq.administration.recall_handle import RecallHandle
from minimq_common.errors import InternalError, MiniMQError, TopicNotFound
from minimq_common.model import MessageQueue
from minimq_common.moments import Time, moment, timestamp_ms
from minimq_common.names import check_topic
from minimq_proto.v1 import delay_pb2

#: Batches that a broker lists at a time.
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """Messages that wait together until they are due; recallable ones wait alone.

    Attributes:
        queue: into which they come.
        due_at: when they are due, by the clock of their broker.
        stored_at: when the broker stored them.
        messages: how many there are.
        bytes: size of the batch.
        recall_handle: by which the message is recalled; None if it cannot be recalled.
    """

    queue: MessageQueue
    due_at: datetime
    stored_at: datetime
    messages: int
    bytes: int
    recall_handle: str | None


@dataclass(frozen=True, slots=True)
class DelayedTotals:
    """The delayed messages of one topic.

    Attributes:
        topic: its name.
        messages: how many wait.
        batches: in so many batches.
        next_due_at: when the first of them is due; None if none waits.
    """

    topic: str
    messages: int
    batches: int
    next_due_at: datetime | None


class DelayedAdmin:
    """Lists delayed messages; a part of `Admin`."""

    def __init__(self, masters: Masters) -> None:
        self._masters = masters

    def delayed_messages(
        self, topic: str, *, due_from: Time | None = None, due_before: Time | None = None
    ) -> Iterator[DelayedMessages]:
        """Return the batches of a topic that wait, in the order in which they are due, a page at a time.

        Args:
            topic: its name.
            due_from: only those that are due at this time or later.
            due_before: only those that are due before this time.

        Raises:
            TopicNotFound: no broker carries the topic.
            InvalidArgument: a time is none.
            MiniMQError: a broker failed; the text says which.
        """
        now = time.time()
        from_ms, before_ms = (
            0 if given is None else timestamp_ms(given, now, name)
            for given, name in ((due_from, "due_from"), (due_before, "due_before"))
        )
        request = delay_pb2.ListDelayedRequest(topic=topic, from_ms=from_ms, before_ms=before_ms, max_batches=_PAGE)
        found = (self._of_broker(broker, request) for broker in self._carrying(check_topic(topic)))
        return (about for about, _ in merge(*found, key=lambda batch: batch[0].due_at))

    def delayed_totals(self, topics: Sequence[str] = ()) -> list[DelayedTotals]:
        """Return how many messages of each topic wait, sorted by topic; of all topics if none is named.

        All brokers are asked at once. Raises as `delayed_messages`.
        """
        names = [check_topic(name) for name in sorted(set(topics)) or self._topics()]
        masters = self._masters.find_all()
        keys = [(name, broker) for name in names for broker in masters]
        answers, failures = self._masters.call_all(
            {key: masters[key[1]] for key in keys},
            lambda stub: stub.ListDelayed,
            {key: delay_pb2.ListDelayedRequest(topic=key[0], max_batches=1) for key in keys},
        )
        found = []
        for name in names:
            pages = {broker: answers[name, broker] for broker in masters if (name, broker) in answers}
            failed = {broker: failures[name, broker] for broker in masters if (name, broker) in failures}
            failed = {broker: error for broker, error in failed.items() if not isinstance(error, TopicNotFound)}
            raise_failures(f"the delayed messages of topic {name} are not known", failed, masters, "try again")
            if not pages:
                self._masters.route(name)  # which has the words for a topic that is away, or nowhere
            found.append(self._totals(name, masters, pages))
        return found

    def _totals(
        self, topic: str, masters: Mapping[str, str], pages: Mapping[str, delay_pb2.ListDelayedResponse]
    ) -> DelayedTotals:
        dues = []
        for broker, page in pages.items():
            first = page
            if not page.batches and page.HasField("next"):
                request = delay_pb2.ListDelayedRequest(topic=topic, max_batches=1, after=page.next)
                following = self._pages(broker, request)
                first = next((each for each in following if each.batches), page)
            if first.batches:
                dues.append(first.batches[0].key.due_ms)
        return DelayedTotals(
            topic,
            sum(page.waiting_messages for page in pages.values()),
            sum(page.waiting_batches for page in pages.values()),
            moment(min(dues)) if dues else None,
        )

    def _topics(self) -> list[str]:
        calls = self._masters.calls
        return calls.wait(lambda: calls.nameservers.topic_names(calls.timeout_s))

    def _carrying(self, topic: str) -> list[str]:
        return sorted(data.broker_name for data in self._masters.route(topic).queues)

    def _of_broker(self, broker: str, asked: delay_pb2.ListDelayedRequest) -> Iterator[tuple[DelayedMessages, bytes]]:
        request = delay_pb2.ListDelayedRequest()
        request.CopyFrom(asked)  # it goes on from page to page
        for page in self._pages(broker, request):
            for batch in page.batches:
                yield _from_wire(request.topic, broker, batch), batch.batch

    def _pages(self, broker: str, request: delay_pb2.ListDelayedRequest) -> Iterator[delay_pb2.ListDelayedResponse]:
        while True:
            try:
                page = self._masters.call(broker, lambda stub: stub.ListDelayed, request)
            except MiniMQError as error:
                what = f"the delayed messages of topic {request.topic} are not known"
                raise error.with_message(f"{what}: broker {broker}: {error.message}") from None
            yield page
            if not page.HasField("next"):
                return
            behind = (page.next.due_ms, page.next.recall_id)
            if request.HasField("after") and behind <= (request.after.due_ms, request.after.recall_id):
                raise InternalError(f"broker {broker} lists its delayed messages in a circle")
            request.after.CopyFrom(page.next)


def delayed_batches(masters: Masters, topic: str, *, recalled: bool) -> Iterator[tuple[DelayedMessages, bytes]]:
    """Yield what waits for a topic, or was recalled, with the batches themselves; broker by broker.

    Raises as `DelayedAdmin.delayed_messages`.
    """
    admin = DelayedAdmin(masters)
    request = delay_pb2.ListDelayedRequest(topic=topic, max_batches=_PAGE, with_batches=True, recalled=recalled)
    for broker in admin._carrying(check_topic(topic)):
        yield from admin._of_broker(broker, request)


def _from_wire(topic: str, broker: str, batch: delay_pb2.DelayedBatch) -> DelayedMessages:
    handle = RecallHandle(topic, broker, batch.key.due_ms, batch.key.recall_id)
    return DelayedMessages(
        MessageQueue(topic, broker, batch.queue_id),
        moment(batch.key.due_ms),
        moment(batch.store_timestamp_ms),
        batch.count,
        batch.size,
        str(handle) if batch.recallable else None,
    )
