"""A whole console: what it sees the cluster with, who may use it, and its address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from minimq import Cluster
from minimq_common.security.channel_security import open_credentials
from minimq_common.security.credentials import CredentialsArgument
from minimq_console.app import make_app
from minimq_console.console_options import ConsoleOptions
from minimq_console.observer import Observer
from minimq_console.server import ConsoleServer
from minimq_console.visitors import Visitors


@contextmanager
def open_console(
    nameserver: str | Sequence[str] | None, options: ConsoleOptions, credentials: CredentialsArgument | None = None
) -> Iterator[ConsoleServer]:
    """Serve the console of a cluster within the block."""
    secured = open_credentials(credentials)
    options.check(asks_for_keys=secured is not None)
    with Cluster(nameserver, credentials=credentials) as cluster:  # connects nowhere
        nameservers = cluster.nameservers

    def open_observer(own: CredentialsArgument) -> Observer:
        return Observer(nameservers, own, options.interval_s)

    with ExitStack() as opened:
        everybody = open_observer("") if secured is None else None
        app, surroundings = make_app(Visitors(everybody, secured, open_observer), nameservers, options)
        # An action that is under way ends when the connection is closed, and its line is written.
        opened.callback(surroundings.wait_for_actions)
        if everybody is not None:
            opened.callback(everybody.close)
        served = opened.enter_context(ConsoleServer(app, surroundings, options))
        if everybody is not None:
            everybody.start()
        yield served
