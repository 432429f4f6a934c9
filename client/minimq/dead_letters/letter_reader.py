"""The reader of the dead letters of a group, and of which of them are open."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from minimq.administration.masters import Masters
from minimq.connection.client import ClusterClient
from minimq.dead_letters.dead_letter import DeadLetter, Wants
from minimq.receiving.range_reader import RangeOptions, RangeReader
from minimq.receiving.received import ReceivedMessage
from minimq_common.errors import DamagedMessages, OffsetOutOfRange, TopicNotFound
from minimq_common.model import MessageQueue, TopicRoute
from minimq_common.names import dead_letter_topic
from minimq_proto.v1 import broker_pb2

#: Called for each damaged batch, which is passed over; its attributes say where it is.
OnDamage = Callable[[DamagedMessages], None]


class Span(NamedTuple):
    """A snapshot of the messages of a queue: first offset, and the one behind the last."""

    queue: MessageQueue
    first: int
    end: int


class SettledLetters:
    """The dead letters that were resent or dropped, by queue."""

    def __init__(self, spans: dict[MessageQueue, Sequence[int]]) -> None:
        self._spans = {queue: (flat[::2], [*map(int.__add__, flat[::2], flat[1::2])]) for queue, flat in spans.items()}

    def __contains__(self, message: ReceivedMessage) -> bool:
        firsts, ends = self._spans.get(message.queue, ((), ()))
        index = bisect_right(firsts, message.queue_offset) - 1
        return index >= 0 and message.queue_offset < ends[index]


class LetterReader:
    """Reads the dead letters of one group from masters: a slave may not know yet which are settled."""

    def __init__(self, client: ClusterClient, group: str, patience_s: float, on_damage: OnDamage | None = None) -> None:
        self.group = group
        self._on_damage = on_damage
        self._known_damage: set[tuple[MessageQueue, int]] = set()
        #: Of queues of originals.
        self._bounds: dict[MessageQueue, tuple[int, int]] = {}
        self._masters = Masters(client)
        self._reader = RangeReader(client.cluster, RangeOptions(patience_s=patience_s, read_from_slaves=False))

    def __enter__(self) -> LetterReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def spans(self) -> list[Span]:
        """Return the stored dead letters, including settled ones. Raises `MiniMQError`."""
        route = self.route(dead_letter_topic(self.group))
        return [Span(queue, *self._reader.bounds(queue)) for queue in sorted(route.read_queues() if route else ())]

    def settled(self, broker_names: Iterable[str]) -> SettledLetters:
        """Return which dead letters are settled on some brokers, as of now. Raises `MiniMQError`."""
        request, topic = broker_pb2.DescribeGroupRequest(group=self.group), dead_letter_topic(self.group)
        found: dict[MessageQueue, Sequence[int]] = {}
        for name in dict.fromkeys(broker_names):
            answer = self._masters.call(name, lambda stub: stub.DescribeGroup, request)
            for each in answer.settled_letters:
                found[MessageQueue(topic, name, each.queue_id)] = [*each.spans]
        return SettledLetters(found)

    def letters(
        self, spans: Sequence[Span], wants: Wants, progress: Callable[[int, int], None] | None = None
    ) -> Iterator[DeadLetter]:
        """Yield the open dead letters that are wanted; `progress` gets the numbers of examined ones, and of all."""
        settled = self.settled(span.queue.broker_name for span in spans)
        seen, total = 0, sum(span.end - span.first for span in spans)
        for span in spans:
            for examined, messages in self._read(span):
                yield from filter(wants, (DeadLetter(message) for message in messages if message not in settled))
                seen += examined
                if progress is not None:
                    progress(seen, total)

    def original(self, letter: DeadLetter) -> ReceivedMessage:
        """Return the message of which a dead letter is a copy. Raises `OffsetOutOfRange` if it is deleted."""
        queue, offset = letter.origin_queue, letter.origin_offset
        if queue is not None and offset is not None:
            if queue not in self._bounds:
                self._bounds[queue] = self._reader.bounds(queue) if self.route(queue.topic) else (0, 0)
            first, end = self._bounds[queue]
            for batch in self._reader.read(queue, offset, offset + 1) if first <= offset < end else ():
                for message in batch.messages(offset):
                    if message.queue_offset == offset and message.message_id == letter.message_id:
                        return message
        raise OffsetOutOfRange("its message is not stored any more")

    def forget_bounds(self) -> None:
        """Ask anew which originals are stored."""
        self._bounds.clear()

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, asked anew; None when there is none. Raises `MiniMQError`."""
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
                    behind = end  # it is not known where the next one begins: other queues go on
                if (queue, at) not in self._known_damage:
                    self._known_damage.add((queue, at))
                    self._on_damage(error.at(queue, at, behind))
                yield min(behind, end) - at, []
                at = behind
