"""The fate of a message: brokers report what groups did with it; its copies in other topics show failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum

from minimq.admin.master_client import MasterClient
from minimq.admin.values import OnProgress
from minimq.connection.replica_selector import ReplicaSelector
from minimq.consuming.received import ReceivedMessage
from minimq.features.dead_letters.dead_letter_resender import DeadLetterReader
from minimq.features.delayed.operations import DelayedMessages, delayed_batches
from minimq.features.search.message_search import (
    Criterion,
    FoundMessages,
    MessageSearch,
    UnreadOffsets,
    by_id,
    by_property,
)
from minimq.features.search.search_bounds import MessageAddress, SearchBounds
from minimq.features.work_queues.copies import ORIGIN_MESSAGE_ID, deliveries_of
from minimq_common.batch.header import read_header
from minimq_common.errors import AccessDenied, CorruptBatch, InvalidArgument, TopicNotFound, TopicUnavailable
from minimq_common.model import OfflineBroker
from minimq_common.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, dead_letter_topic, retry_topic
from minimq_common.text_units import count_of
from minimq_common.timestamps import moment
from minimq_proto.v1 import search_pb2, staged_pb2

#: Tolerated difference of brokers' clocks, in ms: a copy may seem to be stored before its message.
_AHEAD_MS = 60_000
#: Maximum number of open transactions that one broker lists.
_MAX_HALVES = 10_000
#: Maximum number of copies of a message that are examined in one topic.
_MAX_COPIES = 1_000


class TraceState(Enum):
    """The state of a message for one group."""

    #: The group has not committed it yet; a member may have received it.
    WAITING = "waiting"
    #: The group has committed an offset beyond it.
    READ = "read"
    #: A consumer has it; in groups that receive messages one by one.
    IN_FLIGHT = "in flight"
    #: It was released, or not acknowledged in time, and will be redelivered.
    RETURNED = "returned"
    #: It was acknowledged.
    SETTLED = "settled"
    #: It failed, and its copy in the retry topic of the group waits for another delivery.
    RETRYING = "retrying"
    #: It was given up, and is an open dead letter of the group.
    DEAD = "dead"
    #: It was given up, and the dead letter was resent or deleted.
    DEAD_SETTLED = "dead, settled"


@dataclass(frozen=True, slots=True)
class GroupTrace:
    """The fate of a message in one group."""

    group: str
    state: TraceState
    #: The consumer that has it, or that reads its queue; None without one.
    client_id: str | None = None
    #: Number of deliveries. Groups that do not receive messages one by one count from the first failure on.
    delivery_count: int = 0
    #: The time until which it is in flight, or from which it is redelivered; None if neither applies.
    until: datetime | None = None
    #: Where its dead letter, or its copy that waits for another delivery, is stored.
    copy: MessageAddress | None = None


@dataclass(frozen=True, slots=True)
class HalfTrace:
    """The open transaction of a message, which is not readable yet."""

    producer_group: str
    number: int
    checks: int
    #: Brokers no longer ask the producer group: an operator has to decide.
    is_undecided: bool


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The fate of a message."""

    message_id: str
    #: As it is stored in its queue; None if it is in none, or was not found.
    message: ReceivedMessage | None = None
    #: What each group that reads its topic has done with it, sorted by name; those that you may describe.
    groups: tuple[GroupTrace, ...] = ()
    #: The delayed batch in which it waits until it is due; None if it is not delayed.
    due: DelayedMessages | None = None
    #: The delayed batch with which it was recalled; None if it was not, or would be due by now.
    recalled: DelayedMessages | None = None
    #: Its open transaction; None if it has none.
    half: HalfTrace | None = None
    #: Why open transactions of a broker were not examined, by broker name.
    unread_halves: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[UnreadOffsets, ...] = ()
    #: Brokers that are offline, and may store it.
    offline: tuple[OfflineBroker, ...] = ()
    #: Brokers whose slave answered, which may lack the latest messages.
    from_slaves: tuple[str, ...] = ()

    @property
    def address(self) -> MessageAddress | None:
        """Where the message is stored; None if it is in no queue."""
        return None if self.message is None else MessageAddress(self.message.queue, self.message.queue_offset)

    @property
    def is_known(self) -> bool:
        """True if the message was found: stored, delayed, recalled, or half."""
        return any(found is not None for found in (self.message, self.due, self.recalled, self.half))

    @property
    def is_complete(self) -> bool:
        """True if nothing that is stored was left out."""
        return not (self.unread_halves or self.unread or self.offline or self.from_slaves)


_STATES = {
    search_pb2.MESSAGE_PROGRESS_WAITING: TraceState.WAITING,
    search_pb2.MESSAGE_PROGRESS_READ: TraceState.READ,
    search_pb2.MESSAGE_PROGRESS_IN_FLIGHT: TraceState.IN_FLIGHT,
    search_pb2.MESSAGE_PROGRESS_RETURNED: TraceState.RETURNED,
    search_pb2.MESSAGE_PROGRESS_SETTLED: TraceState.SETTLED,
}


class Tracer:
    """Traces one message. Used by one thread."""

    def __init__(self, masters: MasterClient, bounds: SearchBounds, progress: OnProgress | None = None) -> None:
        self._masters = masters
        self._client = masters.calls
        self._places = ReplicaSelector(self._client)
        self._bounds = bounds
        self._progress = progress
        self._unread: list[UnreadOffsets] = []
        self._unread_halves: dict[str, str] = {}
        self._offline: dict[str, OfflineBroker] = {}
        self._from_slaves: set[str] = set()

    def trace_id(self, message_id: str, topic: str | None) -> MessageTrace:
        """Find a message by its id, in `topic` or in all readable topics, and trace it. Raises `MinimqError`."""
        criterion, message_id = by_id(message_id), message_id.lower()
        topics = [topic] if topic is not None else self._topics()
        for name in topics:
            found = self._search(name, criterion, self._bounds, is_needed=topic is not None)
            if found.messages:
                self._unread.clear()  # found: gaps in other places do not matter
                self._offline.clear()
                self._from_slaves.clear()
                return self.trace(found.messages[0])
        due = self._delayed(topics, criterion, recalled=False, is_needed=topic is not None)
        half = None if due else self._open_half(criterion)
        recalled = None if due or half else self._delayed(topics, criterion, recalled=True, is_needed=topic is not None)
        return self._with_gaps(MessageTrace(message_id, due=due, recalled=recalled, half=half))

    def trace(self, message: ReceivedMessage) -> MessageTrace:
        """Trace a message that is stored in its queue. Raises `MinimqError`."""
        address = MessageAddress(message.queue, message.queue_offset)
        groups = {each.group: each for each in self._groups_at(address)}
        for name in self._all_topics():
            for prefix, look in ((RETRY_PREFIX, self._retried), (DEAD_LETTER_PREFIX, self._dead)):
                if name.startswith(prefix):
                    group = name.removeprefix(prefix)
                    trace = look(group, message)
                    if trace is not None:
                        groups[group] = trace
        ordered = tuple(groups[name] for name in sorted(groups))
        return self._with_gaps(MessageTrace(message.message_id, message, ordered))

    def _with_gaps(self, trace: MessageTrace) -> MessageTrace:
        offline = tuple(self._offline[name] for name in sorted(self._offline))
        return replace(
            trace,
            unread_halves={} if trace.is_known else self._unread_halves,
            unread=tuple(self._unread),
            offline=offline,
            from_slaves=tuple(sorted(self._from_slaves)),
        )

    def _all_topics(self) -> list[str]:
        return sorted(self._client.wait(lambda: self._client.nameservers.topic_names(self._client.timeout_s)))

    def _topics(self) -> list[str]:
        return [name for name in self._all_topics() if not name.startswith("%")]

    def _search(
        self, topic: str, criterion: Criterion, bounds: SearchBounds, *, is_needed: bool = False
    ) -> FoundMessages:
        try:
            route = self._masters.route(topic)
            search = MessageSearch(self._client, criterion, bounds, self._progress)
            found = search.run(route.read_queues(), route.offline)
        except (AccessDenied, TopicNotFound, TopicUnavailable) as error:
            if is_needed:
                raise
            found = FoundMessages((), offline=error.offline if isinstance(error, TopicUnavailable) else ())
        self._unread += found.unread
        self._offline.update((each.broker_name, each) for each in found.offline)
        self._from_slaves.update(found.from_slaves)
        return found

    # ---- groups ---------------------------------------------------------------------------------

    def _groups_at(self, address: MessageAddress) -> Iterator[GroupTrace]:
        queue = address.queue
        request = search_pb2.TraceMessageRequest(topic=queue.topic, queue_id=queue.queue_id, offset=address.offset)
        answer: search_pb2.TraceMessageResponse = self._client.wait(
            lambda: self._places.call(
                queue, lambda stub: stub.of(search_pb2).TraceMessage, request, self._client.timeout_s
            )
        )
        if answer.from_slave:
            self._from_slaves.add(queue.broker_name)
        for each in answer.groups:
            yield GroupTrace(
                each.group,
                _STATES.get(each.progress, TraceState.WAITING),
                each.client_id or None,
                each.delivery_count,
                moment(each.until_ms) if each.until_ms else None,
            )

    def _copies(self, topic: str, message: ReceivedMessage) -> tuple[ReceivedMessage, ...]:
        stored_ms = message.batch.stored_ms_of(message.index)
        bounds = SearchBounds(max(stored_ms - _AHEAD_MS, 0), 0, _MAX_COPIES, False, self._bounds.max_wait_s)
        return self._search(topic, by_property(ORIGIN_MESSAGE_ID, message.message_id), bounds).messages

    def _retried(self, group: str, message: ReceivedMessage) -> GroupTrace | None:
        for copy in reversed(self._copies(retry_topic(group), message)):
            address = MessageAddress(copy.queue, copy.queue_offset)
            for trace in self._groups_at(address):
                if trace.group == group and trace.state is not TraceState.READ:
                    delivery_count = deliveries_of(copy, trace.delivery_count)
                    return replace(trace, state=TraceState.RETRYING, delivery_count=delivery_count, copy=address)
        return None

    def _dead(self, group: str, message: ReceivedMessage) -> GroupTrace | None:
        copies = self._copies(dead_letter_topic(group), message)
        if not copies:
            return None
        copy = copies[-1]
        with DeadLetterReader(self._client, group, self._bounds.max_wait_s, lambda _damage: None) as reader:
            is_settled = copy in reader.settled([copy.queue.broker_name])
        state = TraceState.DEAD_SETTLED if is_settled else TraceState.DEAD
        delivery_count = deliveries_of(copy, 0)
        return GroupTrace(
            group, state, delivery_count=delivery_count, copy=MessageAddress(copy.queue, copy.queue_offset)
        )

    # ---- messages in no queue -------------------------------------------------------------------

    def _delayed(
        self, topics: Sequence[str], criterion: Criterion, *, recalled: bool, is_needed: bool
    ) -> DelayedMessages | None:
        for topic in topics:
            try:
                for about, data in delayed_batches(self._masters, topic, recalled=recalled):
                    if _has_number(data, criterion):
                        return about
            except (AccessDenied, TopicNotFound, TopicUnavailable):
                if is_needed:
                    raise
        return None

    def _open_half(self, criterion: Criterion) -> HalfTrace | None:
        request = staged_pb2.ListHalvesRequest(number=-1, most=_MAX_HALVES)
        answers, failures = self._client.call_all(
            self._masters.find(need="readable"), lambda stub: stub.of(staged_pb2).ListHalves, request
        )
        self._unread_halves = {broker: error.message for broker, error in failures.items()}
        for broker, answer in answers.items():
            for half in answer.halves:
                if _has_number(half.batch, criterion):
                    return HalfTrace(half.producer_group, half.number, half.checks, half.is_undecided)
            # Brokers list the first batch of a transaction only, and none that is large.
            left_out = answer.count - sum(half.batches == 1 and bool(half.batch) for half in answer.halves)
            if left_out:
                self._unread_halves[broker] = f"it lists {count_of(left_out, 'transaction')} in part"
        return None


def _has_number(batch: bytes, criterion: Criterion) -> bool:
    if not batch:
        return False
    try:
        header, wanted = read_header(batch), criterion.request.message
    except (CorruptBatch, InvalidArgument):
        return False
    return (header.producer_id, header.sequence) == (wanted.producer_id, wanted.sequence)
