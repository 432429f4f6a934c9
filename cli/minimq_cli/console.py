"""`minimq console`: the cluster in a browser."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import click

from minimq.admin.operation import Param
from minimq_cli.base import stop_on_signal
from minimq_cli.commands import declared
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.serving.logs import RateLimitedHandler, formatter
from minimq_common.serving.open_files import open_more_files

if TYPE_CHECKING:
    from minimq_common.security.credentials import CredentialsArgument
    from minimq_console.server import ConsoleServer

DEFAULT_PORT = 8088
_LOOK_S = 0.5


@declared("console", "Show the cluster in a browser.")
def console(  # noqa: PLR0913 - the options of the command
    nameserver: str,
    *,
    host: Annotated[str, Param(metavar="HOST")] = "127.0.0.1",
    port: Annotated[int, Param(metavar="PORT")] = DEFAULT_PORT,
    interval_s: Annotated[float, Param(flag="--interval", low=0.2, high=3600)] = 2.0,
    allowed_hosts: Annotated[Sequence[str], Param(flag="--allowed-host", metavar="HOST")] = (),
    allow_changes: bool = False,
    allow_anyone: bool = False,
    tls_certificate: Annotated[str, Param(metavar="FILE")] = "",
    tls_key: Annotated[str, Param(metavar="FILE")] = "",
    root_path: Annotated[str, Param(metavar="PATH")] = "",
    trusted_proxies: Annotated[Sequence[str], Param(flag="--trusted-proxy", metavar="ADDRESS")] = (),
    registry: Annotated[str, Param(metavar="URL")] = "",
    secrets: Annotated[str, Param(metavar="DIR")] = "",
) -> None:
    """Show the cluster in a browser until Ctrl-C or SIGTERM: brokers, topics, messages, groups, and problems.

    It keeps the figures of the last hour in memory, and stores nothing. Programs use the JSON API below /api. It needs
    `pip install 'minimq[console]'`.

    With --registry, the page of a message shows its decoded body, which needs `pip install 'minimq[schemas]'`.

    On a secured cluster, give --credentials: each visitor then signs in with the key of a user. With --allow-changes,
    visitors may change what their rights allow; stderr gets a line for each change and each sign-in. With --secrets, a
    page shows the users and rules to visitors who may manage the cluster.

    \b
    Examples:
      minimq console
      minimq console --port 8080 --server 10.0.0.1:9876,10.0.0.2:9876
      minimq --credentials admin.minimq console --allow-changes

    Args:
        nameserver: of the cluster.
        host: name or IP address to listen on.
        port: port to listen on; 0 chooses a free port.
        interval_s: seconds between two refreshes of the figures.
        allowed_hosts: further name of the console, besides --host and localhost. Other names
            are rejected.
        allow_changes: offer actions that change the cluster, such as resetting offsets; otherwise the
            console only reads.
        allow_anyone: permit --allow-changes on a --host that others reach, although the cluster requires no
            keys.
        tls_certificate: serve HTTPS with this certificate chain, in PEM.
        tls_key: the private key of --tls-certificate, in PEM.
        root_path: path prefix of the console at a reverse proxy, such as /console.
        trusted_proxies: IP address or network of a proxy whose headers X-Forwarded-For, -Proto and -Prefix
            are trusted.
        registry: schema registry that decodes Avro, Protobuf and JSON bodies. Set a URL with a password,
            http://USER:PASSWORD@HOST:PORT, by the variable: other users see the options of a process.
        secrets: folder with access.toml, that of the servers or of `minimq secure init`; without it, the console knows
            the ids of keys, but no users.
    """
    given = dict(locals())
    open_more_files()
    with log_lines(), stop_on_signal() as told, serving_console(**given) as served:
        click.echo(f"console of {nameserver}: {served.address}")
        click.echo("Ctrl-C ends it.")
        while not told.wait(_LOOK_S):
            if not served.is_running:
                raise Unavailable("the console has ended by itself; its log above says why")


@contextmanager
def log_lines() -> Iterator[None]:
    """Log to stderr within the block: warnings, and the sign-ins and changes of a console."""
    root, audit, handler = logging.getLogger(), logging.getLogger("minimq.audit"), RateLimitedHandler()
    handler.setFormatter(formatter("text"))
    level = audit.level
    audit.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        audit.setLevel(level)
        handler.close()


@contextmanager
def serving_console(
    nameserver: str, host: str, port: int, *, credentials: CredentialsArgument | None = None, **options: Any
) -> Iterator[ConsoleServer]:
    """Serve the console of a cluster within the block, with other options of `ConsoleOptions`. Raises `MinimqError`."""
    try:
        from minimq_console.app import open_console
        from minimq_console.console_options import ConsoleOptions
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"the console needs libraries that are not installed ({error.name}): pip install 'minimq[console]'"
        ) from error
    with open_console(nameserver, ConsoleOptions(host.strip("[]"), port, **options), credentials) as served:
        yield served
