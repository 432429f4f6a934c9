"""The refusal of changes to a group with connected members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from minimq.administration.failures import raise_failures
from minimq.administration.masters import Masters
from minimq_common.errors import GroupConflict
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

#: Maximum number of members and queues that an error lists.
_NAMED = 5


class RefusedAction(NamedTuple):
    """A change that is refused while members are connected, and the effect of force on them."""

    verb: str
    consequence: str


RESET = RefusedAction("reset", "they then continue at the new offset")
DELETION = RefusedAction("delete it", "they then start over")


def refuse_if_live(
    masters: Masters,
    group: str,
    addresses: Mapping[str, str],
    action: RefusedAction,
    topic: str = "",
    ids: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Raise `GroupConflict` if members are connected, or queues are held for members that have left."""
    request = broker_pb2.DescribeGroupRequest(group=group)
    answers, failures = masters.call_all(addresses, lambda stub: stub.DescribeGroup, request)
    raise_failures(f"group {group} cannot be looked up", failures, addresses, "nothing was changed")
    if action is RESET and any(answer.published for answer in answers.values()):
        raise GroupConflict(
            f"group {group} is the published progress of a Spark query (option consumerGroup), which never reads it: "
            "to read elsewhere, start the query with startingOffsets and another checkpointLocation"
        )
    connected = sorted({client_id for answer in answers.values() for client_id in answer.client_ids})
    if connected:
        raise GroupConflict(
            f"members of group {group} are connected: {some_of(connected)}; stop them first, or {action.verb} "
            f"with force (--force): {action.consequence}"
        )
    held = [
        f"{MessageQueue(item.topic, broker, item.queue_id)} for {item.holder}"
        for broker, answer in answers.items()
        for item in answer.queues
        if item.holder and topic in ("", item.topic) and (not ids or not ids[broker] or item.queue_id in ids[broker])
    ]
    if held:
        raise GroupConflict(
            f"queues of group {group} are held for members that have left: {some_of(held)}; wait until the hold ends, "
            f"or {action.verb} with force (--force)"
        )


def some_of(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
