"""Commands made from the operations that `Admin` declares."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import click

from minimq.admin.operation import Arguments, Operation, Param, Parameter, operations_of, read
from minimq.admin.views import Rows, View, json_text
from minimq_cli.base import Option, confirm, show_json, show_table, tell
from minimq_common.errors import MinimqError

if TYPE_CHECKING:
    from minimq.admin.admin import Admin


def output_param(*formats: str, help: str = "Format of the result.") -> Param:  # noqa: A002 - as in `Param`
    """Return the option --output with some of table, json, jsonl and raw."""
    return Param(letter="-o", choices={name: name for name in formats}, help=help)


_FORMATS = ("table", "json", "jsonl")
#: The option --output of commands that print a result.
Output = Annotated[str, output_param(*_FORMATS)]
#: The option of the number of results.
LIMIT = Param(letter="-n", low=1, metavar="N")
_METAVARS = {int: "N", float: "NUMBER"}

Complete = Callable[[click.Context, click.Parameter, str], list[str]]
#: Timeout of a query for completion: the shell waits for it.
_ANSWER_S = 0.5


class Command(click.Command):
    """The command of an operation."""

    def __init__(self, operation: Operation, **about: Any) -> None:
        super().__init__(operation.name.split()[-1], **about)
        self.operation = operation


def add_operations(group: click.Group, owner: type, noun: str) -> None:
    for each in operations_of(owner):
        first, _, verb = each.name.rpartition(" ")
        if first == noun and verb:
            group.add_command(command_of(each), verb)


def command_of(operation: Operation) -> click.Command:
    params = _params(operation)

    @click.pass_obj
    def run(nameserver: str, /, **typed: Any) -> None:
        _run(operation, nameserver, typed)

    return Command(
        operation,
        callback=run,
        params=params,
        help=f"{operation.help}\n\nExample: minimq {operation.example or operation.name}",
        short_help=operation.summary,
    )


def declared(name: str, short: str, **about: Any) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function that takes the name servers and the options declared by its signature."""

    def command(function: Callable[..., None]) -> click.Command:
        declared = Operation(name, view=lambda *_: View(json=None), function=function, **about)

        @click.pass_obj
        def run(nameserver: str, /, **typed: Any) -> None:
            function(nameserver, **declared.arguments(declared.given(**values_of(declared.shown, typed))))

        return Command(declared, callback=run, params=options_of(declared.shown), help=declared.help, short_help=short)

    return command


def _params(operation: Operation) -> list[click.Parameter]:
    params = options_of(operation.shown)
    for param in params:
        if isinstance(param, click.Option):
            param.help = operation.with_flags(param.help or "")
    if not operation.reads:
        params.append(Option(["--dry-run"], is_flag=True, help="Show what would change, and change nothing."))
    if operation.asks:
        params.append(Option(["--yes"], is_flag=True, help="Do not ask for confirmation."))
    choice = click.Choice(_FORMATS)
    params.append(
        Option(["-o", "--output"], type=choice, default="table", show_default=True, help="Format of the result.")
    )
    return params


def _run(operation: Operation, nameserver: str, typed: dict[str, Any]) -> None:
    output, dry_run, yes = typed.pop("output"), typed.pop("dry_run", False), typed.pop("yes", False)
    from minimq.admin.admin import Admin

    given = operation.given(**values_of(operation.shown, typed))
    with Admin(nameserver) as admin:
        with _progress(operation, given):
            plan = operation.planned(admin, given)
        if dry_run and plan is not None:
            if output == "table":
                click.echo("dry run, nothing was changed:")
            show(plan.view(), output)
            sys.exit(0 if plan.is_complete else 1)
        if plan is not None and (question := operation.question(given, plan)):
            if sys.stdin.isatty() and not yes:
                with redirect_stdout(sys.stderr):  # stdout is for results
                    show(plan.view(), "table")
            confirm(question, yes=yes)
        with _progress(operation, given):
            result = operation.run(admin, given)
        view = operation.view(admin, given, result, plan)
        show(view, output, notes_first=operation.reads)
    if not view.is_complete:
        sys.exit(1)


def values_of(parameters: Sequence[Parameter], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Convert what click parsed to argument values, by parameter name."""
    source: dict[str, Any] = {}
    for each in parameters:
        given = typed.get(each.key)
        source[each.name] = given or None if each.is_many else given
    return read(parameters, source, lambda each: each.label)


# ---- Parameters -------------------------------------------------------------------------------------


def options_of(parameters: Iterable[Parameter]) -> list[click.Parameter]:
    return [_argument(each) if each.is_argument else _option(each) for each in parameters]


def _argument(parameter: Parameter) -> click.Argument:
    metavar = parameter.about.metavar
    if metavar and not parameter.is_required:
        metavar = f"[{metavar}]"
    return click.Argument(
        [parameter.name],
        required=parameter.is_required,
        metavar=metavar or None,
        shell_complete=_COMPLETE.get(parameter.about.complete),
    )


def _option(parameter: Parameter) -> click.Parameter:
    about = parameter.about
    names = [*filter(None, [about.letter]), parameter.flag, parameter.key]
    if parameter.kind is bool:
        return Option(names, is_flag=True, help=parameter.help)
    default = about.default
    if default is None and not parameter.is_required and not parameter.is_many and parameter.default is not None:
        default = str(parameter.default)
    shown = default is not None and default not in ("0", "0.0", "")
    if about.read and default in ("0", "0.0"):
        default = "default"
    return Option(
        names,
        required=parameter.is_required,
        multiple=parameter.is_many,
        show_default=shown,
        metavar=about.metavar or _METAVARS.get(parameter.kind),
        type=click.Choice(list(about.choices)) if about.choices else str,
        shell_complete=_COMPLETE.get(about.complete),
        help=f"{parameter.help} May be given several times." if parameter.is_many else parameter.help,
        **({} if default is None else {"default": default}),
    )


# ---- Output -----------------------------------------------------------------------------------------


def show(view: View, output: str, *, notes_first: bool = False) -> None:
    if notes_first:
        tell(view.notes)
    if output == "json":
        show_json(view.json)
    elif output == "jsonl":
        for item in view.json if isinstance(view.json, list) else [view.json]:
            click.echo(json.dumps(item, default=json_text))
    else:
        for line in view.lines:
            if isinstance(line, Rows):
                show_table(line.table, line.rows, without=line.without)
            else:
                click.echo(line)
    if not notes_first:
        tell(view.notes)


@contextmanager
def _progress(operation: Operation, given: Arguments) -> Iterator[None]:
    if any(each.name == "progress" for each in operation.parameters):
        with progress_bar() as given.progress:
            yield
    else:
        yield


@contextmanager
def progress_bar(
    total: int | None = None, *, of_bytes: bool = False, is_shown: bool = True
) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar of messages or bytes, only on a terminal; it disappears at the end."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich import progress
    from rich.console import Console

    columns = [progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeElapsedColumn()]
    if of_bytes:
        columns = [progress.BarColumn(), progress.DownloadColumn(), progress.TimeRemainingColumn()]
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=total)
        yield lambda done, of: bars.update(bar, completed=done, total=of)


# ---- Completion of names, by the name servers ---------------------------------------------------------


def _completion(list_names: Callable[[Admin], list[str]]) -> Complete:
    def completed(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        logging.getLogger("minimq").setLevel(logging.CRITICAL)  # no warnings about brokers that do not answer
        from minimq.admin.admin import Admin

        given = context.find_root().params
        nameserver = context.obj or given["nameserver"]
        try:
            with Admin(nameserver, timeout_s=_ANSWER_S, credentials=given["credentials"]) as admin:
                names = list_names(admin)
        except MinimqError:  # a shell cannot show an error
            return []
        # Topics of minimq itself are offered only after a %.
        return [name for name in names if name.startswith(begun) and name.startswith("%") == begun.startswith("%")]

    return completed


_COMPLETE = {
    "topics": _completion(lambda admin: admin.list_topics()),
    "groups": _completion(lambda admin: admin.list_groups()),
    "brokers": _completion(lambda admin: sorted({each.broker_name for each in admin.cluster()})),
}
