"""Output of commands about brokers that are away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from minimq.operations.operation import Row

if TYPE_CHECKING:
    from minimq_common.model import AwayBroker


def tell_away(away: Iterable[AwayBroker], lacking: str) -> None:
    """Report on stderr the queues of brokers that are away, a line for each broker; see `describe_away`."""
    from minimq.routes.away import describe_away

    for line in describe_away(away, lacking):
        click.echo(line, err=True)


def tell_unanswered(unanswered: Mapping[str, str], lacking: str) -> None:
    """Report on stderr the queues of brokers that are registered and do not answer."""
    for line in describe_unanswered(unanswered, lacking):
        click.echo(line, err=True)


def describe_unanswered(unanswered: Mapping[str, str], lacking: str) -> list[str]:
    """Return a line for each broker that does not answer, from the reason and what does not happen to its queues."""
    return [
        f"{broker}: does not answer, its queues are {lacking} ({reason})"
        for broker, reason in sorted(unanswered.items())
    ]


def tell_left_out(away: Iterable[AwayBroker], consequence: str) -> bool:
    """Report on stderr the brokers that are away, a line for each, and return whether there are any.

    A command without an option to continue without them then exits with status 1.

    Args:
        away: the brokers.
        consequence: "not changed", "brings the topic back".
    """
    from minimq.routes.away import state_of

    lines = [f"{each.broker_name}: {state_of(each)}, {consequence}" for each in away]
    for line in lines:
        click.echo(line, err=True)
    return bool(lines)


def away_to_json(away: Iterable[AwayBroker]) -> list[Row]:
    """Return brokers that are away, with the number of queues of each."""
    return [
        {"broker": each.broker_name, "since": each.since, "stopped": each.stopped, "queues": each.queues}
        for each in away
    ]
