"""The command `minimq-nameserver`."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import click

from minimq_common.errors import StoreError
from minimq_common.serving import daemon
from minimq_common.serving.options import ServerGroup, from_command_line
from minimq_common.text_units import count_of
from minimq_nameserver.controller.decisions import DecisionFile
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer


@click.group(
    cls=ServerGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(daemon.version(), prog_name="minimq-nameserver")
@from_command_line(NameServerOptions, env_prefix="MINIMQ_NAMESERVER")
@click.pass_context
def main(context: click.Context, options: NameServerOptions) -> None:
    """Run a name server: the registry through which clients find the brokers that carry a topic.

    It keeps everything in memory. For redundancy, start several, and give all their addresses to every broker and
    client; name servers do not know each other. Once it serves, it prints "ready nameserver HOST:PORT"; SIGTERM or
    Ctrl-C stops it.

    Times may have a unit, such as 2m. Each option can also be set by a variable, such as MINIMQ_NAMESERVER_LISTEN for
    --listen, or in a file (--config).
    """
    if context.invoked_subcommand is None:
        daemon.run("nameserver", NameServer(options), log_level=options.log_level, log_format=options.log_format)


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
def check(directory: Path) -> None:
    """Verify every page and every checksum in the DIRECTORY of a controller whose name server is stopped.

    The exit status is 0 if all is well, 1 if something is damaged.
    """
    try:
        with closing(DecisionFile(directory, readonly=True)) as decisions:
            click.echo(f"clean: {count_of(len(decisions.load()), 'replica set')}")
    except StoreError as error:
        click.echo(f"error: {error.message}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
