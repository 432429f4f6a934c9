"""The command `minimq` itself."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final

import click

from minimq.options import DEFAULT_NAMESERVER
from minimq_cli.base import Option
from minimq_common.errors import InvalidArgument, MinimqError
from minimq_common.names import check_named

#: Every command in the order of the help: where it is defined, and its short help, which is shown without an import.
COMMANDS = {
    "local": ("minimq_cli.local:local", "Run a whole cluster on this machine until Ctrl-C or SIGTERM."),
    "topic": ("minimq_cli.nouns:topic", "Create, list, describe, change and delete topics."),
    "group": ("minimq_cli.nouns:group", "Show, reset or delete consumer groups."),
    "route": ("minimq_cli.nouns:route", "Show the brokers of a topic, as clients see them."),
    "cluster": ("minimq_cli.nouns:cluster", "Show the brokers, and set what clients may do with each."),
    "top": ("minimq_cli.top:top", "Show the activity of the cluster, live."),
    "console": ("minimq_cli.console:console", "Show the cluster in a browser."),
    "produce": ("minimq_cli.produce:produce", "Send the lines of a file or of stdin as messages."),
    "consume": ("minimq_cli.consume:consume", "Write the messages of a topic to stdout."),
    "request": ("minimq_cli.request:request", "Send a request, and print the reply."),
    "message": ("minimq_cli.nouns:message", "Find and trace single messages."),
    "peek": ("minimq_cli.peek:peek", "Show the messages of a topic, without a group."),
    "delayed": ("minimq_cli.nouns:delayed", "List or recall delayed messages."),
    "transaction": ("minimq_cli.nouns:transaction", "List open transactions, or end some by hand."),
    "dlq": ("minimq_cli.nouns:dlq", "Describe, resend or delete dead letters."),
    "bench": ("minimq_cli.bench:bench", "Measure throughput and latency."),
    "secure": ("minimq_cli.secure:secure", "Make certificates and credentials."),
    "user": ("minimq_cli.user:user", "Add users, grant rights, and rotate or revoke keys."),
    "access": ("minimq_cli.user:access", "Check the file of users and rules."),
    "can": ("minimq_cli.user:can", "Show whether a USER may do something, and by which rule."),
}

#: Names of the parameters that all commands share.
_NAMESERVER, _CREDENTIALS = "nameserver", "credentials"

#: Reasons of a failed write other than a reader that has exited.
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

#: Exit status of a command that Ctrl-C ended, as in shells.
_INTERRUPTED = 130


class _Main(click.Group):
    """Loads commands when they are needed, and turns errors of minimq and Ctrl-C into an exit status."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as the process, and print nothing about a Ctrl-C while the interpreter exits."""
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # for terminals and pipes that are not in UTF-8
        try:
            return super().__call__(*args, **kwargs)
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)
        except OSError as error:
            if error.errno not in _NOT_WRITTEN or error.filename is not None:
                raise
            with Path(os.devnull).open("wb") as nowhere:  # the interpreter flushes stdout again when it exits
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
            click.echo(f"error: cannot write the output: {error.strerror}", err=True)
            sys.exit(1)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        if cmd_name not in ("local", "secure", "user", "can", "access"):
            _accept_everywhere(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MinimqError as error:
            click.echo(f"error: {error.message}", err=True)
            # An invalid name or number is wrong usage, wherever it was detected.
            sys.exit(2 if isinstance(error, InvalidArgument) else 1)
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)


def _accept_everywhere(command: click.Command) -> None:
    """Add --server and --credentials to a command and all below it, so that they may stand anywhere."""
    if not any(parameter.name == _NAMESERVER for parameter in command.params):
        for flags, metavar, what, use in (_SERVER, _FILE):
            text = f"{what}; also accepted before the command."
            option = click.Option(flags, metavar=metavar, help=text, is_eager=True, expose_value=False, callback=use)
            option.allow_from_autoenv = False
            command.params.append(option)
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _accept_everywhere(below)


def _use_nameserver(context: click.Context, _option: click.Parameter, nameserver: str | None) -> None:
    if nameserver is not None:
        context.obj = nameserver
        context.meta[_NAMESERVER] = True  # takes precedence over the name servers in credentials


def _use_credentials(context: click.Context, _option: click.Parameter, credentials: str | None) -> None:
    """Make all clients of this process use the credentials, and their name servers unless others are given."""
    if credentials is None:
        return
    from minimq_common.security.channel_security import VARIABLE, open_credentials
    from minimq_common.security.credentials import Credentials

    if credentials and context.get_parameter_source(_CREDENTIALS) is not click.core.ParameterSource.ENVIRONMENT:
        check_named("--credentials", Credentials, credentials)
    former = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = credentials
    context.find_root().call_on_close(lambda: _restore(VARIABLE, former))
    opened = open_credentials(None)
    if opened is not None and not context.meta.get(_NAMESERVER):
        context.obj = ",".join(opened.nameservers)


def _restore(variable: str, former: str | None) -> None:
    if former is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = former


#: The options that all commands share: flags, metavar, help, and the function that uses the value.
_SERVER: Final = (
    ["-s", "--server", _NAMESERVER],
    "HOST:PORT[,HOST:PORT]",
    "Name servers of the cluster",
    _use_nameserver,
)
_FILE: Final = (["--credentials"], "FILE", "Credentials file of a user", _use_credentials)
_SERVERS: Final = "those of the credentials, or 127.0.0.1:9876"


def _show_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        # This import takes a third of the time of --help.
        from minimq_common.serving.daemon import version

        click.echo(f"minimq, version {version()}")
        context.exit()


@click.group(
    cls=_Main,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "auto_envvar_prefix": "MINIMQ"},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.option(*_SERVER[0], metavar=_SERVER[1], help=f"{_SERVER[2]}.", show_default=_SERVERS, cls=Option)
@click.option(*_FILE[0], metavar=_FILE[1], help=f"{_FILE[2]}, for a cluster with TLS.", cls=Option)
@click.pass_context
def main(context: click.Context, nameserver: str | None, credentials: str | None) -> None:
    """Work with a minimq cluster, or run one on this machine.

    \b
    minimq local                                       a cluster, until Ctrl-C; then, in another terminal:
    minimq topic create orders
    echo hello | minimq produce orders
    minimq consume orders --group audit --exit-at-end

    Each option can also be set by a variable, shown in the --help of its command: --queues of `topic create` is
    MINIMQ_TOPIC_CREATE_QUEUES. The exit status is 0 for success, 1 for a failure, 2 for wrong usage, and 130 if Ctrl-C
    ended the command early; it is the normal end of `local` and `consume`.
    """
    context.obj = DEFAULT_NAMESERVER
    _use_nameserver(context, context.command.params[0], nameserver)
    _use_credentials(context, context.command.params[0], credentials)
