"""The consumers of work queues: their streams and filters, within bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from minimq_broker.calls.engine import Engine
from minimq_broker.features.work_queues.clock import PopClock
from minimq_broker.features.work_queues.pop_answers import PopAnswers
from minimq_broker.features.work_queues.pop_runs import PopKey, PopOutcome, Settle, epoch_of_user
from minimq_broker.features.work_queues.table import popped_queues
from minimq_broker.features.work_queues.uncommitted_pops import PopStep
from minimq_broker.features.work_queues.work_queue_members import WorkQueueMembers
from minimq_broker.groups.offsets import check_new_group
from minimq_broker.state.state import State
from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_common.names import retry_topic
from minimq_common.security.caller import Caller, current_caller
from minimq_common.wire.protocol_bounds import MAX_FILTER, MAX_TAGS, MIN_INVISIBLE_MS
from minimq_proto.v1 import broker_pb2, work_queues_pb2

#: Maximum consumers of one stream, topics that these take from, and size of their filters: their characters, and 8 for
#: the hash of each tag.
MAX_CLIENTS = 1_000
MAX_TOPICS = 5_000
MAX_FILTERS = 2 * (MAX_FILTER + 8 * MAX_TAGS)
#: The way of work queues in `Claims`.
WAY = "take messages one by one"


@dataclass(slots=True, eq=False)
class PopClientStream:
    """One stream of a client, which may serve several consumers."""

    answers: PopAnswers
    caller: Caller
    clients: set[tuple[str, str]] = field(default_factory=set)
    subscribed: dict[tuple[str, str, str], tuple[str, frozenset[int]]] = field(default_factory=dict)
    filter_size: int = 0
    leaving: set[tuple[str, str]] = field(default_factory=set)


class WorkQueueMember(NamedTuple):
    group: str
    client_id: str
    stream: PopClientStream
    run: int


class WorkQueueClients:
    """Admits the consumers of one role."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._claims = engine.tables.claims
        self.members = WorkQueueMembers()

    def expect_holders(self, now_ms: int) -> list[tuple[str, str]]:
        """Claim the groups of consumers that have messages, as these may be reconnecting; return the claims."""
        state = self._engine.store.writer.state
        found = {
            (group, client_id)
            for (group, topic_id, _), queue in popped_queues(state).copy().items()
            if state.topic_name(topic_id) != retry_topic(group)
            for client_id in queue.clients(now_ms)
        }
        for group, client_id in found:
            self._claims.add(group, client_id, WAY)
        return [*found]

    def end_claims(self, clients: Iterable[tuple[str, str]]) -> None:
        """End the claims of consumers, except those that are connected."""
        for group, client_id in clients:
            if not self.members.has(group, client_id):
                self._claims.remove(group, client_id, WAY)

    def enter(self, popper: WorkQueueMember) -> None:
        """Add a consumer. Raises `SystemBusy`."""
        group, client_id, stream, run = popper
        if (group, client_id) in stream.clients:
            return
        if len(stream.clients) >= MAX_CLIENTS:
            text = f"one stream takes for {MAX_CLIENTS:,} consumers at most"
            raise SystemBusy(text, limit="pops")
        check_new_group(self._engine, group)
        stream.clients.add((group, client_id))
        self.members.came(group, client_id, stream.caller.user, run)

    def subscribe(self, popper: WorkQueueMember, take: work_queues_pb2.PopTake) -> frozenset[int]:
        """Set the filter of a consumer for a topic, and return the hashes of its tags.

        Raises `GroupConflict` while the group has members with leases or other filters, and `SystemBusy`.
        """
        self.enter(popper)
        group, client_id, stream, _ = popper
        key = (group, client_id, take.topic)
        known = stream.subscribed.get(key)
        if known is not None and known[0] == take.filter:
            return known[1]
        tags = frozenset(take.tag_hashes)
        size = stream.filter_size + _size(take.filter, tags) - (_size(*known) if known else 0)
        if (known is None and len(stream.subscribed) >= MAX_TOPICS) or size > MAX_FILTERS:
            text = (
                f"one stream takes from {MAX_TOPICS:,} topics at most, by filters of {MAX_FILTERS:,} characters; "
                "each tag counts as 8 characters"
            )
            raise SystemBusy(text, limit="pops")
        if take.topic != retry_topic(group):  # also members with leases take their retries one by one
            self._claims.add(group, client_id, WAY, [take.topic])
        tags = self.members.subscribe(group, client_id, take.topic, take.filter, tags)
        stream.subscribed[key], stream.filter_size = (take.filter, tags), size
        return tags


def _size(expression: str, tags: frozenset[int]) -> int:
    return len(expression) + 8 * len(tags)


_OUTCOMES = {
    broker_pb2.POP_OUTCOME_DONE: PopOutcome.DONE,
    broker_pb2.POP_OUTCOME_FREE: PopOutcome.FREE,
    broker_pb2.POP_OUTCOME_EXTEND: PopOutcome.EXTEND,
    broker_pb2.POP_OUTCOME_RETURN: PopOutcome.RETURN,
}


def spans_of(settle: broker_pb2.PopSettle) -> list[tuple[int, int]]:
    """Return the spans of a settle as pairs of the first offset and the end. Raises `InvalidArgument`."""
    if len(settle.spans) % 2 or not settle.spans:
        raise InvalidArgument("a settle needs pairs of first offset and number of messages, at least one")
    firsts = settle.spans[::2]
    return [*zip(firsts, map(add, firsts, settle.spans[1::2]), strict=True)]


def settle_step(state: State, group: str, settle: broker_pb2.PopSettle, clock: PopClock) -> PopStep:
    queue = state.queue(settle.topic, settle.queue_id)
    outcome = _OUTCOMES.get(settle.outcome)
    if outcome is None:
        raise InvalidArgument(f"{settle.outcome} is not an outcome: use done, free, extend or return")
    if outcome is PopOutcome.EXTEND and settle.duration_ms < MIN_INVISIBLE_MS:
        raise InvalidArgument(f"messages are kept for {MIN_INVISIBLE_MS} ms at least, not for {settle.duration_ms}")
    spans = spans_of(settle)
    until_ms = 0
    if outcome is PopOutcome.EXTEND or settle.duration_ms:
        until_ms = clock.after_ms(settle.duration_ms)
    epoch = epoch_of_user(settle.epoch, current_caller().tag)
    return PopStep(settle.id, PopKey(group, *queue), Settle(epoch, spans, outcome, until_ms))
