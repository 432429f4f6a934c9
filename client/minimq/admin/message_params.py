"""The fields of a message as options of commands and inputs of forms."""

from __future__ import annotations

from minimq.admin.operation import Param
from minimq.admin.values import any_moment, seconds
from minimq_common.model import FIELDS

_READ = {"duration": seconds, "time": any_moment}


def message_params(*, of_form: bool = False) -> dict[str, Param]:
    """Return the parameters of `MessageFields` by name; those that the command, or the form, lacks are hidden."""
    return {
        name: Param(
            flag=each.flag,
            metavar=each.metavar,
            help=each.help,
            read=_READ.get(each.kind),
            is_hidden=not (each.label if of_form else each.flag),
        )
        for name, each in FIELDS.items()
    }
