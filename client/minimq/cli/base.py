"""The base of all commands: declaration of options, output of results, and handling of Ctrl-C."""

from __future__ import annotations

import codecs
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import click

from minimq.cli.table import show_table
from minimq.operations.rows import json_text
from minimq.operations.views import Row, Table
from minimq_common.errors import NoPermission, TopicNotFound, TopicUnavailable
from minimq_common.model import Permission, TopicRoute

F = TypeVar("F", bound=Callable[..., Any])

#: Beginnings of the values of variables `..._PORT` that Kubernetes makes of the services of a namespace.
_SERVICE_LINKS = ("tcp://", "udp://", "sctp://")


def option(*flags: str, **attributes: Any) -> Callable[[F], F]:
    """Declare an option whose help names its variable; an empty variable is an empty value, as on the command line."""
    return click.option(*flags, cls=_Option, show_envvar=True, **attributes)


class _Option(click.Option):
    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the variable, even if it is empty: click treats an empty one as unset.

        Kubernetes sets MINIMQ_CONSOLE_PORT to tcp://HOST:PORT for a service named minimq-console: that is no option.
        """
        value = super().resolve_envvar_value(ctx)
        if self.name == "port" and value is not None and value.startswith(_SERVICE_LINKS):
            return None
        variable = self.envvar or f"{ctx.auto_envvar_prefix}_{str(self.name).upper()}"
        return os.environ.get(variable) if value is None and isinstance(variable, str) else value


def confirm(question: Callable[[], str], *, yes: bool) -> None:
    """Ask for confirmation of something that loses data if stdin is a terminal; do not ask scripts.

    Args:
        question: makes the text if it is needed; an empty text asks nothing.
        yes: the answer was given by an option.

    Raises:
        click.Abort: the answer is no.
    """
    if yes or not sys.stdin.isatty():
        return
    text = question()
    if text:
        click.confirm(text, abort=True)


def tell(sentences: Iterable[str]) -> None:
    """Print sentences about what is missing on stderr."""
    for sentence in sentences:
        click.echo(sentence, err=True)


def show(output: str, table: Table, rows: Sequence[Row], *, without: Collection[str] = ()) -> None:
    """Print rows as a table, of which the columns in `without` are left out, or as a JSON list with everything."""
    if output == "json":
        show_json(rows)
    else:
        show_table(table, rows, without=without)


def show_json(value: object) -> None:
    """Print a value as JSON; times in ISO 8601."""
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    click.echo(json.dumps(value, indent=2, ensure_ascii=not is_utf8, default=json_text))


def check_allowed(
    nameserver: str,
    topic: str,
    wanted: Permission,
    *,
    patience_s: float = 0.0,
    option_name: str = "",
    wait: Callable[[float], object] | None = None,
) -> TopicRoute | None:
    """Return the route of a topic that is readable or writable on one of its brokers.

    A missing topic that is to be written is no error, and has no route: brokers may create it, or come back.

    Args:
        nameserver: where the name servers are.
        topic: its name.
        wanted: the permission that the command needs.
        patience_s: seconds to wait for absent servers.
        option_name: the option that sets this time, for the error.
        wait: waits that many seconds instead of `time.sleep`; an exception of it ends the wait.

    Raises:
        Unavailable: no name server answers.
        NoPermission: it is not readable or not writable on any of its brokers.
        TopicNotFound, TopicUnavailable: it cannot be read, since it does not exist or its brokers are away.
    """
    from minimq.admin import Admin
    from minimq.connection.at_master import with_retries

    with Admin(nameserver) as admin:

        def attempt(_left_s: float) -> TopicRoute | None:
            try:
                return admin.route(topic)
            except (TopicNotFound, TopicUnavailable):
                if wanted == Permission.WRITE:
                    return None
                raise

        route = with_retries(attempt, patience_s, wait=wait, option=option_name) if patience_s else attempt(0.0)
    if route is None:
        return None
    queues = route.queues
    # Without a master nothing can be written for now, which is not a matter of permissions.
    if any(route.master_of(data.broker_name) is None for data in queues) and wanted == Permission.WRITE:
        return route
    if queues and not any(data.permission & wanted for data in queues):
        what = "readable" if wanted == Permission.READ else "writable"
        names = ", ".join(data.broker_name for data in queues)
        raise NoPermission(
            f"topic {topic} is not {what} on {names}: the topic does not allow it, or the broker does not allow it of "
            f"any topic; see `minimq topic describe {topic}` and `minimq cluster status`, then `minimq topic update "
            f"{topic} --permission read-write` or `minimq cluster permission {queues[0].broker_name} read-write`"
        )
    return route


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Within the block, the first SIGINT or SIGTERM sets the event, a second one raises `KeyboardInterrupt`."""
    told = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if told.is_set():
            raise KeyboardInterrupt
        told.set()

    former = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_later() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block; a second one is not delayed."""
    told: list[int] = []

    def on_interrupt(number: int, _frame: FrameType | None) -> None:
        if told:
            raise KeyboardInterrupt
        told.append(number)

    former = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if told:
        raise KeyboardInterrupt
