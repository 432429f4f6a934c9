"""`minimq dlq describe`: dead letters as lines of stdout."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import click
import msgspec

from minimq.admin import values
from minimq.admin.message_rows import body_fields, field_lines
from minimq.admin.texts import missing, printable, shown_body
from minimq.admin.views import row_of
from minimq.features.dead_letters.dead_letter import DeadLetterFilter
from minimq.features.dead_letters.operations import CHOICE, check_known, damage_notes
from minimq_cli.base import stop_on_signal
from minimq_cli.commands import LIMIT, declared, output_param
from minimq_cli.message_output import LineOf, MessageOutput, OutputHalted, as_body

if TYPE_CHECKING:
    from minimq.consuming.received import ReceivedMessage
    from minimq_common.errors import DamagedMessages
    from minimq_common.model import OfflineBroker


def _row_of(message: ReceivedMessage) -> dict[str, Any]:
    from minimq.features.dead_letters.dead_letter import DeadLetter

    letter = DeadLetter(message)
    origin = letter.origin_queue
    row = row_of(
        letter,
        keep=("group", "place", "reason", "delivery_count", "died_at", "topic"),
        broker=origin.broker_name if origin else None,
        queue=origin.queue_id if origin else None,
        offset=letter.origin_offset,
        stored_at=letter.origin_stored_at,
    )
    return row | row_of(letter, keep=("message_id", "tag", "keys", "properties", "born_at"))


def _as_text(message: ReceivedMessage) -> bytes:
    lines = [*field_lines(_row_of(message)), printable(shown_body(message.body)), ""]
    return "\n".join(lines).encode(errors="backslashreplace")


def _as_json(message: ReceivedMessage) -> bytes:
    return msgspec.json.encode({**_row_of(message), **body_fields(message.body)})


#: The formats by value of `--output`.
FORMATS: Mapping[str, LineOf] = {"table": _as_text, "raw": as_body, "json": _as_json, "jsonl": _as_json}
_OUTPUT = output_param(
    *FORMATS, help="Several lines for each dead letter (table), the body alone (raw), or a JSON object on each line."
)


@declared("describe", "Show the open dead letters of a group.", abouts=CHOICE)
def describe(
    nameserver: str,
    group: values.GroupName,
    *,
    limit: Annotated[int | None, replace(LIMIT, help="End after N dead letters.")] = None,
    output: Annotated[str, _OUTPUT] = "table",
    **chosen: Unpack[DeadLetterFilter],
) -> None:
    """Show the open dead letters of a GROUP, and leave no trace.

    \b
    Examples:
      minimq dlq describe billing --limit 10
      minimq dlq describe billing --since -1h --reason "listener raised ValueError" -o jsonl
      minimq dlq describe billing --id broker-a:0@17
    """
    damages: list[DamagedMessages] = []
    offline: list[OfflineBroker] = []
    from minimq.admin.admin import Admin

    with Admin(nameserver) as admin, stop_on_signal() as told:
        lines = MessageOutput(sys.stdout.fileno(), FORMATS[output], told)
        found = admin.dead_letters(group, on_damage=damages.append, on_offline=offline.append, **chosen)
        letters = itertools.islice(found, limit)
        try:
            for letter in itertools.takewhile(lambda _: not told.is_set(), letters):
                lines.write([letter.received])
        except (BrokenPipeError, OutputHalted):  # the reader has exited
            return
        notes = [*damage_notes(damages, "not shown"), *missing(offline, {}, "not read")]
        if not lines.count:
            check_known(admin, group)
    for note in notes:
        click.echo(note, err=True)
    if not lines.count:
        click.echo("no open dead letters", err=True)
    if damages:
        sys.exit(1)
