"""The command `minimq-broker`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from minimq_broker.assembly import BrokerOptions
from minimq_broker.backup.check import Finding, check_directory, compare_directories
from minimq_broker.backup.copying import Moved, take_snapshot
from minimq_broker.backup.crash_note import leave_notes
from minimq_broker.backup.rebuild import rebuild as rebuild_directory
from minimq_broker.broker import Broker
from minimq_broker.log.segment import Segment
from minimq_common.errors import MinimqError
from minimq_common.names import check_address, check_named
from minimq_common.security.server_secrets import secrets_of, security_of
from minimq_common.serving import daemon
from minimq_common.serving.options import ServerGroup, from_command_line

#: Columns of a table that is not shown on a terminal.
_PIPE_WIDTH = 1000


@click.group(
    cls=ServerGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(daemon.version(), prog_name="minimq-broker")
@from_command_line(BrokerOptions, env_prefix="MINIMQ_BROKER")
@click.pass_context
def main(context: click.Context, options: BrokerOptions) -> None:
    """Run a broker: it stores messages, serves them, and registers with the name servers.

    Once it serves, it prints "ready broker HOST:PORT"; SIGTERM or Ctrl-C stops it. However it ends, no acknowledged
    message is lost.

    Times and sizes may have a unit, such as 3d and 64MiB. Each option can also be set by a variable, such as
    MINIMQ_BROKER_DATA_DIR for --data-dir, or in a file (--config).
    """
    context.obj = options
    if context.invoked_subcommand is None:
        leave_notes(options.data_dir)
        daemon.run("broker", Broker(options), log_level=options.log_level, log_format=options.log_format)


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--compare",
    "other",
    type=click.Path(path_type=Path),
    metavar="OTHER",
    help="Also compare its log byte by byte with that of another replica, given by its data directory.",
)
def check(directory: Path, other: Path | None) -> None:
    """Verify every checksum and every index row of a data DIRECTORY whose broker is stopped.

    Prints a table of all that is damaged, and of what to do about it. The exit status is 0 if nothing is damaged or
    differs, else 1.
    """
    with _failing():
        report = check_directory(directory, watch=_with_a_bar if sys.stderr.isatty() else iter)
        comparison = None if other is None else compare_directories(directory, other)
    if report.findings:
        _print_table(report.findings)
    click.echo(report.summary)
    if comparison is not None:
        click.echo(comparison.summary)
    sys.exit(1 if report.findings or (comparison is not None and comparison.difference is not None) else 0)


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--source", "address", required=True, metavar="HOST:PORT", help="The running broker, master or slave.")
@click.pass_obj
def snapshot(options: BrokerOptions, address: str, directory: Path) -> None:
    """Copy all data of a running broker into a DIRECTORY, with which a broker can be started.

    The copy ends at the position that was confirmed when it began. After an interruption, run it again with the same
    DIRECTORY: it starts over.

    Example: minimq-broker snapshot --source 127.0.0.1:10911 /backup/broker-a
    """
    with _failing(), _copy_bar() as began:
        check_named("--source", check_address, address)
        security = security_of(secrets_of(options.secrets, options.client_certificates))
        copy = take_snapshot(address, directory, options.segment_bytes, began, security)
        start, end = asyncio.run(copy)
    click.echo(f"copied positions {start} to {end} of the log: {end - start} bytes")


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--source", "address", required=True, metavar="HOST:PORT", help="The running master.")
@click.pass_obj
def rebuild(options: BrokerOptions, address: str, directory: Path) -> None:
    """Have the data DIRECTORY of a slave replaced by a copy of its master's data.

    For a slave with damaged data that is stopped. Checks that the master does not need this replica, and marks the
    directory: the next start of the broker deletes log and state, and copies everything.

    Example: minimq-broker rebuild --source 10.0.0.1:10911 /var/lib/minimq/broker-a
    """
    with _failing():
        check_named("--source", check_address, address)
        security = security_of(secrets_of(options.secrets, options.client_certificates))
        asyncio.run(rebuild_directory(directory, address, security))
    click.echo(f"marked {directory}: start its broker, which copies everything from its master")


def _print_table(findings: Sequence[Finding]) -> None:
    # Imported here, as in `_with_a_bar`. In a pipe, each finding is one line.
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, padding=(0, 2, 0, 0))
    table.add_column("file", no_wrap=True)
    for title in ("position", "what is damaged", "what to do"):
        table.add_column(title)
    for each in findings:
        table.add_row(each.file, "" if each.position is None else str(each.position), each.damage, each.remedy)
    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)


def _with_a_bar(segments: Sequence[Segment]) -> Iterable[Segment]:
    # Imported here, because a broker starts faster without them: they are a tenth of all its modules.
    from rich.console import Console
    from rich.progress import track

    return track(segments, "verifying", console=Console(stderr=True), transient=True)


@contextmanager
def _copy_bar() -> Iterator[Callable[[int, int], Moved]]:
    # Yields a function that starts a progress bar on stderr; without a terminal it shows nothing.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("copying"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with ExitStack() as opened:

        def began(start: int, end: int) -> Moved:
            bar = opened.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
            task = bar.add_task("copying", total=end - start)
            return lambda position: bar.update(task, completed=position - start)

        yield began if sys.stderr.isatty() else lambda start, end: lambda position: None


@contextmanager
def _failing() -> Iterator[None]:
    # Ends the process with one line on stderr and status 1 if the block fails.
    try:
        yield
    except MinimqError as error:
        click.echo(f"error: {error.message}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
