"""`minimq dlq`: show, resend and drop dead letters."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minimq.cli.away import tell_away
from minimq.cli.base import confirm, option, output_option, show, start_of, stop_on_signal
from minimq.cli.completion import complete_groups, complete_topics
from minimq.cli.dead_letter_lines import SHAPES
from minimq.cli.message_output import MessageOutput, OutputHalted
from minimq.operations.operation import Row, Table
from minimq.operations.values import TIME_HELP
from minimq_common.names import DEAD_LETTER_PREFIX, dead_letter_topic
from minimq_common.words import count_of

if TYPE_CHECKING:
    from minimq.admin import Admin
    from minimq.dead_letters.choice import Chosen
    from minimq_common.errors import DamagedMessages
    from minimq_common.moments import Time

F = TypeVar("F", bound=Callable[..., Any])

_COUNTS = Table(
    "no open dead letters",
    {
        "group": "Group",
        "topic": "Topic",
        "reason": "Reason",
        "count": "Count",
        "oldest": "Oldest",
        "newest": "Newest",
    },
)
#: Messages that are written at a time.
_AT_ONCE = 500


def _admin(nameserver: str) -> Admin:
    from minimq.admin import Admin

    return Admin(nameserver)


@click.group(short_help="Show, resend or drop dead letters.")
def dlq() -> None:
    """Show, resend or drop the messages that groups could not process.

    A dead letter is open until it is resent or dropped.
    """


def _time_of(context: click.Context, parameter: click.Parameter, text: str | None) -> Time | None:
    """Return the time in an option."""
    return start_of(context, parameter, text, also="")


def _choice_options(command: F) -> F:
    """Add the options that select dead letters."""
    options = (
        option(
            "--from",
            metavar="TIME",
            callback=_time_of,
            help=f"Only dead letters that failed at or after this time. {TIME_HELP}",
        ),
        option("--until", metavar="TIME", callback=_time_of, help="Only dead letters that failed before this time."),
        option("--key", metavar="KEY", help="Only dead letters with this key."),
        option("--reason", metavar="TEXT", help="Only dead letters with this reason."),
        option("--topic", metavar="TOPIC", shell_complete=complete_topics, help="Only dead letters of this topic."),
        option(
            "--id",
            multiple=True,
            metavar="ID|BROKER:QUEUE@OFFSET",
            help="The dead letter with this message id, or at this place; `show` prints both. May be given several "
            "times.",
        ),
    )
    for one in reversed(options):
        command = one(command)
    return command


# ---- List ---------------------------------------------------------------------------------------


@dlq.command("list", short_help="Count the open dead letters.")
@click.argument("group", required=False, shell_complete=complete_groups)
@output_option
@click.pass_obj
def list_dead_letters(nameserver: str, group: str | None, output: str) -> None:
    """Count the open dead letters of a GROUP, or of all groups, by topic and reason.

    Brokers that are away are named on stderr; their dead letters are not counted.

    \b
    Examples:
      minimq dlq list
      minimq dlq list billing --output json
    """
    damage = _DamageReport("not counted")
    with _admin(nameserver) as admin:
        with _progress("counting") as progress:
            counts = admin.count_dead_letters(group, progress=progress, on_damage=damage)
        rows: list[Row] = [
            {
                "group": item.group,
                "topic": item.topic,
                "reason": item.reason,
                "count": item.count,
                "oldest": item.oldest,
                "newest": item.newest,
            }
            for item in counts
        ]
        _tell_away(admin, group, "not counted")
        if group is not None and not rows:
            _check_known(admin, group)
    show(output, _COUNTS, rows)
    if damage.is_found():
        sys.exit(1)


# ---- Show ---------------------------------------------------------------------------------------


@dlq.command("show", short_help="Show the open dead letters of a group.")
@click.argument("group", shell_complete=complete_groups)
@_choice_options
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
    damage = _DamageReport("not shown")
    with _admin(nameserver) as admin, stop_on_signal() as told:
        output = MessageOutput(sys.stdout.fileno(), SHAPES[shape], told)
        letters = itertools.islice(admin.dead_letters(group, on_damage=damage, **_chosen(chosen)), limit)
        try:
            while not told.is_set() and (part := list(itertools.islice(letters, _AT_ONCE))):
                output.write([letter.received for letter in part])
        except (BrokenPipeError, OutputHalted):  # the reader has exited
            return
        _tell_away(admin, group, "not read")
        if not output.count:
            _check_known(admin, group)
    if not output.count:
        click.echo("no open dead letters", err=True)
    if damage.is_found():
        sys.exit(1)


# ---- Resend, drop -------------------------------------------------------------------------------


@dlq.command(short_help="Resend dead letters to their topic, each once.")
@click.argument("group", shell_complete=complete_groups)
@_choice_options
@option("--all", "everything", envvar="MINIMQ_DLQ_RESEND_ALL", is_flag=True, help="All open dead letters of the group.")
@option("--to", metavar="TOPIC", shell_complete=complete_topics, help="Send them to this topic instead of their own.")
@option("--only-group", is_flag=True, help="Only this group gets them, not all groups that read the topic.")
@option("--dry-run", is_flag=True, help="Count them, and change nothing.")
@click.pass_obj
def resend(
    nameserver: str,
    /,
    *,
    group: str,
    everything: bool,
    to: str | None,
    only_group: bool,
    dry_run: bool,
    **chosen: Any,
) -> None:
    """Resend the messages of open dead letters of a GROUP, as they were first sent.

    Each is resent once, even if the command is killed and you run it again; at least once if it goes to another broker
    than that of its dead letter. Every group that reads the topic receives the messages, or, with --only-group, this
    group alone, with all of its tries. They go to their original queue if it is writable. The exit status is 1 if
    brokers with dead letters of the group are away, or some dead letters are damaged.

    \b
    Examples:
      minimq dlq resend billing --all --dry-run
      minimq dlq resend billing --from -1h --key o-17 --only-group
      minimq dlq resend billing --reason "listener raised ValueError" --to orders-by-hand
    """
    choice, damage = _some(chosen, everything=everything), _DamageReport("not resent")
    with _admin(nameserver) as admin, _progress("resending") as progress:
        count = admin.resend_dead_letters(
            group, to=to, only_group=only_group, dry_run=dry_run, progress=progress, on_damage=damage, **choice
        )
        is_away = _tell_away(admin, group, "not resent")
        if not count:
            _check_known(admin, group)
    click.echo(_said(count, "resent", dry_run=dry_run))
    if damage.is_found() or is_away:
        sys.exit(1)


@dlq.command(short_help="Drop dead letters: they are no longer shown or resent.")
@click.argument("group", shell_complete=complete_groups)
@_choice_options
@option("--all", "everything", envvar="MINIMQ_DLQ_DROP_ALL", is_flag=True, help="All open dead letters of the group.")
@option("--dry-run", is_flag=True, help="Count them, and change nothing.")
@option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def drop(nameserver: str, /, *, group: str, everything: bool, dry_run: bool, yes: bool, **chosen: Any) -> None:
    """Drop open dead letters of a GROUP: they are no longer shown or resent.

    They use disk space until brokers delete them (--dead-letter-bytes), or you delete the topic %DLQ%GROUP. On a
    terminal, the command asks for confirmation unless --yes is given.

    \b
    Examples:
      minimq dlq drop billing --until -30d --yes
      minimq dlq drop billing --id broker-a:0@17
    """
    choice, damage = _some(chosen, everything=everything), _DamageReport("not dropped")
    with _admin(nameserver) as admin:
        if not dry_run:
            confirm(lambda: _question(admin, group, choice), yes=yes)
        with _progress("dropping") as progress:
            count = admin.drop_dead_letters(group, dry_run=dry_run, progress=progress, on_damage=damage, **choice)
        is_away = _tell_away(admin, group, "not dropped")
        if not count:
            _check_known(admin, group)
    click.echo(_said(count, "dropped", dry_run=dry_run))
    if damage.is_found() or is_away:
        sys.exit(1)


def _question(admin: Admin, group: str, choice: Chosen) -> str:
    """Return the question with the number of dead letters; an empty text for none."""
    count = admin.drop_dead_letters(group, dry_run=True, on_damage=lambda _: None, **choice)
    return f"Drop {count_of(count, 'dead letter')} of group {group}?" if count else ""


# ---- Both ---------------------------------------------------------------------------------------


def _chosen(given: dict[str, Any]) -> Chosen:
    """Return the selection by the options."""
    return {
        "since": given["from"],
        "until": given["until"],
        "key": given["key"],
        "reason": given["reason"],
        "topic": given["topic"],
        "ids": given["id"] or None,
    }


def _some(given: dict[str, Any], *, everything: bool) -> Chosen:
    """Return the selection by the options, at least one of which is required."""
    is_choice = any(given.values())
    if everything == is_choice:
        excluded = "--all excludes options that choose some"
        raise click.UsageError(excluded if everything else "choose some (--from, --key, --id ...), or give --all")
    return _chosen(given)


def _tell_away(admin: Admin, group: str | None, consequence: str) -> bool:
    """Report on stderr the absent brokers with dead letters of a group, or of any; return whether there are any."""
    from minimq.routes.away import by_broker

    topic = None if group is None else dead_letter_topic(group)
    routes = [route for route in admin.routes() if topic in (None, route.topic)]
    away = by_broker(each for route in routes if route.topic.startswith(DEAD_LETTER_PREFIX) for each in route.away)
    tell_away(away, consequence)
    return bool(away)


def _check_known(admin: Admin, group: str) -> None:
    """Raise `GroupNotFound` for a group that has no topic of dead letters either: its name may be mistyped."""
    topic = dead_letter_topic(group)
    if all(route.topic != topic for route in admin.routes()):
        admin.describe_group(group)


class _DamageReport:
    """Names damaged batches on stderr, and counts them.

    Args:
        consequence: "not shown", "not resent".
    """

    def __init__(self, consequence: str) -> None:
        self._consequence = consequence
        self._count = 0

    def __call__(self, error: DamagedMessages) -> None:
        self._count += 1
        click.echo(f"damaged, {self._consequence}: {error.message}", err=True)

    def is_found(self) -> bool:
        """Return whether there is damage; its extent is told at the end."""
        if self._count:
            are = "batch is" if self._count == 1 else "batches are"
            click.echo(f"{self._count} {are} damaged: run minimq-broker check on their brokers", err=True)
        return bool(self._count)


def _said(count: int, done: str, *, dry_run: bool) -> str:
    would = f"dry run, nothing was changed; without --dry-run {count_of(count, 'dead letter')} would be {done}"
    return would if dry_run else f"{count_of(count, 'dead letter')} {done}"


@contextmanager
def _progress(doing: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda seen, total: bar.update(task, completed=seen, total=total)
