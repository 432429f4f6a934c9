"""Groups and offsets that a broker does not know yet: it takes so many, and no more."""

from __future__ import annotations

from collections.abc import Sequence

from minimq_broker.core.state import QueueKey, State
from minimq_broker.services.engine import Engine
from minimq_common.errors import SystemBusy

#: Committed offsets that a broker keeps, of all groups: each costs some hundred bytes of memory.
MAX_OFFSETS = 500_000

#: Retry delay after a refusal for lack of room, in seconds.
_COME_BACK_S = 0.5


def check_new_group(engine: Engine, group: str) -> None:
    """Raise `SystemBusy` when a group is not known here, and there are as many as there may be."""
    state, groups, most = engine.handle.any_store.state, engine.groups, engine.limits.max_groups
    if state.knows_group(group) or groups.agreement(group) is not None:
        return
    counts = (len(state.index), len(state.agreements), len(state.used), groups.count)
    # Names are compared only where the numbers leave it open: that takes a while, and anybody may make one up.
    if sum(counts) < most or (max(counts) < most and len({*state.known_groups(), *groups.names()}) < most):
        return
    raise SystemBusy(
        f"this broker has {most} consumer groups, which is its limit (--max-groups), and does not create "
        f"{group!r}: delete unused ones (minimq group list, minimq group delete), or raise the limit",
        retry_after_s=_COME_BACK_S,
        limit="groups",
    )


def check_new_offsets(state: State, group: str, queues: Sequence[QueueKey]) -> None:
    """Raise `SystemBusy` when offsets of a group would be more than the broker keeps; it may have been there."""
    kept = state.index.offsets
    if kept + len(queues) <= MAX_OFFSETS:
        return
    new = sum(state.offset(group, queue) is None for queue in queues)
    if new and kept + new > MAX_OFFSETS:
        raise SystemBusy(
            f"this broker keeps {kept} committed offsets, the limit is {MAX_OFFSETS}: delete unused groups "
            "(minimq group list, minimq group delete), or topics",
            retry_after_s=_COME_BACK_S,
            limit="offsets",
        )
