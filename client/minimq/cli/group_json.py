"""Consumer groups as JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from minimq.cli.away import away_to_json
from minimq.operations.operation import Row

if TYPE_CHECKING:
    from minimq.administration.group_descriptions import (
        GroupDescription,
        GroupMemberDescription,
        GroupQueueDescription,
    )


def group_to_json(found: GroupDescription) -> Row:
    """Return everything that is known about a group."""
    return {
        "group": found.group,
        "strategy": found.strategy,
        "hold_s": found.hold_s,
        "published": found.is_published,
        "lag": found.lag,
        "lag_unit": found.lag_unit,
        "lag_s": found.lag_s,
        "in_flight": found.in_flight,
        "retrying": found.retrying,
        "dead_letters": found.dead_letters,
        "lost": sum(queue.lost for queue in found.queues),
        "deleted_early": dict(found.deleted_early),
        "expires_at": found.expires_at,
        "deciding_broker": found.deciding_broker,
        "unanswered": dict(found.unanswered),
        "away": away_to_json(found.away),
        "members": [_member_to_json(member) for member in found.members],
        "queues": [_queue_to_json(queue) for queue in found.queues],
        "retry_queues": [_queue_to_json(queue) for queue in found.retry_queues],
    }


def _member_to_json(member: GroupMemberDescription) -> Row:
    return {
        "client_id": member.client_id,
        "topics": list(member.topics),
        "seen_by": list(member.seen_by),
        "queues": len(member.queues),
        "lag": member.lag,
        "lag_s": member.lag_s,
    }


def _queue_to_json(item: GroupQueueDescription) -> Row:
    return {
        "topic": item.queue.topic,
        "broker": item.queue.broker_name,
        "queue": item.queue.queue_id,
        "owner": item.owner,
        "epoch": item.epoch,
        "holder": item.holder,
        "held_for_s": item.held_for_s,
        "waiting": list(item.waiting),
        "min_offset": item.min_offset,
        "max_offset": item.max_offset,
        "committed_offset": item.committed_offset,
        "lag": item.lag,
        "lag_s": item.lag_s,
        "oldest_unread_at": item.oldest_unread_at,
        "popped": None if item.popped is None else dataclasses.asdict(item.popped),
    }
