"""The command `minimq` itself."""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any

import click

from minimq.cli.base import option
from minimq_common.errors import InvalidArgument, MiniMQError

#: Every command, in the order of the help, and where it is.
_COMMANDS = {
    "local": "minimq.cli.local:local",
    "topic": "minimq.cli.topic:topic",
    "group": "minimq.cli.group:group",
    "route": "minimq.cli.route:route",
    "cluster": "minimq.cli.cluster:cluster",
    "produce": "minimq.cli.produce:produce",
    "consume": "minimq.cli.consume:consume",
    "bench": "minimq.cli.bench:bench",
}


#: Exit status of a command that Ctrl-C ended, as shells have it.
_INTERRUPTED = 130


class _Main(click.Group):
    """Loads commands when they are needed, and turns errors of minimq and Ctrl-C into an exit status."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as click has it
        """Run as the process: nothing is said about a Ctrl-C that comes while the interpreter ends."""
        try:
            return super().__call__(*args, **kwargs)
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # noqa: ANN401 - as click has it
        try:
            return super().make_context(*args, **kwargs)
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click has it
        try:
            return super().invoke(ctx)
        except MiniMQError as error:
            click.echo(f"error: {error.message}", err=True)
            # A name or number that breaks a rule is wrong usage, whoever noticed it.
            sys.exit(2 if isinstance(error, InvalidArgument) else 1)
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        # It takes a third of the time of --help.
        from minimq_common.daemon import version

        click.echo(f"minimq, version {version()}")
        context.exit()


@click.group(
    cls=_Main,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "auto_envvar_prefix": "MINIMQ",
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@option(
    "-n",
    "--nameserver",
    default="127.0.0.1:9876",
    show_default=True,
    metavar="HOST:PORT[,HOST:PORT]",
    help="Name servers of the cluster.",
)
@click.pass_context
def main(context: click.Context, nameserver: str) -> None:
    """Talk to a minimq cluster, or run one on this machine.

    \b
    minimq local                                       a cluster, until Ctrl-C; then, in another terminal:
    minimq topic create orders
    echo hello | minimq produce orders
    minimq consume orders --group audit --exit-at-end

    Each option may be given as a variable as well: --queues of `topic create` is MINIMQ_TOPIC_CREATE_QUEUES. The exit
    status is 0 when it is done, 1 when it failed, 2 when it was called wrongly, and 130 when Ctrl-C ended it before it
    was done; `local` and `consume` are done then.
    """  # noqa: D301 - click's mark for lines that stay as they are
    context.obj = nameserver
