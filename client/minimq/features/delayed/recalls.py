"""The recall of delayed messages, for producers and for `Admin`."""

from __future__ import annotations

from enum import Enum

from minimq.connection.client import ClusterClient
from minimq.connection.master_calls import tried
from minimq.features.delayed.recall_handle import RecallHandle
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_proto.v1 import delayed_pb2


class RecallResult(Enum):
    """The result of a recall. It is true if the message will never be delivered.

    The client retries when a response is lost, so `ALREADY_RECALLED` may be the effect of the same call.
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
    delayed_pb2.RECALL_OUTCOME_RECALLED: RecallResult.RECALLED,
    delayed_pb2.RECALL_OUTCOME_ALREADY_RECALLED: RecallResult.ALREADY_RECALLED,
    delayed_pb2.RECALL_OUTCOME_TOO_LATE: RecallResult.TOO_LATE,
}


async def recall(client: ClusterClient, handle: object, max_wait_s: float) -> RecallResult:
    """Recall a delayed message; runs on the event loop of the connection."""
    parsed = RecallHandle.parse(handle)
    key = delayed_pb2.DelayedKey(due_ms=parsed.due_ms, recall_id=parsed.recall_id)
    request = delayed_pb2.RecallRequest(topic=parsed.topic, keys=[key])

    async def attempt(limit_s: float) -> delayed_pb2.RecallResponse:
        timeout_s = min(limit_s, client.timeout_s)
        address = await _master_of(client, parsed, timeout_s)
        brokers = client.connection.brokers
        return await brokers.call(address, lambda stub: stub.of(delayed_pb2).Recall, request, timeout_s)

    answer = await tried(attempt, max_wait_s, shares=True)
    outcome = _OUTCOMES.get(answer.outcomes[0]) if len(answer.outcomes) == 1 else None
    if outcome is None:
        raise InvalidArgument(
            f"the message of topic {parsed.topic!r} cannot be recalled: send it with recallable=True for that"
        )
    return outcome


async def _master_of(client: ClusterClient, handle: RecallHandle, timeout_s: float) -> str:
    topic, broker = handle.topic, handle.broker_name
    route = await client.nameservers.route(topic, timeout_s)
    address = route.master_of(broker)
    if address is not None:
        return address
    if broker in route.brokers or any(offline.broker_name == broker for offline in route.offline):
        raise Unavailable(f"broker {broker}, which has the message, has no master now: start it, or wait for another")
    raise InvalidArgument(
        f"the recall handle is of broker {broker!r}, which does not carry topic {topic!r} here: recall the message in "
        "the cluster to which it was sent"
    )
