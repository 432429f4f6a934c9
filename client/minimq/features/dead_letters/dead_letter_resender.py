"""Resends or deletes dead letters.

A resent message and the settle of its dead letter are one atomic append, if a queue of the message is on the broker of
the dead letter: a killed command leaves nothing half done. Otherwise the message is sent first, and sent again if the
command is killed in between and repeated. To resend to its group alone, a message goes to the group's retry topic.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import Literal, NamedTuple

from minimq.admin.master_client import MasterClient, make_group_topic
from minimq.connection.client import ClusterClient
from minimq.connection.finalizers import ClosedByWith
from minimq.consuming.range_reader import RangeOptions, RangeReader
from minimq.consuming.received import ReceivedMessage
from minimq.features.dead_letters.dead_letter import DeadLetter, Wants
from minimq.features.work_queues.work_queue_message import merged
from minimq.sending.pending_batch import PendingMessage
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq_common.errors import DamagedMessages, InvalidArgument, MinimqError, TopicNotFound, TransportError
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.names import dead_letter_topic, retry_topic
from minimq_common.wire.protocol_bounds import MAX_ATOMIC_BATCHES
from minimq_proto.v1 import broker_pb2, work_queues_pb2

#: Called for each damaged batch, which is skipped; the attributes of the error say where it is.
OnDamage = Callable[[DamagedMessages], None]

Outcome = Literal["resent", "deleted"]
#: Bounds of one atomic append: dead letters, and bytes of their bodies. A larger body is sent before it.
_PART = MAX_ATOMIC_BATCHES
_PART_BYTES = 8 << 20
#: The largest body that any broker accepts; the limit of its own broker has already applied to a dead letter.
_MAX_BYTES = 32 << 20


class Span(NamedTuple):
    """The range of offsets that a queue had at some time; `end` is exclusive."""

    queue: MessageQueue
    first: int
    end: int


class ResolvedDeadLetters:
    """The dead letters that were resent or deleted, by queue."""

    def __init__(self, spans: dict[MessageQueue, Sequence[int]]) -> None:
        self._spans = {queue: (flat[::2], [*map(int.__add__, flat[::2], flat[1::2])]) for queue, flat in spans.items()}

    def __contains__(self, message: ReceivedMessage) -> bool:
        firsts, ends = self._spans.get(message.queue, ((), ()))
        index = bisect_right(firsts, message.queue_offset) - 1
        return index >= 0 and message.queue_offset < ends[index]


class DeadLetterReader(ClosedByWith):
    """Reads the dead letters of one group, from masters only: a slave may not know yet which are settled."""

    def __init__(self, client: ClusterClient, group: str, max_wait_s: float, on_damage: OnDamage | None = None) -> None:
        self.group = group
        self._on_damage = on_damage
        self._known_damage: set[tuple[MessageQueue, int]] = set()
        #: The errors of brokers that do not answer; they are not called again.
        self._silent: dict[str, TransportError] = {}
        self._masters = MasterClient(client)
        self._reader = RangeReader(client.cluster, RangeOptions(max_wait_s=max_wait_s, read_from_slaves=False))
        self.close = self._reader.close

    def spans(self) -> list[Span]:
        """Return the ranges of the stored dead letters, including settled ones. Raises `MinimqError`."""
        route, found = self.route(dead_letter_topic(self.group)), list[Span]()
        for queue in sorted(route.read_queues() if route else ()):
            with self._noting_silence(queue.broker_name):
                if queue.broker_name not in self._silent:
                    found.append(Span(queue, *self._reader.bounds(queue)))
        return found

    def check_complete(self) -> None:
        """Raise the error of a broker that did not answer, if there is one."""
        for name, error in self._silent.items():
            raise error.with_message(f"broker {name} does not answer, its dead letters are missing: {error.message}")

    @contextmanager
    def _noting_silence(self, broker_name: str) -> Iterator[None]:
        try:
            yield
        except TransportError as error:
            self._silent.setdefault(broker_name, error)

    def settled(self, broker_names: Iterable[str]) -> ResolvedDeadLetters:
        """Ask these brokers which dead letters are settled. Raises `MinimqError`."""
        request, topic = work_queues_pb2.DescribeWorkQueuesRequest(group=self.group), dead_letter_topic(self.group)
        found: dict[MessageQueue, Sequence[int]] = {}
        for name in dict.fromkeys(broker_names):
            answer = self._masters.call(name, lambda stub: stub.of(work_queues_pb2).Describe, request)
            for each in answer.settled_letters:
                found[MessageQueue(topic, name, each.queue_id)] = [*each.spans]
        return ResolvedDeadLetters(found)

    def letters(
        self, spans: Sequence[Span], wants: Wants, progress: Callable[[int, int], None] | None = None
    ) -> Iterator[DeadLetter]:
        """Yield the open dead letters that `wants` selects; `progress` gets the number examined and the total."""
        seen, total = 0, sum(span.end - span.first for span in spans)
        for name, own in groupby(spans, key=lambda span: span.queue.broker_name):
            with self._noting_silence(name):
                settled = self.settled([name])
                for span in own:
                    for examined, messages in self._read(span):
                        open_ones = (DeadLetter(message) for message in messages if message not in settled)
                        yield from filter(wants, open_ones)
                        seen += examined
                        if progress is not None:
                            progress(seen, total)

    def route(self, topic: str) -> TopicRoute | None:
        """Fetch the route of a topic; None if there is none. Raises `MinimqError`."""
        try:
            return self._masters.route(topic)
        except TopicNotFound:
            return None

    def _read(self, span: Span) -> Iterator[tuple[int, list[ReceivedMessage]]]:
        queue, at, end = span
        while at < end:
            try:
                for batch in self._reader.read(queue, at, end):
                    batch.check_texts()
                    messages = [message for message in batch.messages(at) if message.queue_offset < end]
                    at = batch.end_offset
                    yield len(messages), messages
            except DamagedMessages as error:
                if self._on_damage is None:
                    raise
                behind = error.next_offset
                if behind is None or behind <= at:
                    behind = end  # the start of the next batch is unknown: skip the rest of this queue
                if (queue, at) not in self._known_damage:
                    self._known_damage.add((queue, at))
                    self._on_damage(error.at(queue, at, behind))
                yield min(behind, end) - at, []
                at = behind


class _Settle:
    """Dead letters of one queue that an atomic append settles; see `Consumed`."""

    def __init__(self, group: str, letters: Sequence[DeadLetter]) -> None:
        self._group = group
        self.queue: MessageQueue | None = letters[0].queue
        spans = merged((letter.queue_offset, letter.queue_offset + 1) for letter in letters)
        self._spans = [number for first, end in spans for number in (first, end - first)]

    def progress(self) -> broker_pb2.AtomicProgress:
        assert self.queue is not None
        settle = broker_pb2.PopSettle(
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            spans=self._spans,
            outcome=broker_pb2.POP_OUTCOME_RESOLVE,
        )
        return broker_pb2.AtomicProgress(group=self._group, settles=[settle])

    def answered(self, error: MinimqError | None) -> None:
        """Do nothing: to settle a dead letter twice is harmless."""

    def may_pass(self) -> bool:
        return False


class DeadLetterResender:
    """Resends or deletes dead letters of one group. Used once, by one thread."""

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        outcome: Outcome,
        to: str | None,
        max_wait_s: float,
        progress: Callable[[int, int], None] | None,
        on_damage: OnDamage | None,
    ) -> None:
        self._client = client
        self._outcome: Outcome = outcome
        self._to = to
        self._progress = progress
        self._retry = retry_topic(group)
        self._max_wait_s = max_wait_s
        self._ends = ExitStack()
        self._reader = self._ends.enter_context(DeadLetterReader(client, group, max_wait_s, on_damage))
        self._group = group
        self._count = 0
        #: Writable queues by topic, cached at the first use.
        self._writable: dict[str, frozenset[MessageQueue]] = {}

    def run(self, wants: Wants) -> int:
        """Settle the selected dead letters that are open now; return how many."""
        with self._ends:
            try:
                self._run([span for span in self._reader.spans() if span.first < span.end], wants)
                self._reader.check_complete()
            except MinimqError as error:
                raise error.with_message(
                    f"{self._count} dead letters of group {self._group} were {self._outcome}, others may be left: "
                    f"{error.message}"
                ) from None
            return self._count

    def _run(self, spans: Sequence[Span], wants: Wants) -> None:
        if not spans:
            return
        options = ProducerOptions(max_body_bytes=_MAX_BYTES, send_timeout_s=self._max_wait_s)
        sender = ProducerCore(self._client.cluster, options, ())
        self._ends.callback(sender.close, 0.0)
        part: list[DeadLetter] = []
        size = 0
        for letter in self._reader.letters(spans, wants, self._progress):
            size += len(letter.body)
            if part and (letter.queue != part[0].queue or len(part) == _PART or size > _PART_BYTES):
                self._settle(sender, part)
                part, size = [], len(letter.body)
            part.append(letter)
        if part:
            self._settle(sender, part)

    def _settle(self, sender: ProducerCore, letters: Sequence[DeadLetter]) -> None:
        here: list[PendingMessage] = []
        elsewhere: defaultdict[MessageQueue | None, list[Message]] = defaultdict(list)
        for letter in letters if self._outcome == "resent" else ():
            message, wanted = self._resent(letter)
            at = sender.destination(message, wanted)
            brokers = {each.broker_name for each in ([at] if at is not None else self._writable_queues(message.topic))}
            if len(message.body) <= _PART_BYTES and letter.queue.broker_name in brokers:
                born_ms = time.time_ns() // 1_000_000
                here.append(PendingMessage(message, wanted, len(message.body), None, born_ms=born_ms))
            else:
                elsewhere[wanted].append(message)
        for wanted, messages in elsewhere.items():
            sender.send_many(messages, wanted, None)
        sender.append_atomically(here, _Settle(self._group, letters))
        self._count += len(letters)

    def _resent(self, letter: DeadLetter) -> tuple[Message, MessageQueue | None]:
        """Return the message to send for a dead letter, and the queue that it must go to; None for any."""
        topic, is_retry = self._to or letter.topic, self._to == self._retry
        if is_retry and letter.received_from is not None:
            raise InvalidArgument(
                f"the group consumed dead letter {letter.place} from {letter.received_from}: resend it without "
                "--only-group, or select other dead letters"
            )
        if is_retry and letter.topic is not None:
            self._writable_queues(self._retry)  # creates the topic
            return letter.retry(), None
        if topic is None or is_retry:
            remedy = "give one (--to)" + (" in place of --only-group" if self._to else "")
            raise InvalidArgument(
                f"the topic of dead letter {letter.place} is unknown: {remedy}, or select other dead letters"
            )
        message, origin, route = letter.message(topic), letter.origin_queue, self._client.routes.known(topic)
        is_chosen = message.message_group is not None or (route is not None and bool(route.key_queues))
        # At another broker, any queue will do: the broker of the origin may be away.
        is_here = origin is not None and origin.topic == topic and origin.broker_name == letter.queue.broker_name
        return message, origin if is_here and origin in self._writable_queues(topic) and not is_chosen else None

    def _writable_queues(self, topic: str) -> frozenset[MessageQueue]:
        if topic not in self._writable:
            if topic == self._retry:
                make_group_topic(self._client, topic, self._client.timeout_s)
            route = self._reader.route(topic)
            self._writable[topic] = frozenset(route.write_queues() if route else ())
        return self._writable[topic]
