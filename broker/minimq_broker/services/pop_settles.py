"""Settles as they come from clients."""

from __future__ import annotations

from minimq_broker.core.pop_draft import PopKey
from minimq_broker.core.pop_requests import PopOutcome, Settle
from minimq_broker.core.state import State
from minimq_broker.services.pop_clock import PopClock
from minimq_broker.store.pop_drafts import PopStep
from minimq_common.errors import InvalidArgument
from minimq_common.protocol_bounds import MIN_INVISIBLE_MS
from minimq_proto.v1 import broker_pb2

_OUTCOMES = {
    broker_pb2.POP_OUTCOME_DONE: PopOutcome.DONE,
    broker_pb2.POP_OUTCOME_FREE: PopOutcome.FREE,
    broker_pb2.POP_OUTCOME_EXTEND: PopOutcome.EXTEND,
    broker_pb2.POP_OUTCOME_RETURN: PopOutcome.RETURN,
}


def settle_step(state: State, group: str, settle: broker_pb2.PopSettle, clock: PopClock, may_divide: bool) -> PopStep:
    """Return the step for a settle, after which the queue `may_divide` into more runs."""
    queue = state.queue(settle.topic, settle.queue_id)
    outcome = _OUTCOMES.get(settle.outcome)
    if outcome is None:
        raise InvalidArgument(f"{settle.outcome} is no outcome: messages are done, freed, kept or given back")
    if len(settle.spans) % 2 or not settle.spans:
        raise InvalidArgument("a settle names messages by first offset and number in turns, and at least one pair")
    if outcome is PopOutcome.EXTEND and settle.duration_ms < MIN_INVISIBLE_MS:
        raise InvalidArgument(f"messages are kept for {MIN_INVISIBLE_MS} ms at least, not for {settle.duration_ms}")
    turns = iter(settle.spans)
    spans = [(first, first + count) for first, count in zip(turns, turns, strict=True)]
    until_ms = clock.after_ms(settle.duration_ms)
    if outcome is PopOutcome.FREE and not settle.duration_ms:
        until_ms = 0
    return PopStep(settle.id, PopKey(group, *queue), Settle(settle.epoch, spans, outcome, until_ms, may_divide))
