"""Settling dead letters: each is sent again, or dropped, once.

The resent message and its mark are batches of one transaction, so that both are published, or neither. The transactions
of a group have consecutive numbers, and of one number only one attempt is published. So a killed command leaves nothing
half done, and the next one first completes the decided transaction; of two concurrent commands, the one whose attempt
loses has changed nothing, and checks again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack

from minimq.administration.group_topics import make_group_topic
from minimq.connection.client import ClusterClient
from minimq.dead_letters.choice import Choice
from minimq.dead_letters.dead_letter import DeadLetter
from minimq.dead_letters.letter_reader import LetterReader, OnDamage, Span
from minimq.dead_letters.settled_letters import MAX_MARKED, Outcome, SettledLetters, mark_of
from minimq.receiving.consumer_options import RETRY_DELAYS_S
from minimq.sending.decisions import StagedPart, Transaction, staged_parts
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt
from minimq.sending.records_sender import RecordsSender
from minimq.sending.selectors import by_message_group
from minimq.sending.transactions import TransactionCommitter
from minimq_common.batch_builder import BatchBuilder
from minimq_common.errors import InvalidArgument, MiniMQError, TransactionEnded, Unavailable
from minimq_common.model import Message, MessageQueue
from minimq_common.names import MAX_TRANSACTION, dead_letter_topic, done_topic, retry_topic

#: Bytes of bodies in one transaction, and in one batch of it.
_PART_BYTES = 8 << 20
_BATCH_BYTES = 1 << 20
#: The most that any broker takes: what was received has passed the limit of its own.
_MOST_BYTES = 32 << 20
#: How often another command may be ahead, and the wait before it is looked again, in seconds.
_TRIES = 20
_AGAIN_S = 0.5

#: Messages of one batch, of one message group if they have any, and where it goes: None for any queue.
_Batch = tuple[str, MessageQueue | None, list[Message]]
_by_message_group = by_message_group()


class _Overtaken(Exception):
    """The attempt of another command stands."""


class LetterSettler:
    """Resends or drops dead letters of one group. Used once, by one thread."""

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        outcome: Outcome,
        to: str | None,
        patience_s: float,
        progress: Callable[[int, int], None] | None,
        on_damage: OnDamage | None,
    ) -> None:
        self._client = client
        self._outcome: Outcome = outcome
        self._to = to
        self._progress = progress
        self._dead, self._done = dead_letter_topic(group), done_topic(group)
        self._retry = retry_topic(group)
        self._name = transaction_name(group)
        self._patience_s = patience_s
        self._ends = ExitStack()
        self._reader = self._ends.enter_context(LetterReader(client, group, patience_s, on_damage))
        self._group = group
        self._count = 0
        #: Queues that took messages when they were needed first, by topic.
        self._writable: dict[str, frozenset[MessageQueue]] = {}

    def run(self, choice: Choice, *, dry_run: bool = False) -> int:
        """Settle the open dead letters that are chosen and there now; return how many they were."""
        with self._ends:
            spans = self._reader.spans()
            if not any(span.first < span.end for span in spans):
                return 0
            if dry_run:
                return sum(len(part) for _, part in self._parts(spans, choice, self._reader.settled()))
            try:
                self._run(spans, choice)
            except MiniMQError as error:
                raise error.with_message(
                    f"{self._count} dead letters of group {self._group} were {self._outcome}, others may be left: "
                    f"{error.message}"
                ) from None
            return self._count

    def _run(self, spans: Sequence[Span], choice: Choice) -> None:
        self._make_topic(spans)
        if self._to == self._retry:
            make_group_topic(self._client, self._retry, len(RETRY_DELAYS_S), self._client.timeout_s)
        options = ProducerOptions(max_body_bytes=_MOST_BYTES, batch_bytes=_BATCH_BYTES)
        sender = self._ends.enter_context(RecordsSender(self._client.cluster, options))
        committer = self._ends.enter_context(
            TransactionCommitter(self._client.cluster, timeout_s=self._client.timeout_s, patience_s=self._patience_s)
        )
        for _ in range(_TRIES):
            try:
                number = self._catch_up(committer)
                for queue, part in self._parts(spans, choice, self._reader.settled()):
                    number += 1
                    self._settle(sender, committer, Transaction(self._name, number), queue, part)
                    self._count += len(part)
            except (_Overtaken, TransactionEnded):
                self._client.pause(_AGAIN_S)
            else:
                return
        raise Unavailable("another command settles dead letters of the group now: run this one again after it")

    # ---- what is to be done -----------------------------------------------------------------------

    def _parts(
        self, spans: Sequence[Span], choice: Choice, settled: Mapping[MessageQueue, SettledLetters]
    ) -> Iterator[tuple[MessageQueue, list[DeadLetter]]]:
        seen, total = 0, sum(span.end - span.first for span in spans)
        for span in spans:
            part: list[DeadLetter] = []
            size = 0
            for looked_at, letters in self._reader.open_letters(span, settled):
                for letter in filter(choice.wants, letters):
                    if len(part) == MAX_MARKED or (part and size + len(letter.body) > _PART_BYTES):
                        yield span.queue, part
                        part, size = [], 0
                    part.append(letter)
                    size += len(letter.body)
                seen += looked_at
                if self._progress is not None:
                    self._progress(seen, total)
            if part:
                yield span.queue, part

    # ---- doing it ---------------------------------------------------------------------------------

    def _make_topic(self, spans: Collection[Span]) -> None:
        wanted = {span.queue.broker_name for span in spans}
        if not wanted <= self._tellers():
            make_group_topic(self._client, self._done, 1, self._client.timeout_s)
        if missing := sorted(wanted - self._tellers()):
            raise Unavailable(
                f"topic {self._done} cannot be read on {', '.join(missing)}, so it is not known which dead letters are "
                "settled there: see `minimq cluster status`, and run the command again"
            )

    def _tellers(self) -> set[str]:
        route = self._reader.route_of_done()
        return {queue.broker_name for queue in route.read_queues()} if route else set()

    def _catch_up(self, committer: TransactionCommitter) -> int:
        latest = committer.latest(self._name)
        decision = committer.commit(Transaction(self._name, latest or 0), [self._done], ())
        return decision.number

    def _settle(
        self,
        sender: RecordsSender,
        committer: TransactionCommitter,
        transaction: Transaction,
        queue: MessageQueue,
        letters: Sequence[DeadLetter],
    ) -> None:
        mark = mark_of(
            queue.queue_id,
            (letter.queue_offset for letter in letters),
            max(letter.died_ms for letter in letters),
            self._outcome,
        )
        place = MessageQueue(self._done, queue.broker_name, 0)
        batches: list[_Batch] = [(self._done, place, [Message(self._done, mark.encode(), self._outcome)])]
        if self._outcome == "resent":
            batches += self._batches(letters)
        parts = staged_parts(_stage(sender, transaction, batches))
        decision = committer.commit(transaction, {topic for topic, _, _ in batches}, parts)
        if not _is_of(decision.parts, parts):
            raise _Overtaken

    def _batches(self, letters: Sequence[DeadLetter]) -> list[_Batch]:
        batches: list[_Batch] = []
        filling: dict[tuple[str, MessageQueue | None, str | None], tuple[list[Message], int]] = {}
        for letter in letters:
            topic = self._to or letter.topic
            if topic == self._retry and letter.topic is not None:
                message, queue = letter.retry(), self._first_of(topic, letter.queue.broker_name)
            elif topic is not None and topic != self._retry:
                message, queue = letter.message(topic), self._queue_of(letter, topic)
            else:
                raise InvalidArgument(
                    f"dead letter {letter.place} does not tell to which topic it was sent: give one (--to), or choose "
                    "others"
                )
            key = topic, queue, message.message_group
            messages, size = filling.get(key, ([], 0))
            if not messages or size + len(letter.body) > _BATCH_BYTES:
                messages, size = [], 0
                batches.append((*key[:2], messages))
            messages.append(message)
            filling[key] = messages, size + len(letter.body)
        return batches

    def _first_of(self, topic: str, near: str) -> MessageQueue | None:
        queues = sorted(queue for queue in self._writable_queues(topic) if queue.queue_id == 0)
        return next((queue for queue in queues if queue.broker_name == near), queues[0] if queues else None)

    def _queue_of(self, letter: DeadLetter, topic: str) -> MessageQueue | None:
        queue = letter.origin_queue
        if queue is None or queue.topic != topic:
            return None
        return queue if queue in self._writable_queues(topic) else None

    def _writable_queues(self, topic: str) -> frozenset[MessageQueue]:
        if topic not in self._writable:
            route = self._reader.route(topic)
            self._writable[topic] = frozenset(route.write_queues() if route else ())
        return self._writable[topic]


def transaction_name(group: str) -> str:
    """Return the name of the transactions that settle dead letters of a group."""
    name = dead_letter_topic(group)
    return name if len(name) <= MAX_TRANSACTION else f"%DLQ%{hashlib.sha256(group.encode()).hexdigest()}"


def _stage(
    sender: RecordsSender,
    transaction: Transaction,
    batches: Sequence[_Batch],
) -> list[BatchReceipt]:
    under_way: list[Future[BatchReceipt]] = []
    for topic, origin, messages in batches:
        message_group, queue = messages[0].message_group, origin
        if message_group is not None and queue is None:
            queue = _by_message_group(sender.queues(topic), messages[0])
        records = BatchBuilder(_MOST_BYTES, message_group=message_group)
        records.add(messages)
        under_way.append(sender.send(topic, queue, records, transaction=transaction))
    return [future.result() for future in under_way]


def _is_of(decided: Collection[StagedPart], staged: Collection[StagedPart]) -> bool:
    return set(decided) == set(staged)
