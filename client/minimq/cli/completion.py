"""Shell completion of names, from the name servers within a short time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from minimq_common.errors import MiniMQError

if TYPE_CHECKING:
    from minimq.admin import Admin

Complete = Callable[[click.Context, click.Parameter, str], list[str]]

#: Time limit of one query: the shell waits for the answer.
_ANSWER_S = 0.5


def complete(names: str) -> Complete | None:
    """Return a function that completes "topics", "groups", "brokers" or "users"; None for no names."""
    return _COMPLETE.get(names)


def _completion(list_names: Callable[[Admin], list[str]]) -> Complete:
    def completed(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        logging.getLogger("minimq").setLevel(logging.CRITICAL)  # brokers that do not answer do not matter here
        from minimq.admin import Admin

        given = context.find_root().params
        nameserver = context.obj or given["nameserver"]
        try:
            with Admin(nameserver, timeout_s=_ANSWER_S, credentials=given["credentials"]) as admin:
                names = list_names(admin)
        except MiniMQError:  # a shell cannot show an error
            return []
        # Topics of minimq itself only after a %.
        return [name for name in names if name.startswith(begun) and name.startswith("%") == begun.startswith("%")]

    return completed


complete_topics = _completion(lambda admin: admin.list_topics())
complete_groups = _completion(lambda admin: admin.list_groups())
_COMPLETE = {
    "topics": complete_topics,
    "groups": complete_groups,
    "brokers": _completion(lambda admin: sorted({each.broker_name for each in admin.cluster()})),
    "users": _completion(lambda admin: sorted(admin.access().users)),
}
