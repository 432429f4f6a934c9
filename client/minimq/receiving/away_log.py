"""The log of brokers that are away when a group begins to read, so that their queues are not missed in silence."""

from __future__ import annotations

import logging

from minimq.routes.away import describe_away
from minimq_common.model import TopicRoute

log = logging.getLogger(__name__)


def log_away(group: str, route: TopicRoute) -> None:
    """Log a warning for each broker that carries queues of a topic and is away."""
    for line in describe_away((each for each in route.away if each.queues), "not read until it is back"):
        log.warning("consumer: broker away group=%s topic=%s state=%s", group, route.topic, line)
