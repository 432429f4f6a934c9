"""`minimq dlq describe`: dead letters as lines of stdout."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Unpack

import click
import msgspec

from minimq.admin import values
from minimq.admin.messages import body_fields
from minimq.admin.texts import instant_of, missing, printable, shown_body
from minimq.admin.views import row_of
from minimq.features.dead_letters.dead_letter import DeadLetterFilter
from minimq.features.dead_letters.operations import CHOICE, check_known, damage_notes
from minimq_cli.base import stop_on_signal
from minimq_cli.commands import LIMIT, declared, output_param
from minimq_cli.message_output import LineOf, MessageOutput, OutputHalted, as_body
from minimq_common.errors import TransportError

if TYPE_CHECKING:
    from minimq.consuming.received import ReceivedMessage
    from minimq.features.dead_letters.dead_letter import DeadLetter
    from minimq_common.errors import DamagedMessages
    from minimq_common.model import OfflineBroker

#: Number of dead letters in one write.
_AT_ONCE = 500


def _as_text(message: ReceivedMessage) -> bytes:
    from minimq.features.dead_letters.dead_letter import DeadLetter

    letter = DeadLetter(message)
    origin = f"{letter.origin_queue or letter.topic or '-'}"
    origin += "" if letter.origin_offset is None else f", offset {letter.origin_offset}"
    lines = [
        f"{letter.place}  {instant_of(letter.died_at)}  {letter.reason}  deliveries {letter.delivery_count}",
        f"  from {origin}, id {letter.message_id}",
    ]
    if letter.tag is not None:
        lines.append(f"  tag {letter.tag}")
    if letter.keys:
        lines.append(f"  keys {', '.join(letter.keys)}")
    lines += [f"  {name} = {value}" for name, value in sorted(letter.properties.items())]
    lines.append(f"  {shown_body(letter.body)}")
    return "\n".join(map(printable, lines)).encode(errors="backslashreplace")


def _as_json(message: ReceivedMessage) -> bytes:
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
    row |= row_of(letter, keep=("message_id", "tag", "keys", "properties", "born_at"))
    return msgspec.json.encode({**row, **body_fields(letter.body)})


#: The formats by value of `--output`.
FORMATS: Mapping[str, LineOf] = {"table": _as_text, "raw": as_body, "json": _as_json, "jsonl": _as_json}
_OUTPUT = output_param(
    *FORMATS, help="Several lines for each dead letter (table), the body alone (raw), or a JSON object on each line."
)


def _parts(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Yield letters, many at a time. Before an error, such as of a broker that hangs, come those of the others."""
    part: list[DeadLetter] = []
    try:
        for letter in letters:
            part.append(letter)
            if len(part) == _AT_ONCE:
                yield part
                part = []
    except TransportError:
        yield part
        raise
    yield part


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
            for part in _parts(letters):
                if told.is_set():
                    break
                lines.write([letter.received for letter in part])
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
