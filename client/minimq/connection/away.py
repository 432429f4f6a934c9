"""Words for brokers that are away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from minimq_common.errors import TopicUnavailable
from minimq_common.model import AwayBroker, TopicRoute
from minimq_common.words import count_of


def state_of(away: AwayBroker) -> str:
    """Return since when a broker is away, in local time: "away since 12:03:05", "away since 12:03:05 (stopped)".

    The date stands before the time unless it is today.
    """
    since = away.since.astimezone()
    is_today = since.date() == datetime.now().astimezone().date()
    stopped = " (stopped)" if away.stopped else ""
    return f"away since {since:{'%H:%M:%S' if is_today else '%Y-%m-%d %H:%M:%S'}}{stopped}"


def describe_away(away: Iterable[AwayBroker], lacking: str) -> list[str]:
    """Return a sentence for each broker: "broker-a: away since 12:03:05 (stopped), 4 queues not counted"."""
    return [f"{each.broker_name}: {state_of(each)}, {count_of(each.queues, 'queue')} {lacking}" for each in away]


def by_broker(away: Iterable[AwayBroker]) -> tuple[AwayBroker, ...]:
    """Return each broker once, sorted by name, with the sum of its queues: what is away of several topics."""
    found: dict[str, AwayBroker] = {}
    for each in away:
        known = found.get(each.broker_name)
        found[each.broker_name] = replace(each, queues=each.queues + known.queues) if known else each
    return tuple(found[name] for name in sorted(found))


def check_route(route: TopicRoute) -> TopicRoute:
    """Return a route that leads anywhere. Raises `TopicUnavailable` when all brokers of the topic are away."""
    if route.queues or not route.away:
        return route
    raise TopicUnavailable(f"topic {route.topic} cannot be reached: {say_away(route.away)}", away=route.away)


def say_away(away: Sequence[AwayBroker]) -> str:
    """Return which brokers are away and since when, at least one, and what to do about it; for an error."""
    states = ", ".join(f"{each.broker_name} is {state_of(each)}" for each in away)
    forget = " and ".join(f"`minimq cluster forget {each.broker_name}`" for each in away)
    if len(away) > 1:
        return f"{states}; start them again, or, if one will not come back, have it forgotten: {forget}"
    return f"{states}; start it again, or, if it will not come back, have it forgotten with {forget}"
