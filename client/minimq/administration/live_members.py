"""The refusal to change a group under its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from minimq.administration.failures import raise_failures
from minimq.administration.masters import Masters
from minimq_common.errors import GroupConflict
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

#: Members and queues that an error names.
_NAMED = 5


class RefusedAction(NamedTuple):
    """A change that is refused while members are connected, and what force would mean for them."""

    verb: str
    consequence: str


RESET = RefusedAction("reset", "they go on at the new place then")
DELETION = RefusedAction("delete it", "they begin anew then")


def refuse_if_live(
    masters: Masters,
    group: str,
    addresses: Mapping[str, str],
    action: RefusedAction,
    topic: str = "",
    ids: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Raise `GroupConflict` when members are connected, or queues are held for some that have left.

    Args:
        masters: makes the calls.
        group: its name.
        addresses: who is asked, by broker name.
        action: what is refused then.
        topic: whose queues are looked at; all when empty.
        ids: which of its queues, by broker name; all of a broker when it has none.
    """
    request = broker_pb2.DescribeGroupRequest(group=group)
    answers, failures = masters.calls.call_all(addresses, lambda stub: stub.DescribeGroup, request)
    raise_failures(f"group {group} cannot be looked up", failures, addresses, "nothing was changed")
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
            f"queues of group {group} are held for members that have left: {some_of(held)}; wait until that is over, "
            f"or {action.verb} with force (--force)"
        )


def some_of(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
