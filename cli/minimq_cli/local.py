"""`minimq local`: a whole cluster on this machine."""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from minimq.admin import values
from minimq.admin.operation import Param
from minimq_cli.base import stop_on_signal
from minimq_cli.commands import declared
from minimq_cli.console import DEFAULT_PORT, log_lines, serving_console
from minimq_common.errors import InvalidArgument, MinimqError, Unavailable

if TYPE_CHECKING:
    from minimq.local.local_cluster import LocalCluster
    from minimq.local.server_process import ServerProcess

_LOOK_S = 0.5
#: Seconds after which a server that has ended is started again.
_RESTART_S = 2.0
_NAMESERVER_PORT = 9876
#: The folder of a broker in the data directory: its letter, and its id if it is a slave.
_BROKER = re.compile(r"broker-([a-z])(?:-([1-9][0-9]?))?")

_SYNC = Param(help="Acknowledge messages only when the in-sync slaves have them (sync-master).")
_PORT = Param(metavar="PORT", help="Port of the name server; 0 chooses a free port.")
_QUEUES = Param(metavar="N", help="Queues of a topic that is created when a message is sent to it; 0 creates none.")
_NO_RESTART = Param(
    help="Leave servers that end by themselves down; otherwise they are restarted after a second or more."
)
_SECURE = Param(help="Use TLS and user keys: clients need the credentials file that the command prints.")
_CONSOLE = Param(help="Also serve the console of the cluster: see `minimq console`.")
_ALLOW = Param(help="With --console: offer actions that change the cluster.")


def _folder(what: str, text: str) -> Path:
    if not text:
        raise InvalidArgument(f"{what}: the name of the folder is empty")
    if (path := values.path(what, text)).is_file():
        raise InvalidArgument(f"{what} is {text!r}: it is a file")
    return path


_DATA_DIR = Param(metavar="DIR", read=_folder, help="Folder for data and logs; by default they are removed at the end.")


@declared("local", "Run a whole cluster on this machine until Ctrl-C or SIGTERM.")
def local(  # noqa: PLR0913 - the options of the command
    _nameserver: str,
    *,
    brokers: Annotated[int, Param(metavar="N", help="Number of brokers.")] = 2,
    slaves: Annotated[int, Param(metavar="N", help="Number of slaves of each broker.")] = 0,
    sync: Annotated[bool, _SYNC] = False,
    port: Annotated[int, _PORT] = _NAMESERVER_PORT,
    data_dir: Annotated[Path | None, _DATA_DIR] = None,
    auto_create_queues: Annotated[int, _QUEUES] = 4,
    no_restart: Annotated[bool, _NO_RESTART] = False,
    secure: Annotated[bool, _SECURE] = False,
    console: Annotated[bool, _CONSOLE] = False,
    console_port: Annotated[
        int, Param(metavar="PORT", help="Port of the console; 0 chooses a free port.")
    ] = DEFAULT_PORT,
    allow_changes: Annotated[bool, _ALLOW] = False,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C or SIGTERM.

    If a server ends by itself, the command prints its exit status and the end of its log, and starts it again with its
    data, unless --no-restart is given.

    With slaves, the name server is the controller, which promotes a slave when its master fails. With --sync, a receipt
    means that the slaves have the message, too.

    Example: minimq local --brokers 3 --slaves 1 --data-dir ./minimq-data
    """
    from minimq.local.local_cluster import LocalCluster

    if sync and not slaves:
        raise InvalidArgument("--sync is about slaves: give --slaves 1 or more as well")
    if allow_changes and not console:
        raise InvalidArgument("--allow-changes is about the console: give --console as well")
    options: dict[str, str | int] = {
        "auto_create_queues": auto_create_queues,
        **({"role": "sync-master"} if sync else {}),
    }
    with (
        stop_on_signal() as told,
        _check_data(LocalCluster(brokers, slaves, port, data_dir, secure=secure, broker_options=options)) as cluster,
        _console_of(cluster, console_port if console else None, allow_changes=allow_changes) as address,
    ):
        _introduce(cluster, address, is_kept=data_dir is not None)
        _watch(cluster, told, restart=not no_restart, is_kept=data_dir is not None)
        click.echo("stopping")


def _check_data(cluster: LocalCluster) -> LocalCluster:
    """Report brokers without data beside others with data. Raises `InvalidArgument` if data would not be used."""
    folders = (path for path in cluster.data_dir.glob("broker-*/") if any(path.iterdir()))
    found = {path.name: match for path in folders if (match := _BROKER.fullmatch(path.name))}
    started = [broker.name for broker in cluster.brokers]
    if left_out := sorted(found.keys() - started):
        brokers = max(ord(match[1]) - ord("a") + 1 for match in found.values())
        slaves = max(int(match[2] or 0) for match in found.values())
        raise InvalidArgument(
            f"{cluster.data_dir} holds data of {', '.join(left_out)}, whose messages would be missing: "
            f"give --brokers {brokers} --slaves {slaves} or more, or move that data elsewhere"
        )
    if found and (added := [name for name in started if name not in found]):
        held = ", ".join(sorted(found))
        click.echo(f"{cluster.data_dir} holds data of {held}; added without data: {', '.join(added)}", err=True)
    return cluster


@contextmanager
def _console_of(cluster: LocalCluster, port: int | None, *, allow_changes: bool) -> Iterator[str | None]:
    """Serve the console of a cluster within the block, unless the port is None; yields its address."""
    if port is None:
        yield None
        return
    own = cluster.credentials
    options = {"allow_changes": allow_changes, "secrets": "" if own is None else str(own.parent)}
    with log_lines(), serving_console(cluster.nameserver, "127.0.0.1", port, credentials=own, **options) as served:
        yield served.address


def _introduce(cluster: LocalCluster, console: str | None, *, is_kept: bool) -> None:
    for server in (*cluster.nameservers, *cluster.brokers):
        click.echo(f"{server.name:14}{server.address:22}pid {server.pid}")
    if console is not None:
        click.echo(f"{'console':14}{console}")
    click.echo(f"{'data':14}{cluster.data_dir}{'' if is_kept else ' (removed at the end; --data-dir keeps it)'}")
    click.echo("\nIn another terminal:")
    if cluster.credentials is not None:
        secrets = shlex.quote(str(cluster.credentials.parent))
        click.echo(f"  export MINIMQ_CREDENTIALS={shlex.quote(str(cluster.credentials))}    # of admin; others:")
        click.echo(f"  minimq user add alice --write 'orders*' --secrets {secrets} --to alice.minimq")
    elif cluster.nameserver != f"127.0.0.1:{_NAMESERVER_PORT}":
        click.echo(f"  export MINIMQ_NAMESERVER={cluster.nameserver}")
    click.echo("  echo hello | minimq produce orders")
    click.echo("  minimq consume orders --group audit --exit-at-end")
    click.echo("\nCtrl-C ends the cluster.")


def _watch(cluster: LocalCluster, told: threading.Event, *, restart: bool, is_kept: bool) -> None:
    """Report and restart servers that end unexpectedly, until the stop event. Raises `Unavailable` if none is left."""
    left = [*cluster.nameservers, *cluster.brokers]
    due: dict[str, float] = {}
    while left and not told.wait(_LOOK_S):
        for server in [server for server in left if not server.running]:
            if not restart:
                left.remove(server)
                click.echo(f"{_end_report(server)} {_remedy(server, left, is_kept=is_kept)}", err=True)
                continue
            if server.name not in due:
                report = _end_report(server)
            elif time.monotonic() < due[server.name]:
                continue
            else:
                failure = _start_again(server, told)
                if failure is None or told.is_set():
                    del due[server.name]
                    continue
                report = f"error: {failure.message}\n{server.name} does not run."
            due[server.name] = time.monotonic() + _RESTART_S
            click.echo(f"{report} It will be restarted in {_RESTART_S:g} s.", err=True)
    if not left:
        raise Unavailable("no server is left")


def _start_again(server: ServerProcess, told: threading.Event) -> MinimqError | None:
    """Start a server; if it does not serve, stop it and return the reason."""
    try:
        server.launch()
        server.wait_ready(told)
    except MinimqError as error:
        return error
    click.echo(f"{server.name} runs again, pid {server.pid}", err=True)
    return None


def _end_report(server: ServerProcess) -> str:
    return (
        f"error: {server.name} has ended unexpectedly with {server.end}; the end of its log:\n{server.log_tail()}\n"
        f"The whole log is in {server.log_path}."
    )


def _remedy(server: ServerProcess, left: Sequence[ServerProcess], *, is_kept: bool) -> str:
    from minimq.local.server_process import BrokerProcess

    name = server.broker_name if isinstance(server, BrokerProcess) else None
    if any(isinstance(other, BrokerProcess) and other.broker_name == name for other in left):
        return (
            f"The other replicas of {name} continue: if it was the master, an in-sync replica takes over after some "
            "seconds (`minimq cluster status`). To restart it until you end it, run in another terminal:\n  "
            f"{server.command_line}"
        )
    return "The other servers continue; to restart it, stop the cluster with Ctrl-C and start it again" + (
        "" if is_kept else ", which loses the data: use --data-dir to keep it"
    )
