"""Shell completion of the names of topics and groups, from the name servers within a short time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from minimq_common.errors import MiniMQError

if TYPE_CHECKING:
    from minimq.admin import Admin

#: Time limit of one query: the shell waits for the answer.
_ANSWER_S = 0.5


def complete_topics(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the topics with this prefix; topics of minimq itself only after a %."""
    try:
        with _admin(context) as admin:
            names = admin.list_topics()
    except MiniMQError:  # a shell cannot show an error
        return []
    return [name for name in names if name.startswith(begun) and name.startswith("%") == begun.startswith("%")]


def complete_groups(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the consumer groups with this prefix."""
    logging.getLogger("minimq").setLevel(logging.CRITICAL)  # brokers that do not answer do not matter here
    try:
        with _admin(context) as admin:
            return [name for name in admin.list_groups() if name.startswith(begun)]
    except MiniMQError:
        return []


def _admin(context: click.Context) -> Admin:
    """Query the address given after a command, else that before it, or the default."""
    from minimq.admin import Admin

    given = context.find_root().params
    return Admin(context.obj or given["nameserver"], timeout_s=_ANSWER_S, credentials=given["credentials"])
