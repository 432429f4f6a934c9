"""The recall of delayed messages, for producers and for `Admin`."""

from __future__ import annotations

import asyncio
from enum import Enum

from minimq.administration.recall_handle import RecallHandle
from minimq.connection.client import ClusterClient
from minimq_common.errors import InvalidArgument, MiniMQError, Unavailable
from minimq_proto.v1 import delay_pb2

#: Wait before a broker that has no master is asked again, in seconds.
_AGAIN_S = 0.1


class RecallResult(Enum):
    """The result of a recall. It is true if the message will never be delivered.

    An answer that is lost makes the client ask again, so `ALREADY_RECALLED` may come from the same call.
    """

    #: The message is recalled.
    RECALLED = "recalled"
    #: It was recalled before.
    ALREADY_RECALLED = "already recalled"
    #: It was due, and is in its queue.
    TOO_LATE = "too late"

    def __bool__(self) -> bool:
        return self is not RecallResult.TOO_LATE


_OUTCOMES = {
    delay_pb2.RECALL_OUTCOME_RECALLED: RecallResult.RECALLED,
    delay_pb2.RECALL_OUTCOME_ALREADY_RECALLED: RecallResult.ALREADY_RECALLED,
    delay_pb2.RECALL_OUTCOME_TOO_LATE: RecallResult.TOO_LATE,
}


async def recall(client: ClusterClient, handle: object, patience_s: float) -> RecallResult:
    """Recall a delayed message; runs on the event loop of the connection."""
    parsed = RecallHandle.parse(handle)
    key = delay_pb2.DelayedKey(due_ms=parsed.due_ms, recall_id=parsed.recall_id)
    request = delay_pb2.RecallRequest(topic=parsed.topic, keys=[key])
    loop = asyncio.get_running_loop()
    give_up = loop.time() + patience_s
    while True:
        try:
            address = await _master_of(client, parsed)
            answer = await client.connection.brokers.call(address, lambda stub: stub.Recall, request, client.timeout_s)
            return _outcome(answer, parsed)
        except MiniMQError as error:
            if not error.retriable or loop.time() + _AGAIN_S >= give_up:
                raise
        await asyncio.sleep(_AGAIN_S)


async def _master_of(client: ClusterClient, handle: RecallHandle) -> str:
    route = await client.nameservers.route(handle.topic, client.timeout_s)
    broker = handle.broker_name
    address = route.master_of(broker)
    if address is not None:
        return address
    if broker in route.brokers or any(away.broker_name == broker for away in route.away):
        raise Unavailable(f"broker {broker}, which has the message, has no master now: start it, or wait for another")
    raise InvalidArgument(
        f"the recall handle is of broker {broker!r}, which does not carry topic {handle.topic!r} here: recall the "
        "message in the cluster to which it was sent"
    )


def _outcome(answer: delay_pb2.RecallResponse, handle: RecallHandle) -> RecallResult:
    outcome = _OUTCOMES.get(answer.outcomes[0]) if len(answer.outcomes) == 1 else None
    if outcome is None:
        raise InvalidArgument(
            f"the message of topic {handle.topic!r} cannot be recalled: send it with recallable=True for that"
        )
    return outcome
