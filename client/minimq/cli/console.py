"""`minimq console`: the cluster in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from minimq.cli.base import option, stop_on_signal
from minimq_common.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from minimq_common.security.credentials import CredentialsArgument
    from minimq_console.server import ConsoleServer

DEFAULT_PORT = 8088
_LOOK_S = 0.5


@click.command(short_help="Show the cluster in a browser.")
@option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Name or IP address to listen on.")
@option(
    "--port",
    type=int,
    default=DEFAULT_PORT,
    show_default=True,
    metavar="PORT",
    help="Port to listen on; 0 chooses a free port.",
)
@option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks at the whole cluster.",
)
@click.pass_obj
def console(nameserver: str, host: str, port: int, interval: float) -> None:
    """Show the cluster in a browser until Ctrl-C or SIGTERM: brokers, topics, messages, groups, and what is wrong.

    It reads the cluster, keeps the figures of the last hour in memory, and stores nothing. Every page is also there as
    JSON, with `?format=json` or `Accept: application/json`. It needs `pip install 'minimq[console]'`.

    \b
    Examples:
      minimq console
      minimq console --port 8080 --nameserver 10.0.0.1:9876,10.0.0.2:9876
      curl -s 'http://127.0.0.1:8088/?format=json'
    """  # noqa: D301 - click's mark for lines that stay as they are
    with stop_on_signal() as told, serving_console(nameserver, host, port, interval_s=interval) as served:
        click.echo(f"console of {nameserver}: {served.address}")
        click.echo("Ctrl-C ends it.")
        while not told.wait(_LOOK_S):
            if not served.is_running:
                raise Unavailable("the console has ended by itself; its log above says why")


@contextmanager
def serving_console(
    nameserver: str, host: str, port: int, *, interval_s: float = 2.0, credentials: CredentialsArgument | None = None
) -> Iterator[ConsoleServer]:
    """Serve the console of a cluster within the block.

    Args:
        nameserver: the name servers.
        host: name or IP address to listen on.
        port: its port; 0 chooses a free one.
        interval_s: seconds between two looks at the whole cluster.
        credentials: of the user with whose rights it looks; None for those of the environment.

    Raises:
        InvalidArgument: an argument breaks a rule, or the libraries of the console are missing.
        CannotListen: the address cannot be listened on.
    """
    try:
        from minimq_console.app import make_app
        from minimq_console.observer import Observer
        from minimq_console.server import serving
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"the console needs libraries that are not installed ({error.name}): pip install 'minimq[console]'"
        ) from error
    observer = Observer(nameserver, credentials, interval_s)
    with ExitStack() as opened:
        opened.callback(observer.close)
        served = opened.enter_context(serving(make_app(observer), host, port))
        observer.start()
        yield served
