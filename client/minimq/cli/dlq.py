"""`minimq dlq`: show, resend and drop dead letters."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import click

from minimq.cli.base import option, stop_on_signal
from minimq.cli.commands import add_operations, options_of, values_of
from minimq.cli.completion import complete_groups
from minimq.cli.dead_letter_lines import SHAPES
from minimq.cli.message_output import MessageOutput, OutputHalted
from minimq.operations.letters import CHOICE, LetterOperations, away_with_letters, check_known, damage_notes
from minimq.operations.operation import operations_of
from minimq.operations.words import missing

if TYPE_CHECKING:
    from minimq_common.errors import DamagedMessages

#: Messages that are written at a time.
_AT_ONCE = 500


@click.group(short_help="Show, resend or drop dead letters.")
def dlq() -> None:
    """Show, resend or drop the messages that groups could not process.

    A dead letter is open until it is resent or dropped.
    """


add_operations(dlq, LetterOperations, "dlq")
_DROP = next(each for each in operations_of(LetterOperations) if each.name == "dlq drop")
#: The parameters that choose dead letters.
_CHOICE = [each for each in _DROP.shown if each.name in CHOICE]


@dlq.command("show", short_help="Show the open dead letters of a group.")
@click.argument("group", shell_complete=complete_groups)
@option(
    "--max",
    "limit",
    envvar="MINIMQ_DLQ_SHOW_MAX",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after N dead letters.",
)
@option(
    "--format",
    "shape",
    envvar="MINIMQ_DLQ_SHOW_FORMAT",
    type=click.Choice(list(SHAPES)),
    default="text",
    show_default=True,
    help="Several lines for each dead letter, the body alone, or one JSON object with everything.",
)
@click.pass_obj
def show_dead_letters(nameserver: str, /, *, group: str, limit: int | None, shape: str, **chosen: Any) -> None:
    """Show the open dead letters of a GROUP, and leave no trace.

    \b
    Examples:
      minimq dlq show billing --max 10
      minimq dlq show billing --from -1h --reason "listener raised ValueError" --format json
      minimq dlq show billing --id broker-a:0@17
    """
    damages: list[DamagedMessages] = []
    from minimq.admin import Admin

    with Admin(nameserver) as admin, stop_on_signal() as told:
        output = MessageOutput(sys.stdout.fileno(), SHAPES[shape], told)
        wanted = {each.name: value for each, value in values_of(_CHOICE, chosen)}
        letters = itertools.islice(admin.dead_letters(group, on_damage=damages.append, **wanted), limit)
        try:
            while not told.is_set() and (part := list(itertools.islice(letters, _AT_ONCE))):
                output.write([letter.received for letter in part])
        except (BrokenPipeError, OutputHalted):  # the reader has exited
            return
        notes = [
            *damage_notes(damages, "not shown"),
            *missing(away_with_letters(admin, group), {}, "not read"),
        ]
        if not output.count:
            check_known(admin, group)
    for note in notes:
        click.echo(note, err=True)
    if not output.count:
        click.echo("no open dead letters", err=True)
    if damages:
        sys.exit(1)


show_dead_letters.params[1:1] = options_of(_CHOICE)
