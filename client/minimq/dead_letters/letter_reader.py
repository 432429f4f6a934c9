"""The reader of the dead letters of a group, and of the record of settled ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from minimq.administration.masters import Masters
from minimq.connection.client import ClusterClient
from minimq.dead_letters.dead_letter import DeadLetter
from minimq.dead_letters.settled_letters import Mark, SettledLetters
from minimq.receiving.range_reader import RangeOptions, RangeReader
from minimq.receiving.received import ReceivedMessage
from minimq.transport.client_log import client_logger
from minimq_common.errors import DamagedMessages, InvalidArgument, TopicNotFound
from minimq_common.model import MessageQueue, TopicRoute
from minimq_common.names import dead_letter_topic, done_topic

log = client_logger(__name__)

#: Called for each damaged batch, which is passed over; its attributes say where it is.
OnDamage = Callable[[DamagedMessages], None]


class Span(NamedTuple):
    """A snapshot of the messages of a queue: first offset, and the one behind the last."""

    queue: MessageQueue
    first: int
    end: int


class Record(NamedTuple):
    """The settled dead letters by queue, and where the queue with the marks of each broker ends."""

    settled: Mapping[MessageQueue, SettledLetters]
    ends: dict[str, int]


class LetterReader:
    """Reads the dead letters of one group from masters: a slave may not know yet which are settled.

    Used by one thread; a context manager.
    """

    def __init__(self, client: ClusterClient, group: str, patience_s: float, on_damage: OnDamage | None = None) -> None:
        self.group = group
        self._on_damage = on_damage
        self._known_damage: set[tuple[MessageQueue, int]] = set()
        self._masters = Masters(client)
        self._reader = RangeReader(client.cluster, RangeOptions(patience_s=patience_s, read_from_slaves=False))

    def __enter__(self) -> LetterReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def route_of_done(self) -> TopicRoute | None:
        """Return the route of the topic with the record of settled ones; None without one. Raises `MiniMQError`."""
        return self.route(done_topic(self.group))

    def spans(self) -> list[Span]:
        """Return the stored dead letters, including settled ones. Raises `MiniMQError`."""
        return self._spans(dead_letter_topic(self.group))

    def record(self, *, whole: bool = True) -> Record:
        """Return which dead letters are settled, as of now."""
        found: dict[MessageQueue, SettledLetters] = defaultdict(SettledLetters)
        spans = self._spans(done_topic(self.group))
        for span in spans:
            try:
                for _, messages in self._read(span, None if whole else self._on_damage):
                    for message in messages:
                        self._add(message, found)
            except DamagedMessages as error:
                raise error.with_message(
                    f"the record of settled dead letters is damaged, so it is not known which are open: {error.message}"
                ) from None
        return Record(found, {span.queue.broker_name: span.end for span in spans})

    def open_letters(
        self, span: Span, settled: Mapping[MessageQueue, SettledLetters]
    ) -> Iterator[tuple[int, list[DeadLetter]]]:
        """Yield the open dead letters of each batch, and the number of examined ones. Raises `MiniMQError`."""
        of_queue = settled.get(span.queue) or SettledLetters()
        for examined, messages in self._read(span, self._on_damage):
            stored_ms = messages[0].batch.stored_ms if messages else 0
            is_open = [message for message in messages if not of_queue.has(message.queue_offset, stored_ms)]
            yield examined, list(map(DeadLetter, is_open))

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, asked anew; None when there is none. Raises `MiniMQError`."""
        try:
            return self._masters.route(topic)
        except TopicNotFound:
            return None

    def _spans(self, topic: str) -> list[Span]:
        route = self.route(topic)
        queues = sorted(route.read_queues()) if route else []
        return [Span(queue, *self._reader.bounds(queue)) for queue in queues]

    def _read(self, span: Span, on_damage: OnDamage | None) -> Iterator[tuple[int, list[ReceivedMessage]]]:
        queue, at, end = span
        while at < end:
            try:
                for batch in self._reader.read(queue, at, end):
                    batch.check_texts()
                    messages = [message for message in batch.messages(at) if message.queue_offset < end]
                    at = batch.end_offset
                    yield len(messages), messages
            except DamagedMessages as error:
                if on_damage is None:
                    raise
                behind = error.next_offset
                if behind is None or behind <= at:
                    behind = end  # it is not known where the next one begins: other queues go on
                if (queue, at) not in self._known_damage:
                    self._known_damage.add((queue, at))
                    on_damage(error.at(queue, at, behind))
                yield min(behind, end) - at, []
                at = behind

    def _add(self, message: ReceivedMessage, found: Mapping[MessageQueue, SettledLetters]) -> None:
        try:
            mark = Mark.decode(message.body)
        except InvalidArgument as error:  # anybody may send to the topic
            log.warning("dead letters: a message is passed over queue=%s error=%s", message.queue, error.message)
            return
        queue = MessageQueue(dead_letter_topic(self.group), message.queue.broker_name, mark.queue_id)
        found[queue].add(mark.runs, mark.died_ms)
